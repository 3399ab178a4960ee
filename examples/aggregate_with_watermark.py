"""Windows with a watermark over a queue: clicks are counted by the minute, and each count is final when it appears.

python examples/aggregate_with_watermark.py

The stream reads **alone**, without ``pxrs.group.id``. The open windows are state, and Spark keeps state in the query's
own checkpoint, spread by its own hash. In a group partitions move from member to member, and that state would not move
with them: the new owner would count a window from its middle, and the old one keep half of it. So one query reads all
partitions, its progress and its windows are in one checkpoint, and a restart finds both as they belong together.

To share such work among applications, count within each batch instead and add up behind it: examples/etl_to_sql.py.
"""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import pxrs
from pxrs.spark import session

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
PAGES = ("home", "cart")
CLICK = "page string, at timestamp"


def send(queue: pxrs.Queue, minutes: range, each: int) -> None:
    """Send this many clicks on each page in each of these minutes."""
    with queue.producer() as producer:
        for minute in minutes:
            for click in range(each):
                at = NOON + timedelta(minutes=minute, seconds=click)
                for page in PAGES:
                    producer.send(page, json.dumps({"page": page, "at": at.isoformat()}))


def per_minute(spark: SparkSession, url: str) -> DataFrame:
    """A minute is closed, and its count printed, when a click two minutes behind its end was seen."""
    clicks = spark.readStream.format("pxrs").option("startingOffsets", "earliest").load(url)
    parsed = clicks.select(F.from_json(F.col("value").cast("string"), CLICK).alias("click")).select("click.*")
    windows = parsed.withWatermark("at", "2 minutes").groupBy(F.window("at", "1 minute"), "page").count()
    return windows.selectExpr("window.start AS minute", "page", "count")


def work_off(counts: DataFrame, place: str) -> None:
    """In a service without the trigger: then it runs until it is stopped."""
    query = (
        counts.writeStream.format("parquet")
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{place}/counts")
    )
    query.awaitTermination()


def main(place: str) -> None:
    spark = session("clicks", master="local[2]", memory="512m")
    spark.conf.set("spark.sql.shuffle.partitions", 2)
    try:
        with pxrs.open(f"file:{place}/clicks", partitions=4) as queue:
            counts = per_minute(spark, f"file:{place}/clicks")
            send(queue, range(5), each=30)
            work_off(counts, place)
            send(queue, range(4, 10), each=20)  # minute 4 is still open: these clicks belong to it, over the restart
            work_off(counts, place)
        found = spark.read.parquet(f"{place}/counts").where("page = 'home'").orderBy("minute").collect()
    finally:
        spark.stop()
    print(f"{len(found)} minutes are final")
    for row in found[3:6]:
        print(f"minute {row.minute.minute}: {row['count']} clicks on home")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
