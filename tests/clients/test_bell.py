"""The bell between processes of one machine."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pxrs.clients import bell
from pxrs.clients.bell import Bell
from pxrs.testing.promises import Background
from pxrs.testing.servers.base import wait_until

SOON = 10.0


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[tuple[Bell, Bell]]:
    """Of two processes: they share the directory, and nothing else."""
    pair = Bell(str(tmp_path / "bell")), Bell(str(tmp_path / "bell"))
    yield pair
    for one in pair:
        one.close()


def test_a_ring_is_heard_by_the_other(bells: tuple[Bell, Bell]) -> None:
    mine, other = bells
    other.listen()
    for _ in range(3):
        heard = other.heard
        mine.ring()
        assert other.wait(heard, SOON)


def test_who_rings_before_anybody_listens_is_heard_afterwards(bells: tuple[Bell, Bell]) -> None:
    mine, other = bells
    mine.ring()
    other.listen()
    heard = other.heard
    mine.ring()
    assert other.wait(heard, SOON)


def test_a_ring_changes_no_file_so_that_no_sync_has_to_carry_it(bells: tuple[Bell, Bell], tmp_path: Path) -> None:
    mine, _ = bells
    mine.ring()
    before = (tmp_path / "bell" / "ring").stat()
    mine.ring()
    after = (tmp_path / "bell" / "ring").stat()
    assert (after.st_mtime_ns, after.st_ctime_ns, after.st_size) == (before.st_mtime_ns, before.st_ctime_ns, 1)


def test_after_its_directory_was_deleted_a_ring_is_heard_by_who_listens_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(bell, "_monotonic", lambda: now[0])
    place = tmp_path / "bell"
    mine, other = Bell(str(place)), Bell(str(place))
    mine.ring()
    shutil.rmtree(place)
    other.listen()
    heard = other.heard
    now[0] += 2 * bell.CHECK_SECONDS
    mine.ring()
    assert other.wait(heard, SOON)
    mine.close()
    other.close()


def test_whether_it_was_deleted_is_not_asked_with_every_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked, fstat = [100.0], list[int](), os.fstat

    def noted(file: int) -> os.stat_result:
        if file == mine._file:
            asked.append(file)
        return fstat(file)

    monkeypatch.setattr(bell, "_monotonic", lambda: now[0])
    mine = Bell(str(tmp_path / "bell"))
    mine.ring()
    monkeypatch.setattr(os, "fstat", noted)
    for _ in range(3):
        mine.ring()
    assert not asked
    now[0] += 2 * bell.CHECK_SECONDS
    mine.ring()
    assert len(asked) == 1
    mine.close()


def test_all_who_wait_in_the_ringing_process_are_woken(tmp_path: Path) -> None:
    mine = Bell(str(tmp_path / "bell"))
    waiting = [Background(mine.wait, 0, SOON) for _ in range(3)]
    while mine._waiting < len(waiting):
        time.sleep(0.001)
    mine.ring()
    assert [call.result(SOON / 2, "a wait") for call in waiting] == [True] * 3
    assert mine._waiting == 0
    mine.close()


def test_a_closed_bell_does_not_ring(bells: tuple[Bell, Bell], tmp_path: Path) -> None:
    mine, _ = bells
    mine.close()
    mine.ring()
    assert not (tmp_path / "bell").exists()


def test_a_bell_whose_file_was_emptied_is_heard_again(bells: tuple[Bell, Bell], tmp_path: Path) -> None:
    mine, other = bells
    other.listen()
    mine.ring()
    os.truncate(tmp_path / "bell" / "ring", 0)
    heard = other.heard
    mine.ring()
    assert other.wait(heard, SOON)
    assert (tmp_path / "bell" / "ring").stat().st_size == 1


def test_a_directory_that_was_deleted_with_all_around_it_is_not_made_again(tmp_path: Path) -> None:
    lonely = Bell(str(tmp_path / "registry" / "bell"))
    lonely.ring()
    assert not (tmp_path / "registry").exists()
    lonely.close()


def test_a_bell_that_is_forgotten_leaves_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        Bell(str(tmp_path / "bell")).ring()
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_a_bell_that_nobody_has_any_more_leaves_nothing_open(tmp_path: Path) -> None:
    def still_open() -> list[str]:
        gc.collect()
        links = map(_target_of, os.listdir("/proc/self/fd"))
        return [link for link in links if link.startswith(str(tmp_path))]

    for number in range(5):
        dropped = Bell(str(tmp_path / f"bell-{number}"))
        dropped.listen()
        dropped.ring()
        assert still_open()
        del dropped
    # The thread that hears the ring holds the bell for a moment longer.
    wait_until(lambda: not still_open(), "nothing is left open")


def _target_of(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # closed meanwhile
        return ""


_RINGS_AT_THE_END = """
import atexit, os, sys

def late():  # registered before anything of weakref is, so it comes after that
    with open(sys.argv[1] + "/of-another", "a+b") as file:
        bell.ring()
        print(os.fstat(file.fileno()).st_size)

atexit.register(late)
from pxrs.clients.bell import Bell

bell = Bell(sys.argv[1] + "/bell")
bell.ring()
"""


def test_a_ring_at_the_end_of_the_process_touches_no_file_of_another(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RINGS_AT_THE_END, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "0\n", "")
