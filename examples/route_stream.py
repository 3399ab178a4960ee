"""Any stream of Spark becomes a partitioned queue: files that a service drops are routed by account, and shared out.

python examples/route_stream.py

The stream is one that exists already; what is new are four lines at its end. Each event is stored once, whatever
happens to the query: it goes on from its own checkpoint, and a batch that comes again is known by its number.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter

from pyspark.sql import DataFrame, SparkSession

import pxrs
from pxrs.spark import session

EVENTS, ACCOUNTS = 600, 20
EVENT = "number long, account string, amount double"


def drop_files(place: str, numbers: range) -> None:
    """What some service does: files of a hundred events."""
    os.makedirs(f"{place}/drop", exist_ok=True)
    for first in range(numbers.start, numbers.stop, 100):
        events = [{"number": n, "account": f"acct-{n % ACCOUNTS}", "amount": n / 4} for n in range(first, first + 100)]
        path = f"{place}/drop/{first:06d}.json"
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)
        os.utime(path + ".tmp", (1_700_000_000 + first,) * 2)  # in a real drop the clock sees to it
        os.rename(path + ".tmp", path)


def events(spark: SparkSession, place: str) -> DataFrame:
    """The stream as it was. One file is one batch, so that accounts keep their order from file to file."""
    read = spark.readStream.schema(EVENT).option("pathGlobFilter", "*.json").option("maxFilesPerTrigger", 1)
    return read.json(f"{place}/drop").where("amount > 0")


def route(spark: SparkSession, place: str) -> None:
    """In a service without the trigger: then it runs until it is stopped."""
    messages = events(spark, place).selectExpr("account AS key", "to_json(struct(*)) AS value")
    query = (
        messages.writeStream.format("pxrs")
        .option("path", f"file:{place}/events")
        .option("partitions", 8)
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def consume(queue: pxrs.Queue) -> list[int]:
    """Two members share the partitions; an account is always with one of them, in order."""
    found: list[int] = []
    members = [queue.consumer(group="billing", handler=lambda m: found.append(m.json()["number"])) for _ in "AB"]
    for member in members:
        member.start()
    while queue.group("billing").describe().total_lag > 0 or len(found) < sum(queue.ends().values()):
        members[0].wait(0.02)
        members[0].check()
    for member in members:
        member.stop()
    return found


def main(place: str) -> None:
    spark = session("routing", master="local[2]", memory="512m")
    try:
        drop_files(place, range(300))
        route(spark, place)
        drop_files(place, range(300, EVENTS))
        route(spark, place)  # the query goes on where it was
    finally:
        spark.stop()
    with pxrs.open(f"file:{place}/events") as queue:
        print(f"{sum(queue.ends().values())} events in {queue.partitions} partitions")
        numbers = consume(queue)
    each = Counter(number % ACCOUNTS for number in numbers)
    print(f"{len(numbers)} events were handled, of {len(each)} accounts, {len(set(numbers))} different ones")
    for account in each:
        own = [number for number in numbers if number % ACCOUNTS == account]
        assert own == sorted(own), "an account keeps its order"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
