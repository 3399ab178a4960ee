"""The bells between processes of one machine."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from pxrs.errors import Unavailable
from pxrs.io.watch import file_bell as module
from pxrs.io.watch import inotify
from pxrs.io.watch.file_bell import Bell, Bells, paths_of
from pxrs.testing.servers.base import wait_until
from pxrs.testing.stores.hooks import Background

SOON = 10.0
KEY = "/pxrs/q/g/bell/A"
PREFIX = "/pxrs/q/g/bell/"


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[tuple[Bells, Bells]]:
    """Of two processes: they share the directory, and nothing else."""
    pair = Bells(str(tmp_path / "bell")), Bells(str(tmp_path / "bell"))
    yield pair
    for one in pair:
        one.close()


def file_of(prefix: str, place: Path) -> Path:
    return Path(paths_of(str(place / "bell"), prefix)[-1])


@pytest.mark.parametrize("prefix", ["", "/", "/px", "/pxrs/", "/pxrs/q/g/", PREFIX, KEY])
def test_a_ring_wakes_waiters_for_every_beginning_of_the_key(bells: tuple[Bells, Bells], prefix: str) -> None:
    mine, other = bells
    bell = other.listening(prefix)
    for _ in range(3):
        heard = bell.heard
        mine.ring([KEY])
        assert bell.wait(heard, SOON)


def test_other_keys_wake_nobody(bells: tuple[Bells, Bells]) -> None:
    mine, other = bells
    asked, unasked = other.listening(PREFIX), other.listening("/pxrs/q/other/bell/")
    heard = unasked.heard
    before = asked.heard
    mine.ring(["/pxrs/q/g/member/A", "/pxrs/q/g/partition/00003", "/pxrs/q/g/group", "/pxrs/q/g2/bell/A"])
    mine.ring([KEY])  # comes after those, by the same way
    assert asked.wait(before, SOON)
    assert unasked.heard == heard
    assert asked.heard == before + 1


def test_where_nobody_waits_a_ring_makes_and_reads_no_file(bells: tuple[Bells, Bells], tmp_path: Path) -> None:
    mine, other = bells
    mine.ring([KEY])
    assert not (tmp_path / "bell").exists()
    other.listening(PREFIX)
    before = sorted(os.listdir(tmp_path / "bell"))
    mine.ring(["/pxrs/q/g/partition/00003"])
    assert sorted(os.listdir(tmp_path / "bell")) == before


def test_a_ring_changes_no_file_so_that_no_sync_has_to_carry_it(bells: tuple[Bells, Bells], tmp_path: Path) -> None:
    mine, other = bells
    other.listening(PREFIX)
    before = file_of(PREFIX, tmp_path).stat()
    mine.ring([KEY])
    after = file_of(PREFIX, tmp_path).stat()
    assert (after.st_mtime_ns, after.st_ctime_ns, after.st_size) == (before.st_mtime_ns, before.st_ctime_ns, 1)


def test_a_deleted_bell_wakes_its_waiters_and_works_again_from_the_next_wait_on(
    bells: tuple[Bells, Bells], tmp_path: Path
) -> None:
    mine, other = bells
    bell = other.listening(PREFIX)
    heard = bell.heard
    shutil.rmtree(tmp_path / "bell")
    assert bell.wait(heard, SOON)
    bell = other.listening(PREFIX)
    heard = bell.heard
    mine.ring([KEY])
    assert bell.wait(heard, SOON)


def test_a_listener_that_goes_on_asks_for_no_second_watch(
    bells: tuple[Bells, Bells], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _ = bells
    bell = mine.listening(PREFIX)
    monkeypatch.delattr(module, "watch_files")
    assert mine.listening(PREFIX) is bell


def test_all_waiters_of_the_ringing_process_are_woken(tmp_path: Path) -> None:
    mine = Bells(str(tmp_path / "bell"))
    bell = mine.listening(PREFIX)
    waiting = [Background(bell.wait, bell.heard, SOON) for _ in range(3)]
    while len(getattr(bell._rung, "_waiters")) < len(waiting):  # noqa: B009 - a detail of the standard library
        time.sleep(0.001)
    mine.ring([KEY])
    assert [call.result(SOON / 2, "a wait") for call in waiting] == [True] * 3
    mine.close()


def test_a_death_wakes_all_waiters_here_and_in_no_other_process(bells: tuple[Bells, Bells]) -> None:
    mine, other = bells
    own, theirs = mine.listening(PREFIX), other.listening(PREFIX)
    before, heard = theirs.heard, own.heard
    mine.ring_here()
    assert own.heard == heard + 1
    mine.ring([KEY])
    assert theirs.wait(before, SOON)
    assert theirs.heard == before + 1


def test_all_are_woken_where_nobody_knows_what_has_changed(bells: tuple[Bells, Bells]) -> None:
    mine, other = bells
    listening = [other.listening(prefix) for prefix in (PREFIX, "/elsewhere/")]
    heard = [bell.heard for bell in listening]
    mine.ring_all()
    for bell, before in zip(listening, heard, strict=True):
        assert bell.wait(before, SOON)


def test_closed_bells_do_not_ring_and_nobody_waits_for_them(bells: tuple[Bells, Bells]) -> None:
    mine, other = bells
    theirs = other.listening(PREFIX)
    heard = theirs.heard
    mine.close()
    mine.ring([KEY])
    assert not mine.listening(PREFIX).wait(0, SOON)
    assert theirs.heard == heard


def test_an_empty_bell_file_is_filled_by_its_listener(bells: tuple[Bells, Bells], tmp_path: Path) -> None:
    mine, other = bells
    (tmp_path / "bell").mkdir()
    file_of(PREFIX, tmp_path).touch()
    bell = other.listening(PREFIX)
    heard = bell.heard
    mine.ring([KEY])
    assert bell.wait(heard, SOON)


def test_a_bell_that_nobody_has_any_more_is_not_watched_any_more(tmp_path: Path) -> None:
    watcher = inotify._process.inotify()
    before = len(watcher._subscribers)
    for number in range(5):
        dropped = Bells(str(tmp_path / f"bell-{number}"))
        dropped.listening(PREFIX)
        dropped.ring([KEY])
        assert len(watcher._subscribers) > before
        del dropped
        gc.collect()
        # The thread that hears the ring holds the bell for a moment longer.
        wait_until(lambda: len(watcher._subscribers) == before, "nothing is watched any more")


def test_however_many_groups_come_there_is_a_bounded_number_of_files(tmp_path: Path) -> None:
    names = {Path(paths_of(str(tmp_path), f"/pxrs/q/g{number}/bell/")[-1]).name for number in range(200)}
    assert all(len(name) == 4 and int(name, 16) <= 0xFFFF for name in names)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    lonely = Bells(str(tmp_path / "registry" / "bell"))
    lonely.ring([KEY])
    with pytest.raises(Unavailable, match=r"registry.bell"):
        lonely.listening(PREFIX)
    assert not (tmp_path / "registry").exists()


def test_a_bell_in_a_forked_child_leaves_the_watch_of_its_parent_alone(tmp_path: Path) -> None:
    mine, other = Bells(str(tmp_path / "bell")), Bells(str(tmp_path / "bell"))
    bell = mine.listening(PREFIX)
    cancelled = list[object]()
    child = Bell(bell.path)
    child._deafen = weakref.finalize(child, cancelled.append, "gone")
    child.leave_to_parent()
    del child
    gc.collect()
    assert not cancelled
    heard = bell.heard
    other.ring([KEY])
    assert bell.wait(heard, SOON)
    mine.close()


_OLD_WHEEL = Path(__file__).parents[1] / "data" / "pxrs-0.5.1-py3-none-any.whl"
_OF_0_5_1 = """
import sys

sys.path.insert(0, sys.argv[1])
from pxrs.clients.bell import Bell

bell = Bell(sys.argv[2])
bell.listen()
heard = bell.heard
print("listens", flush=True)
print("heard" if bell.wait(heard, 60) else "nothing", flush=True)
bell.ring()
"""


def test_a_process_of_0_5_1_wakes_this_one_and_is_woken(bells: tuple[Bells, Bells], tmp_path: Path) -> None:
    mine, other = bells
    mine.listening(PREFIX)
    stranger = other.listening("/elsewhere/")  # hears what is rung for everything, and nothing of this group
    heard = stranger.heard
    command = [sys.executable, "-c", _OF_0_5_1, str(_OLD_WHEEL), str(tmp_path / "bell")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as old:
        assert old.stdout is not None
        assert old.stdout.readline() == "listens\n"
        mine.ring([KEY])
        assert old.stdout.readline() == "heard\n"
        assert stranger.wait(heard, SOON)
        assert old.wait(60) == 0
