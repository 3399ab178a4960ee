"""Threads that wait for changes in directories, and listen for them meanwhile."""

from __future__ import annotations

import gc
import itertools
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pxrs.io.signals import Nudge
from pxrs.io.watch import inotify, listening
from pxrs.io.watch.inotify import InotifyWatcher
from pxrs.io.watch.listening import LISTENERS, ListeningNudge, listening_nudge
from pxrs.io.watch.polling import NoInotify
from pxrs.testing.servers.base import wait_until
from pxrs.testing.stores.sharing import in_forked_child

WATCHER = "pxrs-inotify"
SOON = 10.0


@pytest.fixture
def watcher() -> Iterator[InotifyWatcher]:
    """One that nobody else listens to."""
    made = InotifyWatcher()
    yield made
    made.close()


@pytest.fixture
def nudge(watcher: InotifyWatcher) -> ListeningNudge:
    return ListeningNudge(watcher)


@pytest.fixture
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no other thread of this process listened."""
    monkeypatch.setattr(listening, "_listeners", weakref.WeakSet())


class Heard:
    """Which threads were told of changes in a directory; a nudge is given to the one who waits."""

    def __init__(self, watcher: InotifyWatcher, directory: Path, nudge: Nudge) -> None:
        self.threads: list[str] = []
        self._directory = directory
        self._nudge = nudge
        self._numbers = itertools.count()
        directory.mkdir(exist_ok=True)
        watcher.watch(str(directory), self._tell)

    def _tell(self) -> None:
        self.threads.append(threading.current_thread().name)
        self._nudge.set()

    def change(self) -> None:
        """One event: of several, a second would wake the next who listens, and the two would race to hear of all."""
        (self._directory / f"{next(self._numbers)}").mkdir()


def waiting(nudge: ListeningNudge, name: str) -> threading.Thread:
    thread = threading.Thread(target=nudge.wait, args=(60.0,), name=name)
    thread.start()
    wait_until(lambda: nudge._is_asleep or not thread.is_alive(), "it waits")
    return thread


def test_who_waits_hears_of_a_change_itself(watcher: InotifyWatcher, tmp_path: Path, nudge: ListeningNudge) -> None:
    heard = Heard(watcher, tmp_path, nudge)
    for _ in range(100):
        thread = waiting(nudge, "waits")
        heard.change()
        thread.join(30)
        assert not thread.is_alive()
        if "waits" in heard.threads:  # else it was told before it came to wait, by the watcher
            break
    assert "waits" in heard.threads


def test_while_nobody_waits_the_watcher_hears(watcher: InotifyWatcher, tmp_path: Path, nudge: ListeningNudge) -> None:
    heard = Heard(watcher, tmp_path, nudge)
    heard.change()
    wait_until(lambda: bool(heard.threads), "it is told")
    assert set(heard.threads) == {WATCHER}
    assert nudge.wait(30)


def test_who_hears_of_a_change_tells_the_others(watcher: InotifyWatcher, tmp_path: Path, nudge: ListeningNudge) -> None:
    second = ListeningNudge(watcher)
    heard = Heard(watcher, tmp_path, second)
    first_thread, second_thread = waiting(nudge, "first"), waiting(second, "second")
    heard.change()
    second_thread.join(30)
    assert not second_thread.is_alive() and first_thread.is_alive()
    nudge.set()
    first_thread.join(30)


def test_it_is_a_nudge_like_any_other(nudge: ListeningNudge) -> None:
    assert not nudge.wait(0) and not nudge.wait(0.001) and not nudge.wait(-1)
    nudge.set()
    nudge.set()
    assert nudge.wait(None) and not nudge.wait(0)
    nudge.set()
    nudge.clear()
    assert not nudge.wait(0.001)
    thread = waiting(nudge, "told")
    nudge.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_wait_may_be_longer_than_the_kernel_can_count(nudge: ListeningNudge) -> None:
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(nudge.wait, 1e9)
        wait_until(lambda: nudge._is_asleep or call.done(), "it waits")
        nudge.set()
        assert call.result(30)


def test_no_nudge_is_lost_however_close_it_comes(nudge: ListeningNudge) -> None:
    rounds, taken = 3_000, Nudge()

    def take() -> int:
        count = 0
        for _ in range(rounds):
            count += nudge.wait(30)
            taken.set()
        return count

    with ThreadPoolExecutor(1) as threads:
        taking = threads.submit(take)
        for _ in range(rounds):
            nudge.set()
            assert taken.wait(30)
        assert taking.result(30) == rounds


@pytest.mark.usefixtures("nobody_else")
def test_so_many_listen_and_the_rest_is_told_as_ever(tmp_path: Path) -> None:
    made = [listening_nudge() for _ in range(LISTENERS + 1)]
    assert all(isinstance(one, ListeningNudge) for one in made[:-1]) and type(made[-1]) is Nudge
    cancel = inotify.watch_directory(str(tmp_path), made[-1].set)
    (tmp_path / "file").write_bytes(b"x")
    assert made[-1].wait(30)
    cancel()
    del made
    gc.collect()
    assert isinstance(listening_nudge(), ListeningNudge)


def test_without_inotify_it_is_an_ordinary_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise NoInotify

    monkeypatch.setattr(listening, "shared_watcher", none)
    assert type(listening_nudge()) is Nudge


def test_who_cannot_listen_leaves_the_watcher_as_it_is(watcher: InotifyWatcher, tmp_path: Path) -> None:
    closed = select.epoll()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        watcher.let_listen(closed)
    heard = Heard(watcher, tmp_path, Nudge())
    heard.change()
    wait_until(lambda: bool(heard.threads), "it is told")


@pytest.mark.usefixtures("nobody_else")
def test_a_forked_child_listens_by_itself(watcher: InotifyWatcher, tmp_path: Path, nudge: ListeningNudge) -> None:
    heard = Heard(watcher, tmp_path, nudge)
    in_use = [listening_nudge() for _ in range(LISTENERS)]
    thread = waiting(nudge, "parent")

    def child() -> bool:
        nudge.set()
        own = listening_nudge()
        inotify.watch_directory(str(tmp_path), own.set)
        (tmp_path / "of the child").write_bytes(b"x")
        return isinstance(own, ListeningNudge) and own.wait(30)

    assert in_forked_child(child) == 0
    assert len(in_use) == LISTENERS
    heard.change()
    thread.join(30)
    assert not thread.is_alive()


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


class _Meanwhile:
    """An epoll under whose eyes something changes whenever a descriptor is taken out of it."""

    def __init__(self, epoll: select.epoll, change: Callable[[], object]) -> None:
        self._epoll = epoll
        self._change = change

    def unregister(self, descriptor: int) -> None:
        self._change()
        self._epoll.unregister(descriptor)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def test_a_change_that_comes_while_a_listener_is_made_is_heard(watcher: InotifyWatcher, tmp_path: Path) -> None:
    heard, rounds = threading.Event(), iter(range(1_000))
    watcher.watch(str(tmp_path), heard.set)
    watcher._epoll = _Meanwhile(watcher._epoll, lambda: (tmp_path / f"{next(rounds)}").touch())  # type: ignore[assignment]
    for _ in range(100):
        heard.clear()
        ListeningNudge(watcher)
        assert heard.wait(SOON)


def test_the_garbage_collector_may_cancel_in_the_middle_of_the_watchers_work(
    watcher: InotifyWatcher, tmp_path: Path
) -> None:
    heard = threading.Event()
    cancels = [watcher.watch(str(tmp_path), notify) for notify in (threading.Event().set, heard.set)]
    with watcher._lock:  # as a thread that is woken has it; a collection can come at any step
        cancels[0]()
    (tmp_path / "new").touch()
    assert heard.wait(SOON)
    [listeners] = watcher._callbacks.values()
    assert len(listeners) == 1, "whoever had the lock next has forgotten it"
