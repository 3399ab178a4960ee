"""Fenced outputs, for both engines: written aside, shown by the commit of the checkpoints, each message's once."""

from __future__ import annotations

from pxrs.sinks.parquet import ParquetSink
from pxrs.sinks.queue import QueueSink

__all__ = ["ParquetSink", "QueueSink"]
