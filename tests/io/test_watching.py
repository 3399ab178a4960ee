"""Being told of changes in a directory, by the kernel or by looking."""

from __future__ import annotations

import ctypes
import errno
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.errors import NotFound
from pxrs.io.watch import inotify
from pxrs.io.watch.inotify import PollingWatcher
from pxrs.testing.servers.base import wait_until
from pxrs.testing.stores.sharing import in_forked_child

Watch = Callable[[str, Callable[[], None]], Callable[[], None]]


def changes(directory: Path) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: (directory / "a").write_bytes(b"1"),
        "modify": lambda: (directory / "a").write_bytes(b"22"),
        "rename": lambda: (directory / "a").rename(directory / "b"),
        "delete": lambda: (directory / "b").unlink(),
    }


@pytest.mark.parametrize("watch", [inotify.watch_directory, PollingWatcher(0.001).watch])
def test_every_kind_of_change_is_reported(tmp_path: Path, watch: Watch) -> None:
    heard = threading.Event()
    cancel = watch(str(tmp_path), heard.set)
    for kind, change in changes(tmp_path).items():
        heard.clear()
        change()
        assert heard.wait(10), kind
    cancel()


def test_a_watch_of_one_entry_reports_its_modifications_and_all_other_kinds_of_change(tmp_path: Path) -> None:
    for name in ("lock", "segment"):
        (tmp_path / name).write_bytes(b"0")
    all_heard, heard = threading.Event(), threading.Event()
    cancels = [
        inotify.watch_directory(str(tmp_path), all_heard.set),
        inotify.watch_directory(str(tmp_path), heard.set, only="lock"),
    ]
    (tmp_path / "segment").write_bytes(b"1")
    assert all_heard.wait(10)
    all_heard.clear()
    (tmp_path / "segment").write_bytes(b"2")  # once this is told, what came of the one before it has been told as well
    assert all_heard.wait(10)
    assert not heard.is_set()
    (tmp_path / "lock").write_bytes(b"1")
    assert heard.wait(10)
    heard.clear()
    (tmp_path / "segment").unlink()
    assert heard.wait(10)
    for cancel in cancels:
        cancel()


def heard_after(heard: threading.Event, change: Callable[[], object]) -> bool:
    heard.clear()
    change()
    return heard.wait(10)


@pytest.mark.parametrize("there_before", [True, False])
def test_where_one_entry_matters_nobody_is_woken_for_the_others(tmp_path: Path, there_before: bool) -> None:
    watcher, heard, calls = inotify.InotifyWatcher(), threading.Event(), list[int]()
    lock, segment = tmp_path / "lock", tmp_path / "segment"

    def notify() -> None:
        calls.append(1)
        heard.set()

    segment.write_bytes(b"0")
    if there_before:
        lock.write_bytes(b"0")
    watcher.watch(str(tmp_path), notify, only="lock")
    assert heard_after(heard, lambda: lock.write_bytes(b"1"))
    assert heard_after(heard, lambda: (tmp_path / "new").mkdir())  # what came before it has been told as well
    before = len(calls)
    for _ in range(100):
        segment.write_bytes(b"1")
    assert heard_after(heard, lambda: lock.write_bytes(b"2"))
    assert len(calls) <= before + 10, "it was told of the segment"
    watcher.close()


def test_a_replaced_entry_is_still_watched(tmp_path: Path) -> None:
    watcher, heard, everything = inotify.InotifyWatcher(), threading.Event(), threading.Event()
    lock = tmp_path / "lock"
    lock.write_bytes(b"0")
    cancels = [watcher.watch(str(tmp_path), heard.set, only="lock"), watcher.watch(str(tmp_path), everything.set)]
    cancels.pop()()
    for number in range(3):
        assert heard_after(heard, lock.unlink)
        assert heard_after(heard, lambda: lock.write_bytes(b"new"))
        assert heard_after(heard, (tmp_path / f"{number}").mkdir)
        assert heard_after(heard, lambda: lock.write_bytes(b"newer")), "a new file of the same name is not heard"
        (tmp_path / "aside").write_bytes(b"aside")
        assert heard_after(heard, lambda: (tmp_path / "aside").rename(lock))
        assert heard_after(heard, (tmp_path / f"{number} more").mkdir)
        assert heard_after(heard, lambda: lock.write_bytes(b"newest")), "what was renamed to that name is not heard"
        lock.rename(tmp_path / f"{number} old")  # which lives on
        assert heard_after(heard, lambda: lock.write_bytes(b"beside the old one"))
        assert heard_after(heard, (tmp_path / f"{number} again").mkdir)
        assert heard_after(heard, lambda: lock.write_bytes(b"and again")), "the new one beside the old is not heard"
    cancels.pop()()
    wait_until(lambda: not watcher._subscribers, "it is forgotten")
    watcher.close()


def test_a_directory_that_has_taken_the_place_of_another_is_left_alone(tmp_path: Path) -> None:
    watcher, first, second = inotify.InotifyWatcher(), threading.Event(), threading.Event()
    place, moved = tmp_path / "place", tmp_path / "moved"
    place.mkdir()
    watcher.watch(str(place), first.set, only="lock")
    place.rename(moved)
    place.mkdir()
    watcher.watch(str(place), second.set)
    assert heard_after(first, (moved / "entry").mkdir)
    assert heard_after(second, (place / "entry").mkdir), "whoever watches the new directory hears nothing"
    assert heard_after(second, lambda: (place / "file").write_bytes(b"x"))
    assert heard_after(second, lambda: (place / "file").write_bytes(b"y"))
    watcher.close()


