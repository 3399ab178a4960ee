"""The kind of session that pipelines and frames need: one with its JVM beside this process."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pxrs.errors import BadSetting


def check_session(spark: object, who: str) -> None:
    """Refuse anything else, before something is done with it."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadSetting(
            f"{who} does not work over Spark Connect: it needs the JVM of a classic session, such as "
            'pxrs.spark.session() makes. What works: spark.read.format("pxrs") and spark.readStream.format("pxrs")'
        )
    if not isinstance(spark, SparkSession):
        raise BadSetting(f"{who} needs a SparkSession, not {spark!r}: pxrs.spark.session() makes one")
