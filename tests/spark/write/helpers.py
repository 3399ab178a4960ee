"""Helpers of the tests of the Spark sink: the messages, and what is left where rows wait for their commit."""

from __future__ import annotations

import os
from pathlib import Path

import pxrs


def texts_of(queue: pxrs.Queue) -> list[str]:
    """The values of all messages, sorted."""
    found = [m.text for p, end in queue.ends().items() for m in queue.read(partition=p, offset=0, limit=end + 1)]
    return sorted(found)


def left_behind(queue: pxrs.Queue) -> list[str]:
    """The names of all files where rows wait for their commit."""
    assert queue.log.directory is not None
    return sorted(file for _, _, files in os.walk(Path(queue.log.directory, "_spark")) for file in files)
