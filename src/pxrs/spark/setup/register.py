"""Making ``format("pxrs")`` known to a session whose executors are other machines."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from pxrs.spark.read.source import DefaultSource

_STREAMING = "streaming_job"
"""Where Spark's source processes look for the files of an application, beside where it puts them."""


def register(spark: SparkSession) -> None:
    """Make ``format("pxrs")`` known to this session, with the Python and the files of its executors.

    Spark finds the format by itself where PXRS is installed. But what it finds so runs everywhere with the driver's
    Python, also on executors, and without ``--py-files``: on a cluster, and from a zip, it must be registered.
    ``pxrs.spark.session`` does it there.
    """
    spark.dataSource.register(DefaultSource)
    context = getattr(spark, "_sc", None)
    if context is not None:  # and no session of Spark Connect, whose driver is elsewhere
        _show_to_streams(Path(SparkFiles.getRootDirectory()), context._python_includes)


def needs_registering(spark: SparkSession) -> bool:
    is_local = re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master or "") is not None
    return not is_local or not os.path.exists(__file__)


def _show_to_streams(root: Path, names: list[str]) -> None:
    """The process of a streaming source is told another directory than its tasks are: put the same files there."""
    for name in names:
        link = root / _STREAMING / name
        link.parent.mkdir(exist_ok=True)
        if not link.exists() and (root / name).exists():
            link.symlink_to(root / name)
