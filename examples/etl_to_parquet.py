"""From a queue of JSON orders to Parquet files in which each order is there exactly once: a pipeline on Spark.

python examples/etl_to_parquet.py

Output is written aside, and shown by the same commit that moves the checkpoints. So readers need to know nothing of
PXRS: whatever happens to the pipeline, the directory holds each order once.
"""

from __future__ import annotations

import json
import tempfile

import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

import pxrs
from pxrs.sinks import ParquetSink
from pxrs.spark import Pipeline, session

ORDERS = 2_000
ORDER = "number long, account string, amount double, day string"


def send_orders(queue: pxrs.Queue) -> None:
    with queue.producer() as producer:
        for number in range(ORDERS):
            account = f"acct-{number % 50}"
            order = {"number": number, "account": account, "amount": number / 4, "day": f"2026-01-{number % 3 + 1:02d}"}
            producer.send(account, json.dumps(order))


def clean(df: DataFrame) -> DataFrame:
    """What is done with each batch: all of it runs in Spark."""
    order = from_json(col("value").cast("string"), ORDER).alias("order")
    return df.select(order, "partition", "offset").select("order.*", "partition", "offset").where("amount > 0")


def run_pipeline(spark: SparkSession, queue: pxrs.Queue, directory: str) -> None:
    """In a service this is ``run()``, which ends with SIGTERM; start it twice, and the two share the partitions."""
    sink = ParquetSink(directory, partition_by="day")
    Pipeline(spark, queue, group="etl", process=clean, sink=sink).run(until_end=True)


def main(place: str) -> None:
    spark = session("etl", master="local[2]", memory="512m")
    try:
        with pxrs.open(f"file:{place}/orders", partitions=8) as queue:
            send_orders(queue)
            run_pipeline(spark, queue, f"{place}/clean")
            print(f"lag {queue.group('etl').describe().total_lag}")
        by_spark = spark.read.parquet(f"{place}/clean")
        print(f"Spark reads {by_spark.count()} orders, {by_spark.select('number').distinct().count()} distinct")
    finally:
        spark.stop()
    table = ds.dataset(f"{place}/clean", format="parquet", partitioning="hive").to_table()
    total = pc.sum(table["amount"]).as_py()
    print(f"pyarrow reads {table.num_rows} orders of {pc.count_distinct(table['day'])} days, worth {total:,.2f}")
    assert sorted(table["number"].to_pylist()) == list(range(1, ORDERS)), "each order once, but for the one of nothing"
    assert total == sum(number / 4 for number in range(ORDERS))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
