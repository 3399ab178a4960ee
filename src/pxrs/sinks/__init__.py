"""Fenced outputs, for both engines: written aside, shown by the commit of the checkpoints, each message's once."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pxrs.errors import BadSetting
from pxrs.sinks.parquet import ParquetSink
from pxrs.sinks.queue import QueueSink

if TYPE_CHECKING:
    from pxrs.sinks.sql.sink import SqlSink

__all__ = ["ParquetSink", "QueueSink"]
if find_spec("sqlalchemy") is not None:  # ``import *`` brings what can be used here
    __all__ += ["SqlSink"]


def __getattr__(name: str) -> Any:
    """SQLAlchemy is an extra, and takes a moment: it is loaded for those who use it."""
    if name != "SqlSink":
        raise AttributeError(f"module 'pxrs.sinks' has no attribute {name!r}")
    try:
        from pxrs.sinks.sql.sink import SqlSink
    except ModuleNotFoundError as error:
        raise BadSetting(f"{error.name} is not installed: pip install 'pxrs[postgres]' or 'pxrs[mysql]'") from error
    return SqlSink
