"""The promises of a log, kept by each built-in one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from pxrs.drivers import find_driver
from pxrs.errors import NotFound, Refused
from pxrs.logs import memory
from pxrs.logs.base import FewRows, OpenOptions, Stamp
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings
from pxrs.testing.logs.hooks import SMALL
from tests.logs.helpers import KindSuite, LogKind, entries


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


def in_place(place: Path, name: str) -> str:
    return f"file:{place}/{name}"


ONE_EACH = {"segment_bytes": 1, "durability": "flush"}
"""A new segment for every batch."""


class TestFileLog(KindSuite):
    kind = LogKind(in_place)


class TestFileLogWithTinySegments(KindSuite):
    """The same promises across segments."""

    kind = LogKind(in_place, ONE_EACH)


class TestFileLogWithLz4(KindSuite):
    """Segments whose batches are compressed: the same promises."""

    kind = LogKind(in_place, {"compression": "lz4"}, SMALL)


class TestFileLogWithZstd(KindSuite):
    kind = LogKind(in_place, {"compression": "zstd"}, SMALL)


class TestSealedFileLog(KindSuite):
    """All but the last two batches stand in Parquet: the same promises. What was trimmed stays for a while."""

    kind = LogKind(in_place, {**ONE_EACH, "delete_delay_ms": 60_000}, SMALL, SealsAtOnce)


class TestMemoryLog(KindSuite):
    kind = LogKind(lambda _, name: f"memory:{name}")

    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "_named", {})  # each test its own process, as it were


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
