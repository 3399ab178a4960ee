"""A whole pipeline on Spark, fenced commits included, against what Spark itself offers for the same function."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import pxrs
from benchmarks.harness import Result, require_equal
from benchmarks.parts.applications import spark_application
from benchmarks.parts.handlers import COLUMNS, COUNTED, EACH_ROW, ONE_IN_16, Handler
from benchmarks.parts.messages import JSON_COLUMNS, PARTITIONS, fill, whole, write_json, write_parquet
from benchmarks.parts.races import race
from benchmarks.parts.sealed import race_sealed
from benchmarks.parts.streams import Streams
from benchmarks.parts.writes import Writes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY = "10 M messages of 100 bytes (--quick: 1 M) through Spark: pipelines, streams, reads, writes, against its own"

HANDLERS = (EACH_ROW, ONE_IN_16, COUNTED)
LONG_BATCHES = pxrs.Settings(target_batch_ms=5_000)
"""The peer takes everything in one batch. The default, about 1 s, is measured too."""
NEEDED = "key binary, value binary, offset long"
"""What the aggregation looks at. Spark's reader of JSON passes over other fields by itself."""


def run(quick: bool) -> Result:
    messages = 1_000_000 if quick else 10_000_000
    result = Result("spark", {"messages, M": messages / 1e6})
    if quick:
        print("quick: 1 M messages instead of 10 M; what a batch costs however small it is weighs more")
    with tempfile.TemporaryDirectory(prefix="pxrs-benchmark-") as place, spark_application(memory="2g") as spark:
        course = Course(spark, Path(place), messages)
        for handler in HANDLERS:
            ours, peer = partial(course.ours, handler, LONG_BATCHES), partial(course.peer, handler)
            race(result, handler.title, messages, ours, {"": peer})
        ours, peer = partial(course.ours, EACH_ROW, pxrs.Settings()), partial(course.peer, EACH_ROW)
        race(result, f"{EACH_ROW.title}, batches of 1 s", messages, ours, {"": peer})
        for title, columns in (("", NEEDED), (", all columns", None)):
            read, parsed = partial(course.our_aggregation, columns), partial(course.json_aggregation, columns)
            race(result, f"batch source → aggregation{title}", messages, read, {"": parsed})
        course.queue.close()
        Streams(spark, Path(place), messages).run(result)
        history = max(messages, 3_000_000)  # with fewer some partitions have no full segment to seal
        race_sealed(spark, result, Path(place), history, warm_up=1 if quick else 3, rounds=3 if quick else 7)
        Writes(spark, Path(place), messages).run(result)
    return result


class Course:
    """The same messages three times: in a queue, as Parquet and as JSON; and what runs on each."""

    def __init__(self, spark: SparkSession, place: Path, messages: int) -> None:
        self._spark = spark
        self._place = place
        self._messages = messages
        self._numbers = count()
        self.queue = pxrs.open(f"file:{place}/queue", partitions=PARTITIONS)
        fill(self.queue, messages)
        self._parquet, self._json = str(place / "parquet"), str(place / "json")
        everything = whole(spark, f"file:{place}/queue")
        write_parquet(everything, place / "parquet")
        write_json(everything, place / "json")
        self._schema = spark.read.parquet(self._parquet).schema
        self._check()

    def _check(self) -> None:
        """Both sides compute the same; by the way everything has run once, and nobody pays for a cold start."""
        for handler in HANDLERS:
            sides = (self._our_frame(handler), self._mapped(self._spark.read.schema(self._schema), handler))
            ours, theirs = (side.selectExpr(*handler.totals).collect() for side in sides)
            require_equal(handler.title, ours, theirs)
        require_equal("aggregation", self.our_aggregation(NEEDED), self.json_aggregation(NEEDED))

    # ---- handlers ---------------------------------------------------------------------------------------------------

    def _our_frame(self, handler: Handler) -> DataFrame:
        from pxrs.spark import frame

        ranges = {partition: (0, end) for partition, end in self.queue.ends().items()}
        return frame(self._spark, self.queue, ranges, COLUMNS, handler.function, handler.schema)

    def ours(self, handler: Handler, settings: pxrs.Settings) -> None:
        """A member of a group from its start to its leave: join, claim, read, map, write to nowhere, commit fenced."""
        from pxrs.spark import Pipeline

        pipeline = Pipeline(
            self._spark, self.queue, group=f"race-{next(self._numbers)}",
            map_arrow=handler.function, columns=COLUMNS, schema=handler.schema, process=_to_nowhere, settings=settings,
        )  # fmt: skip
        pipeline.run(until_end=True)
        if pipeline.tally.handled != self._messages:
            raise RuntimeError(f"{pipeline.tally.handled} of {self._messages} messages were processed")

    def peer(self, handler: Handler) -> None:
        """Structured Streaming, all that is there in one go, to the same nowhere."""
        stream = self._mapped(self._spark.readStream.schema(self._schema), handler)
        checkpoint = str(self._place / f"checkpoint-{next(self._numbers)}")
        query = (
            stream.writeStream.format("noop")
            .trigger(availableNow=True)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        query.awaitTermination()
        done = sum(progress.numInputRows for progress in query.recentProgress)
        if done != self._messages:
            raise RuntimeError(f"Structured Streaming has processed {done} of {self._messages} messages")

    def _mapped(self, reader: Any, handler: Handler) -> DataFrame:
        function = handler.function

        def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (function(batch) for batch in batches)

        df: DataFrame = reader.parquet(self._parquet).select(*COLUMNS).mapInArrow(mapped, handler.schema)
        return df

    # ---- batch reads ------------------------------------------------------------------------------------------------

    def _our_messages(self, columns: str | None) -> DataFrame:
        reader = self._spark.read.format("pxrs")
        return (reader.schema(columns) if columns else reader).load(f"file:{self._place}/queue")

    def _json_messages(self, columns: str | None) -> DataFrame:
        """Always with a schema: Spark would read everything twice to guess one."""
        return self._spark.read.schema((columns or JSON_COLUMNS).replace("binary", "string")).json(self._json)

    def our_aggregation(self, columns: str | None) -> list[Any]:
        return _by_account(self._our_messages(columns))

    def json_aggregation(self, columns: str | None) -> list[Any]:
        return _by_account(self._json_messages(columns))


def _to_nowhere(df: DataFrame) -> None:
    """All rows arrive in the JVM, as they do in the peer's query."""
    df.write.format("noop").mode("append").save()


def _by_account(messages: DataFrame) -> list[Any]:
    """For each account: how many messages, how many bytes, and the last of them."""
    from pyspark.sql import functions as F  # noqa: N812 - as every Spark program calls it

    columns = (F.count("*"), F.sum(F.length("value")), F.max("offset"))
    rows = messages.groupBy("key").agg(*columns).collect()
    return sorted((row[0] if isinstance(row[0], str) else row[0].decode(), *row[1:]) for row in rows)
