"""PXRS on Spark: a session, a queue's messages as a DataFrame, and pipelines that share a queue.

    from pxrs.spark import Pipeline, session

    spark = session("billing")
    spark.read.format("pxrs").load("file:./orders").show()
    Pipeline(spark, queue, group="billing", process=fn, sink=sink).run()
    stream.writeStream.foreachBatch(fenced(fn)).start()

The names are loaded when they are first used: a Spark task that reads a piece of a log does not pay for the rest.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pxrs.errors import BadSetting

if TYPE_CHECKING:
    from pxrs.spark.fenced import fenced
    from pxrs.spark.formats import register
    from pxrs.spark.frame import frame
    from pxrs.spark.pipeline import Pipeline
    from pxrs.spark.pyfiles import py_files
    from pxrs.spark.routing import routed
    from pxrs.spark.session import session

__all__ = ["Pipeline", "fenced", "frame", "py_files", "register", "routed", "session"]

_HOMES = {
    "Pipeline": "pxrs.spark.pipeline", "fenced": "pxrs.spark.fenced", "frame": "pxrs.spark.frame",
    "py_files": "pxrs.spark.pyfiles", "register": "pxrs.spark.formats", "routed": "pxrs.spark.routing",
    "session": "pxrs.spark.session",
}  # fmt: skip
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


class _Package(ModuleType):
    """Keeps ``fenced``, ``frame`` and ``session`` functions: to load the modules of these names would replace them."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
