"""The promises of a log, kept by each built-in one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pxrs.drivers import find_driver
from pxrs.errors import NotFound, Refused
from pxrs.logs import memory
from pxrs.logs.base import FewRows, Log, OpenOptions, Stamp
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings
from pxrs.testing.log_conformance import LogSuite
from pxrs.testing.logs.hooks import SMALL
from tests.logs.helpers import entries


def open_by_url(url: str, create: bool, settings: Settings | None, wish: dict[str, Any]) -> Log:
    log: Log = find_driver("pxrs.logs", url).open(url, OpenOptions(**wish), settings or Settings(), create)
    return log


class TestFileLog(LogSuite):
    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        return open_by_url(f"file:{place}/{name}", create, settings, wish)


class TestFileLogWithTinySegments(TestFileLog):
    """A new segment for every batch: the same promises across segments."""

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        tiny = (settings or Settings()).with_(segment_bytes=1, durability="flush")
        return super().make_log(place, name, create, tiny, **wish)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
class TestCompressedFileLog(TestFileLog):
    """Segments whose batches are compressed: the same promises."""

    compression = "none"

    @pytest.fixture(autouse=True)
    def chosen(self, compression: str) -> None:
        self.compression = compression

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        compressed = (settings or SMALL).with_(compression=self.compression)
        return super().make_log(place, name, create, compressed, **wish)


class SealsAtOnce(FileLog):
    """A file log that seals whatever it can after each append."""

    def append(
        self, batches: Mapping[int, pa.RecordBatch], stamps: Mapping[int, Stamp] | None = None
    ) -> dict[int, int]:
        return self._sealed(super().append(batches, stamps))

    def append_rows(self, rows: Mapping[int, FewRows], stamps: Mapping[int, Stamp] | None = None) -> dict[int, int]:
        return self._sealed(super().append_rows(rows, stamps))

    def _sealed(self, given: dict[int, int]) -> dict[int, int]:
        for partition in given:
            self.seal(partition)
        return given


class TestSealedFileLog(LogSuite):
    """All but the last two batches stand in Parquet: the same promises. What was trimmed stays for a while."""

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        lasting = (settings or SMALL).with_(segment_bytes=1, durability="flush", delete_delay_ms=60_000)
        return SealsAtOnce.open(f"file:{place}/{name}", OpenOptions(**wish), lasting, create)


class TestMemoryLog(LogSuite):
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "_named", {})  # each test its own process, as it were

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        return open_by_url(f"memory:{name}", create, settings, wish)


def test_a_memory_log_without_a_name_is_new_each_time() -> None:
    driver = find_driver("pxrs.logs", "memory:")
    first, second = (driver.open("memory:", OpenOptions(2), Settings(), True) for _ in range(2))
    first.append({0: entries([b"x"])})
    assert second.bounds(0) == (0, 0)
    assert first.identity.name == "memory"
    with pytest.raises(NotFound, match="memory:"):
        driver.open("memory:", OpenOptions(), Settings(), False)


def test_a_memory_log_has_no_pieces_for_other_processes() -> None:
    log = find_driver("pxrs.logs", "memory:").open("memory:", OpenOptions(1), Settings(), True)
    with pytest.raises(Refused, match="memory"):
        log.pieces(0, 0, 0)
