"""One sync for many partitions, and what is done where it cannot be had."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from pxrs.errors import Damaged
from pxrs.io import syncfs
from pxrs.logs.file import log as files
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, read_all

MANY = 40


class Syncs:
    """Counts what reaches the system."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.alone = 0
        self.together: list[int] = []
        self._fdatasync, self._together = os.fdatasync, syncfs.sync_together
        patch.setattr(os, "fdatasync", self._one)
        patch.setattr(files, "sync_together", self._all)

    def _one(self, fd: int) -> None:
        self.alone += 1
        self._fdatasync(fd)

    def _all(self, fds: list[int]) -> bool:
        self.together.append(len(fds))
        return self._together(fds)


@pytest.fixture
def fresh() -> None:
    """Ask the system anew, before and after."""
    syncfs._is_usable.cache_clear()


def append_to(log: files.FileLog, partitions: int) -> None:
    log.append({number: entries([b"%d" % number]) for number in range(partitions)})


@pytest.mark.skipif(not syncfs._is_usable(), reason="this system has no syncfs that reports errors")
def test_many_partitions_share_one_sync(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncfs, "_file_system_of", lambda _fd: 0xEF53)  # wherever the test runs
    log = open_file(MANY)
    append_to(log, MANY)
    syncs = Syncs(monkeypatch)
    append_to(log, MANY)
    assert (syncs.together, syncs.alone) == ([MANY], 0)
    assert [offset for offset, _ in read_all(open_file(None), MANY - 1)] == [0, 1]


def test_few_partitions_are_synced_each_alone(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_file(3)
    append_to(log, 3)
    syncs = Syncs(monkeypatch)
    append_to(log, 3)
    assert (syncs.together, syncs.alone) == ([], 3)


def test_b28_where_one_sync_fails_each_file_is_asked(open_file: OpenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a file's own sync tells whose data is lost: the one it fails for is poisoned, the others go on."""
    log = open_file(MANY)
    append_to(log, MANY)
    broken, real = log._partition(7)[1], os.fdatasync

    def fdatasync(fd: int) -> None:
        if fd == broken.file:
            raise OSError(5, "Input/output error")
        real(fd)

    monkeypatch.setattr(files, "sync_together", lambda _fds: False)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(Damaged, match="partition 7"):
        append_to(log, MANY)
    monkeypatch.undo()
    with pytest.raises(Damaged, match="partition 7"):
        log.append({7: entries([b"x"])})
    assert log.append({8: entries([b"x"])})[8] in (1, 2)


def test_an_old_system_is_not_trusted(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(sysname="Linux", release="5.4.0-generic"))
    fd = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    try:
        assert not syncfs.sync_together([fd])
    finally:
        os.close(fd)
        syncfs._is_usable.cache_clear()


def test_files_on_two_disks_are_not_synced_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = iter((1, 2))
    monkeypatch.setattr(os, "fstat", lambda _fd: SimpleNamespace(st_dev=next(disks)))
    assert not syncfs.sync_together([0, 1])


@pytest.mark.parametrize("kind", [0x794C7630, 0x65735546, None], ids=["overlayfs", "FUSE", "unknown"])
def test_b31_a_file_system_that_may_hide_a_failed_sync_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int | None
) -> None:
    monkeypatch.setattr(syncfs, "_file_system_of", lambda _fd: kind, raising=False)
    with (tmp_path / "file").open("wb") as file:
        assert not syncfs.sync_together([file.fileno()])


def test_the_kind_of_a_file_system_is_what_the_system_says(tmp_path: Path) -> None:
    told = subprocess.run(["stat", "-f", "-c", "%t", str(tmp_path)], capture_output=True, text=True, check=True)
    with (tmp_path / "file").open("wb") as file:
        assert syncfs._file_system_of(file.fileno()) == int(told.stdout, 16)
    assert syncfs._file_system_of(-1) is None
