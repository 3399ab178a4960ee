"""Structured Streaming over all that a queue holds, to nowhere: our source against Spark's own of Parquet and JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Result, require_equal
from benchmarks.parts.messages import JSON_COLUMNS
from benchmarks.parts.races import race

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "stream → noop"
PAIR = "key binary, value binary"
SUMS = ("count(*) n", "sum(length(key)) keys", "sum(length(value)) lengths", "sum(crc32(value)) checks")


class Streams:
    """The same messages in a queue, as Parquet and as JSON, each read by a query that ends when it has all of them."""

    def __init__(self, spark: SparkSession, place: Path, messages: int) -> None:
        """The place holds ``queue``, ``parquet`` and ``json``."""
        self._spark = spark
        self._place = place
        self._messages = messages
        self._numbers = count()
        self._running: dict[tuple[str, str | None], list[float]] = {}
        self._schema = spark.read.parquet(str(place / "parquet")).schema

    def run(self, result: Result) -> None:
        """All columns, alone and as a member of a group; then key and value alone."""
        self._check()
        parquet, json = (partial(self.to_nowhere, reader) for reader in (self.parquet, self.json))
        peers = {"readStream.parquet": parquet, "readStream.json": json}
        race(result, TITLE, self._messages, partial(self.to_nowhere, self.ours), peers)
        member = partial(self.to_nowhere, self.member)
        race(result, f"{TITLE}, member of a group", self._messages, member, {"readStream.parquet": parquet})
        pair, peer = (partial(self.to_nowhere, reader, PAIR) for reader in (self.ours, self.parquet))
        both = {"readStream.parquet": peer, "readStream.parquet, all columns": parquet}
        race(result, f"{TITLE}, key and value", self._messages, pair, both)
        for columns, words in ((None, ""), (PAIR, ", key and value")):
            self._while_running(result, f"{TITLE}{words}, without the start of the query", columns)

    def _while_running(self, result: Result, title: str, columns: str | None) -> None:
        """By the same runs. A query starts once, and ours starts a process for its source; then it runs for days."""
        ours, peer = (statistics.median(self._running[name, columns]) for name in ("ours", "parquet"))
        result.figures[f"{title}, M messages/s"] = self._messages / ours / 1e6
        result.peers[f"{title} / readStream.parquet, M messages/s"] = self._messages / peer / 1e6
        result.ratios[f"{title} / readStream.parquet"] = peer / ours

    def _check(self) -> None:
        """All hold the same messages; by the way each way has run once, and nobody pays for a cold start."""
        ours = self._sums(self.ours)
        for reader in (self.member, self.parquet, self.json):
            require_equal(TITLE, ours, self._sums(reader))

    # ---- sources ----------------------------------------------------------------------------------------------------

    def ours(self, columns: str | None = None) -> DataFrame:
        return self._load(columns, startingOffsets="earliest")

    def member(self, columns: str | None = None) -> DataFrame:
        return self._load(columns, **{"pxrs.group.id": f"stream-{next(self._numbers)}"})

    def _load(self, columns: str | None, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("pxrs").options(**options)
        return (reader.schema(columns) if columns else reader).load(f"file:{self._place}/queue")

    def parquet(self, columns: str | None = None) -> DataFrame:
        return self._spark.readStream.schema(columns or self._schema).parquet(str(self._place / "parquet"))

    def json(self, columns: str | None = None) -> DataFrame:
        return self._spark.readStream.schema(columns or JSON_COLUMNS).json(str(self._place / "json"))

    # ---- queries ----------------------------------------------------------------------------------------------------

    def to_nowhere(self, reader: Callable[[str | None], DataFrame], columns: str | None = None) -> None:
        """All rows arrive in the JVM as Spark's own rows, and go nowhere."""
        running = self._ended(reader(columns).writeStream.format("noop"))
        self._running.setdefault((reader.__name__, columns), []).append(running)

    def _sums(self, reader: Callable[[str | None], DataFrame]) -> Counter[str]:
        found: Counter[str] = Counter()

        def add(df: DataFrame, _: int) -> None:
            found.update(df.selectExpr(*SUMS).collect()[0].asDict())

        self._ended(reader(None).writeStream.foreachBatch(add))
        return found

    def _ended(self, writer: Any) -> float:
        """Run a query to its end; returns the seconds that its batches took, as Spark counts them."""
        checkpoint = str(self._place / f"stream-checkpoint-{next(self._numbers)}")
        query = writer.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        done = sum(progress.numInputRows for progress in query.recentProgress)
        if done != self._messages:
            raise RuntimeError(f"a query has processed {done} of {self._messages} messages")
        return float(sum(progress.durationMs["triggerExecution"] for progress in query.recentProgress)) / 1000