def test_a_forked_child_watches_by_itself(tmp_path: Path) -> None:
    heard = threading.Event()
    cancel = inotify.watch_directory(str(tmp_path), heard.set)

    def child() -> bool:
        own = threading.Event()
        inotify.watch_directory(str(tmp_path), own.set)
        (tmp_path / "of the child").write_bytes(b"x")
        return own.wait(30)

    assert in_forked_child(child) == 0
    assert heard.wait(10)
    assert heard_after(heard, (tmp_path / "of the parent").mkdir)
    cancel()


_ENDS = """
import sys, time, pxrs
queue = pxrs.open(f"file:{sys.argv[1]}", registry="memory:", partitions=4)
consumer = queue.consumer(group="g", handler=print, member="A")
consumer.start()
while consumer.state != "live":
    time.sleep(0.01)
"""


def test_a_program_may_end_while_its_consumer_waits(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDS, str(tmp_path / "queue")], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_garbage_collector_may_cancel_in_the_middle_of_the_watchers_work(tmp_path: Path) -> None:
    watcher, heard = inotify.InotifyWatcher(), threading.Event()
    cancels = [watcher.watch(str(tmp_path), notify) for notify in (threading.Event().set, heard.set)]
    with watcher._lock:  # as a thread that is woken has it; a collection can come at any step
        cancels[0]()
    (tmp_path / "new").touch()
    assert heard.wait(10)
    [subscribers] = watcher._subscribers.values()
    assert len(subscribers) == 1, "whoever had the lock next has forgotten it"
    watcher.close()


def test_others_go_on_when_one_cancels_or_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard, cancelled = threading.Event(), threading.Event()

    def fail() -> None:
        raise RuntimeError("on purpose")

    cancel_failing = inotify.watch_directory(str(tmp_path), fail)
    cancel_twin = inotify.watch_directory(str(tmp_path), cancelled.set)
    cancel = inotify.watch_directory(str(tmp_path), heard.set)
    cancel_twin()
    cancel_twin()
    with caplog.at_level(logging.ERROR):
        (tmp_path / "x").touch()
        assert heard.wait(10)
    assert "the others go on" in caplog.text
    assert not cancelled.is_set()
    cancel_failing()
    cancel()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    for watch in (inotify.watch_directory, PollingWatcher().watch):
        with pytest.raises(NotFound, match="nowhere"):
            watch(str(tmp_path / "nowhere"), lambda: None)


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_without_inotify_or_a_free_watch_it_polls_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    class Limited:
        """libc whose limit of inotify instances or watches is reached."""

        def __init__(self, *_: object, **__: object) -> None:
            self._real = real(None, use_errno=True)

        def __getattr__(self, name: str) -> object:
            if name != call:
                return getattr(self._real, name)

            def refuse(*_: object) -> int:
                ctypes.set_errno(errno.ENOSPC)
                return -1

            return refuse

    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", Limited)
    monkeypatch.setattr(inotify, "_process", inotify._ProcessWatches())
    heard = threading.Event()
    with caplog.at_level(logging.WARNING):
        cancel = inotify.watch_directory(str(tmp_path), heard.set)
    assert "by polling every 20 ms" in caplog.text
    (tmp_path / "x").touch()
    assert heard.wait(10)
    cancel()
    if inotify._process.watcher is not None:
        inotify._process.watcher.close()


def test_a_watch_of_a_file_reports_reads_of_it_and_of_no_other(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).write_bytes(b"!")
    heard, other_heard = threading.Event(), threading.Event()
    cancel = inotify.watch_files([str(tmp_path / "mine")], heard.set)
    cancel_other = inotify.watch_files([str(tmp_path / "other")], other_heard.set)
    assert (tmp_path / "other").read_bytes() == b"!"
    assert other_heard.wait(10)
    assert not heard.is_set()
    assert (tmp_path / "mine").read_bytes() == b"!"
    assert heard.wait(10)
    cancel()
    cancel_other()


def test_a_watch_of_a_file_reports_its_deletion(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"!")
    heard = threading.Event()
    cancel = inotify.watch_files([str(tmp_path / "mine")], heard.set)
    (tmp_path / "mine").unlink()
    assert heard.wait(10)
    cancel()


def test_a_file_that_is_missing_leaves_no_watch_behind(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"!")
    watcher = inotify._process.inotify()
    before = len(watcher._subscribers)
    with pytest.raises(NotFound):
        inotify.watch_files([str(tmp_path / "there"), str(tmp_path / "missing")], lambda: None)
    assert len(watcher._subscribers) == before


def test_reads_cannot_be_seen_by_looking_so_that_one_might_be_at_any_time(tmp_path: Path) -> None:
    heard = threading.Event()
    cancel = PollingWatcher(0.001).watch_files([str(tmp_path / "x")], heard.set)
    assert heard.wait(10)
    cancel()
