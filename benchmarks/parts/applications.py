"""Spark applications for the benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_application(master: str = "local[2]", memory: str = "1g") -> Iterator[SparkSession]:
    """A session as our users get it, ended with the block."""
    from pxrs.spark import session

    spark = session("benchmark", master=master, memory=memory)
    try:
        yield spark
    finally:
        spark.stop()
