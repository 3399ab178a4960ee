from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pxrs.logs.base import OpenOptions
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings

OpenFile = Callable[..., FileLog]


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    """The directory of the queue under test."""
    return tmp_path / "orders"


@pytest.fixture
def open_file(queue: Path) -> Iterator[OpenFile]:
    """Open the queue under test: ``open_file(partitions=1, segment_bytes=…)``."""
    opened: list[FileLog] = []

    def open_file(partitions: int | None = 1, create: bool = True, **settings: object) -> FileLog:
        log = FileLog.open(f"file:{queue}", OpenOptions(partitions), Settings.from_mapping(settings), create)
        opened.append(log)
        return log

    yield open_file
    for log in opened:
        log.close()
