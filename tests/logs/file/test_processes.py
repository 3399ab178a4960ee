"""Several processes at one file log: writers take turns, a killed one leaves no lock, a forked one is its own."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from pxrs.errors import Unavailable
from pxrs.io.watch import inotify
from pxrs.logs.base import OpenOptions, Stamp
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, read_all

pytestmark = pytest.mark.processes

BATCHES = 60


def write_many(queue: str, producer: str, start: Barrier) -> None:
    settings = Settings(segment_bytes=20_000, durability="flush")
    log = FileLog.open(f"file:{queue}", OpenOptions(2), settings, create=True)
    start.wait(60)
    for number in range(BATCHES):
        batch = entries([b"%s-%d-%d" % (producer.encode(), number, row) for row in range(3)])
        stamp = Stamp(producer, number)
        log.append({0: batch, 1: batch}, {0: stamp, 1: stamp})


def test_two_processes_append_at_once(open_file: OpenFile, queue: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    processes = [context.Process(target=write_many, args=(str(queue), name, start)) for name in ("a", "b")]
    for process in processes:
        process.start()
    start.wait(60)
    reader_saw: list[tuple[int, bytes]] = []
    reader = open_file(partitions=None, create=False)
    while any(process.is_alive() for process in processes):  # reading while others append
        reader_saw += read_all(reader, 0, len(reader_saw))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    sent = {p: [b"%s-%d-%d" % (p.encode(), n, r) for n in range(BATCHES) for r in range(3)] for p in ("a", "b")}
    for partition in range(2):
        found = read_all(open_file(partitions=None), partition)
        assert [offset for offset, _ in found] == list(range(2 * 3 * BATCHES))
        for producer, values in sent.items():
            assert [value for _, value in found if value.startswith(producer.encode())] == values
    reader_saw += read_all(reader, 0, len(reader_saw))
    assert reader_saw == read_all(open_file(partitions=None), 0)


HOLDER = """
import sys
from pxrs.logs.base import Wish
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings

log = FileLog.open("file:" + sys.argv[1], Wish(), Settings(), create=False)
with log._partition(0)[1].locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


