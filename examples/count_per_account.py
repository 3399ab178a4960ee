"""Counting per account, with Python code that runs next to the log; the counts are messages of another queue.

python examples/count_per_account.py

``map_arrow`` gets Arrow batches of one partition each, in order. It is the place for Python code: what it returns is
all that Spark has to move. ``process`` adds up what it found in all partitions of a batch.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import col, struct, to_json
from pyspark.sql.functions import sum as sum_of

import pxrs
from pxrs.sinks import QueueSink
from pxrs.spark import Pipeline, session

CLICKS = 3_000
ACCOUNTS = 20
FOUND = pa.schema([("account", pa.string()), ("clicks", pa.int64())])


def send_clicks(queue: pxrs.Queue) -> None:
    with queue.producer() as producer:
        for number in range(CLICKS):
            account = f"acct-{number % ACCOUNTS}"
            producer.send(account, json.dumps({"account": account, "robot": number % 3 == 0}))


def people(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Any Python code: here it counts clicks that no robot has made."""
    clicks = map(json.loads, batch["value"].to_pylist())
    counts = Counter(click["account"] for click in clicks if not click["robot"])
    return pa.RecordBatch.from_arrays([pa.array(counts.keys()), pa.array(counts.values())], schema=FOUND)


def add_up(df: DataFrame) -> DataFrame:
    """One message for each account of a batch: how many clicks this batch had."""
    counted = df.groupBy("account").agg(sum_of("clicks").alias("clicks"))
    return counted.select(col("account").alias("key"), to_json(struct("clicks")).alias("value"))


def totals(counts: pxrs.Queue) -> Counter[str]:
    found: Counter[str] = Counter()
    for partition, end in counts.ends().items():
        for message in counts.read(partition, 0, end):
            found[(message.key or b"").decode()] += message.json()["clicks"]
    return found


def main(place: str) -> None:
    spark = session("counting", master="local[2]", memory="512m")
    try:
        with (
            pxrs.open(f"file:{place}/clicks", partitions=8) as clicks,
            pxrs.open(f"file:{place}/counts", partitions=2) as counts,
        ):
            send_clicks(clicks)
            pipeline = Pipeline(
                spark, clicks, "counting", add_up, people, QueueSink(counts), columns=["value"], schema=FOUND
            )
            pipeline.run(until_end=True)
            found = totals(counts)
    finally:
        spark.stop()
    print(f"{found.total()} of {CLICKS} clicks were made by people, for {len(found)} accounts")
    print(f"acct-0 has {found['acct-0']}")
    wanted = Counter(f"acct-{number % ACCOUNTS}" for number in range(CLICKS) if number % 3)
    assert found == wanted, "each click was counted exactly once"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
