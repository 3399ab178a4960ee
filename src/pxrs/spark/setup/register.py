"""Making ``format("pxrs")`` known to a session whose executors are other machines."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession

from pxrs.spark.read.source import DefaultSource
from pxrs.spark.spark_internals import show_to_streams


def register(spark: SparkSession) -> None:
    """Make ``format("pxrs")`` known to this session, with the Python and the files of its executors.

    Spark finds the format by itself where PXRS is installed. But what it finds so runs everywhere with the driver's
    Python, also on executors, and without ``--py-files``: on a cluster, and from a zip, it must be registered.
    ``pxrs.spark.session`` does it there.
    """
    spark.dataSource.register(DefaultSource)
    context = getattr(spark, "_sc", None)
    if context is not None:  # and no session of Spark Connect, whose driver is elsewhere
        show_to_streams(Path(SparkFiles.getRootDirectory()), context._python_includes)


def needs_registering(spark: SparkSession) -> bool:
    is_local = re.fullmatch(r"local(\[.*\])?", spark.sparkContext.master or "") is not None
    return not is_local or not os.path.exists(__file__)
