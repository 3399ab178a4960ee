"""Small batches, and their content as plain lists: those of the shipped suite."""

from __future__ import annotations

from pxrs.testing.logs.hooks import OpenLog, entries, numbered, pairs, read_all

__all__ = ["OpenLog", "entries", "numbered", "pairs", "read_all"]