FLOCK = """
import fcntl, sys

with open(sys.argv[1], "r+b") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_b38_a_second_writer_waits_and_kill_minus_nine_frees_the_lock(open_file: OpenFile, queue: Path) -> None:
    log = open_file()
    log.append({0: entries(numbered(1))})
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(queue)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        fd = os.open(queue / "partition-0" / "lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
        given: list[int] = []
        waiting = threading.Thread(target=lambda: given.append(log.append({0: entries(numbered(1, 1))})[0]))
        waiting.start()
        assert log.bounds(0) == (0, 1), "readers need no lock"
        os.kill(holder.pid, signal.SIGKILL)
        waiting.join(30)
    assert given == [1]


def test_b38_a_holder_that_is_stopped_is_waited_for_only_so_long(open_file: OpenFile, queue: Path) -> None:
    log = open_file(partitions=2, send_timeout_ms=50)
    log.append({0: entries(numbered(1)), 1: entries(numbered(1))})
    lock = queue / "partition-1" / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", FLOCK, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        os.kill(holder.pid, signal.SIGSTOP)
        batches, stamps = {p: entries(numbered(1, 1)) for p in (0, 1)}, {p: Stamp("p", 0) for p in (0, 1)}
        with pytest.raises(Unavailable, match=rf"partition 1: another producer holds the lock in {lock.parent}"):
            log.append(batches, stamps)
        assert log.bounds(0) == log.bounds(1) == (0, 1), "nothing was stored anywhere"
        assert open_file(partitions=2).append({0: entries([b"other"])}) == {0: 1}, "partition 0 was freed"
        os.kill(holder.pid, signal.SIGKILL)
    assert log.append(batches, stamps) == {0: 2, 1: 1}


def test_b38_a_thread_waits_for_another_only_so_long(open_file: OpenFile) -> None:
    log = open_file(send_timeout_ms=50)
    with (
        log._partition(0)[1].locked(),
        ThreadPoolExecutor(1) as pool,
        pytest.raises(Unavailable, match="partition 0: another thread of this process holds the lock"),
    ):
        pool.submit(log.append, {0: entries(numbered(1))}).result()
    assert log.append({0: entries(numbered(1))}) == {0: 0}


def open_and_tell(queue: str, start: Barrier, told: SimpleQueue[str]) -> None:
    start.wait(60)
    told.put(FileLog.open(f"file:{queue}", OpenOptions(2), Settings(), create=True).identity.id)


def test_processes_that_create_at_once_agree_on_one_id(open_file: OpenFile, queue: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(3), context.SimpleQueue()
    processes = [context.Process(target=open_and_tell, args=(str(queue), start, told)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert {told.get() for _ in processes} == {open_file(partitions=None, create=False).identity.id}


def in_child(work: object) -> None:
    """Fork, run the work in the child, and check that it ended well."""
    pid = os.fork()
    if pid == 0:
        try:
            assert callable(work)
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_works_with_its_own_descriptors(open_file: OpenFile) -> None:
    log = open_file(partitions=2)
    log.append({0: entries(numbered(2)), 1: entries(numbered(2))})
    heard = threading.Event()
    log.subscribe(0, heard.set)

    def child() -> None:
        woken = threading.Event()
        log.subscribe(0, woken.set)
        batches = {partition: entries(numbered(2, 2)) for partition in range(2)}
        assert log.append(batches) == {0: 2, 1: 2}
        assert woken.wait(10)
        assert read_all(log, 1) == list(enumerate(numbered(4)))

    in_child(child)
    assert heard.wait(10)
    assert log.append({0: entries(numbered(1, 4))}) == {0: 4}
    assert read_all(log, 0) == list(enumerate(numbered(5)))


def test_a_child_forked_while_a_thread_appends_neither_hangs_nor_keeps_the_lock(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is held in its sync, with the lock in its hands. (Inside Arrow a fork is not safe, whoever forks.)"""
    log, sync = open_file(), os.fdatasync
    inside, go_on = threading.Event(), threading.Event()

    def held(fd: int) -> None:
        inside.set()
        assert go_on.wait(30)
        sync(fd)

    def child() -> None:
        os.fdatasync = sync
        log.append({0: entries([b"child"])})

    for _ in range(5):
        monkeypatch.setattr(os, "fdatasync", held)
        writer = threading.Thread(target=log.append, args=({0: entries(numbered(1))},))
        writer.start()
        assert inside.wait(30)
        threading.Timer(0.05, go_on.set).start()  # the child is waiting for the lock by then, or takes it at once
        in_child(child)
        writer.join()
        inside.clear()
        go_on.clear()
    found = Counter(value for _, value in read_all(log, 0))
    assert found[b"child"] == 5 and found[b"value-0"] == 5


IDLE = """
import sys, threading
from pxrs.io.watch import inotify
from pxrs.logs.base import Wish
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings

log = FileLog.open("file:" + sys.argv[1], Wish(), Settings(), create=False)
woken = threading.Semaphore(0)
for partition in range(8):
    log.subscribe(partition, woken.release)
    log.read(partition, 0)
for line in sys.stdin:
    if line == "wait\\n":
        assert woken.acquire(timeout=30)
    print(inotify.wakeups(), flush=True)
"""


def test_an_idle_subscription_never_wakes(open_file: OpenFile, queue: Path) -> None:
    log = open_file(partitions=8)
    with subprocess.Popen(
        [sys.executable, "-c", IDLE, str(queue)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None

        def ask(line: str) -> int:
            assert child.stdin is not None and child.stdout is not None
            print(line, file=child.stdin, flush=True)
            return int(child.stdout.readline())

        assert ask("look") == 0
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:  # reading beside it must not wake it either
            read_all(open_file(partitions=None), 3)
        assert ask("look") == 0
        log.append({3: entries(numbered(1))})
        assert ask("wait") > 0
        child.stdin.close()


def test_one_process_watches_with_one_instance(open_file: OpenFile) -> None:
    log = open_file(partitions=4)
    before = len(os.listdir("/proc/self/fd"))
    cancels = [log.subscribe(partition % 4, lambda: None) for partition in range(40)]
    assert len(os.listdir("/proc/self/fd")) - before <= 5  # the instance and how its thread hears it, if they are new
    for cancel in cancels:
        cancel()
    assert inotify.wakeups() >= 0
