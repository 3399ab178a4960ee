"""The contract of a log, kept by each built-in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pxrs.errors import NotFound, Refused
from pxrs.logs import memory
from pxrs.logs.base import Log, Wish
from pxrs.plugins import find_driver
from pxrs.settings import Settings

from .contract import LogContract
from .helpers import OpenLog, entries


def opener(url: str) -> tuple[OpenLog, list[Log]]:
    """A way to open logs by name below a URL, and the list of what it opened."""
    opened: list[Log] = []

    def open_log(name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any) -> Log:
        place = url.format(name=name)
        log: Log = find_driver("pxrs.logs", place).open(place, Wish(**wish), settings or Settings(), create)
        opened.append(log)
        return log

    return open_log, opened


class TestFileLog(LogContract):
    @pytest.fixture
    def open_log(self, tmp_path: Path) -> Iterator[OpenLog]:
        made, opened = opener(f"file:{tmp_path}/{{name}}")
        yield made
        for log in opened:
            log.close()


class TestFileLogWithTinySegments(LogContract):
    """A new segment for every batch: the same contract across segments."""

    @pytest.fixture
    def open_log(self, tmp_path: Path) -> Iterator[OpenLog]:
        made, opened = opener(f"file:{tmp_path}/{{name}}")

        def tiny(*args: Any, **wish: Any) -> Log:
            return made(*args, settings=Settings(segment_bytes=1, durability="flush"), **wish)

        yield tiny
        for log in opened:
            log.close()


class TestMemoryLog(LogContract):
    @pytest.fixture
    def open_log(self, monkeypatch: pytest.MonkeyPatch) -> OpenLog:
        monkeypatch.setattr(memory, "_named", {})  # each test its own process, as it were
        return opener("memory:{name}")[0]


def test_a_memory_log_without_a_name_is_new_each_time() -> None:
    driver = find_driver("pxrs.logs", "memory:")
    first, second = (driver.open("memory:", Wish(2), Settings(), True) for _ in range(2))
    first.append({0: entries([b"x"])})
    assert second.bounds(0) == (0, 0)
    assert first.identity.name == "memory"
    with pytest.raises(NotFound, match="memory:"):
        driver.open("memory:", Wish(), Settings(), False)


def test_a_memory_log_has_no_pieces_for_other_processes() -> None:
    log = find_driver("pxrs.logs", "memory:").open("memory:", Wish(1), Settings(), True)
    with pytest.raises(Refused, match="memory"):
        log.pieces(0, 0, 0)
