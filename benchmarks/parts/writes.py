"""A frame written by ``format("pxrs")``, against the same rows repartitioned by key and written as Parquet."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Result, require_equal
from benchmarks.parts.messages import PARTITIONS
from benchmarks.parts.races import race

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "write.format(pxrs)"
PEER = "repartition(8, key).write.parquet"
SUMS = ("count(*)", "sum(length(key))", "sum(length(value))", "sum(crc32(value))")


class Writes:
    """Rows of key and value from Parquet files, which cost both sides the same, to a new place each time."""

    def __init__(self, spark: SparkSession, place: Path, messages: int) -> None:
        """The place holds ``parquet``."""
        self._spark = spark
        self._place = place
        self._messages = messages
        self._numbers = count()
        self._rows = spark.read.parquet(str(place / "parquet")).select("key", "value")

    def run(self, result: Result) -> None:
        self._check()
        race(result, TITLE, self._messages, lambda: self._again(self.ours), {PEER: lambda: self._again(self.peer)})

    def _check(self) -> None:
        """Both store the same; by the way both have run once."""
        ours, peer = self.ours(), self.peer()
        stored = self._spark.read.format("pxrs").schema("key binary, value binary").load(f"file:{ours}")
        require_equal(TITLE, _sums(stored), _sums(self._spark.read.parquet(str(peer))))
        for made in (ours, peer):
            shutil.rmtree(made)

    def _again(self, write: Any) -> None:
        shutil.rmtree(write())

    def ours(self) -> Path:
        """Durable when it returns, as a queue is; partitions are those of the keys."""
        made = self._place / f"written-{next(self._numbers)}"
        self._rows.write.format("pxrs").mode("append").option("partitions", PARTITIONS).save(f"file:{made}")
        return made

    def peer(self) -> Path:
        made = self._place / f"files-{next(self._numbers)}"
        self._rows.repartition(PARTITIONS, "key").write.parquet(str(made))
        return made


def _sums(df: DataFrame) -> list[Any]:
    return df.selectExpr(*SUMS).collect()
