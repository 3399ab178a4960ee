"""PXRS on Spark: a session, a queue's messages as a DataFrame, and pipelines that share a queue.

    from pxrs.spark import Pipeline, session

    spark = session("billing")
    spark.read.format("pxrs").load("file:./orders").show()
    Pipeline(spark, queue, group="billing", process=fn, sink=sink).run()
    stream.writeStream.foreachBatch(fenced(fn)).start()

The names are loaded when they are first used: a Spark task that reads a piece of a log does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pxrs.errors import BadSetting

if TYPE_CHECKING:
    from pxrs.spark.pipeline.pipeline import Pipeline
    from pxrs.spark.read.frame import frame
    from pxrs.spark.setup.py_files import py_files
    from pxrs.spark.setup.register import register
    from pxrs.spark.setup.session import session
    from pxrs.spark.stream.foreach_batch import fenced
    from pxrs.spark.write.columns import routed

__all__ = ["Pipeline", "fenced", "frame", "py_files", "register", "routed", "session"]

_HOMES = {
    "Pipeline": "pxrs.spark.pipeline.pipeline",
    "fenced": "pxrs.spark.stream.foreach_batch",
    "frame": "pxrs.spark.read.frame",
    "py_files": "pxrs.spark.setup.py_files",
    "register": "pxrs.spark.setup.register",
    "routed": "pxrs.spark.write.columns",
    "session": "pxrs.spark.setup.session",
}
_EXTRA = {"pyspark", "py4j", "pandas"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pxrs.spark' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _EXTRA:
            raise BadSetting(f"{error.name} is not installed: pip install 'pxrs[spark]'") from error
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
