"""The end of a program: nothing that was sent is lost silently, nothing is closed under a thread, signals are heard."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.errors import Closed, Unavailable
from pxrs.io import process_exit as exits
from pxrs.io.clock import SystemClock
from pxrs.io.process_exit import Act, Stage
from pxrs.logs.file.log import FileLog
from pxrs.runtime.batches.held_partitions import HeldPartitions
from pxrs.runtime.failures import log_outage as sight
from pxrs.runtime.failures.log_outage import LogReachability
from pxrs.runtime.producer.buffer import AppendThread
from pxrs.runtime.registry.registry import CommitRequest
from pxrs.settings import Settings
from pxrs.stores.sqlite import connections as sqlite
from pxrs.stores.sqlite.connections import ThreadConnections
from pxrs.testing.stores.hooks import Background
from pxrs.testing.stores.sharing import in_forked_child
from tests.runtime.support import DEADLINE, eventually

SEND = """
import os, sys, pxrs
queue = pxrs.open(f"file:{sys.argv[1]}/q", partitions=8)
producer = queue.producer()
receipts = [producer.send(f"k{n}", b"x") for n in range(1000)]
"""


def program(text: str, place: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    quiet = ["-W", "ignore::DeprecationWarning"]  # of Python 3.12, about forks of a process with threads
    command = [sys.executable, *quiet, "-X", "faulthandler", "-c", textwrap.dedent(text), str(place)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def stored(place: Path) -> int:
    with pxrs.open(f"file:{place}/q", create=False) as queue:
        return sum(queue.ends().values())


# ---- what was sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("last", "code"), [("del producer, receipts", 0), ("raise ValueError", 1)])
def test_what_a_producer_that_was_not_closed_has_sent_is_stored(tmp_path: Path, last: str, code: int) -> None:
    ended = program(SEND + last, tmp_path)
    assert (ended.returncode, stored(tmp_path)) == (code, 1000)
    assert "pxrs:" not in ended.stderr


def test_a_first_batch_that_is_made_while_python_ends_is_stored(tmp_path: Path) -> None:
    """Arrow imports modules at its first use, some of which refuse to be imported so late."""
    first = """
    import sys, pxrs
    queue = pxrs.open("memory:", partitions=2, settings=pxrs.Settings(linger_ms=5_000))
    producer = queue.producer()
    for n in range(5):
        producer.send(f"k{n}", b"x")
    """
    ended = program(first, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_messages_that_cannot_be_stored_at_the_end_are_one_line_with_their_count(tmp_path: Path) -> None:
    full = """
    from pxrs.errors import Damaged
    from pxrs.logs.file.log import FileLog
    def refuse(*_): raise Damaged("a part of the log is gone")
    FileLog._store = refuse
    """
    ended = program(textwrap.dedent(full) + SEND, tmp_path)
    said = [line for line in ended.stderr.splitlines() if line.startswith("pxrs:")]
    assert said == ["pxrs: 1000 messages for queue 'q' could not be stored: a part of the log is gone"]


def test_a_log_that_never_answers_holds_the_end_no_longer_than_send_timeout_ms(tmp_path: Path) -> None:
    mute = """
    import threading
    from pxrs.logs.file.log import FileLog
    FileLog._store = lambda *_: threading.Event().wait()
    """
    ended = program(textwrap.dedent(mute) + SEND, tmp_path, env={**os.environ, "PXRS_SEND_TIMEOUT_MS": "100"})
    assert "pxrs: 1000 messages for queue 'q' may not be stored" in ended.stderr


WORKER = """
import multiprocessing, sys
method, when = sys.argv[2:4]
if when == "before":
    import pxrs.runtime.queue.queue

def send():
    import pxrs
    queue = pxrs.open(f"file:{sys.argv[1]}/q", partitions=8)
    producer = queue.producer()
    for n in range(100):
        producer.send(f"k{n}", b"x")

if __name__ == "__main__":
    process = multiprocessing.get_context(method).Process(target=send)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("when", ["before", "inside"])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_was_sent_in_a_process_of_multiprocessing_is_stored(tmp_path: Path, method: str, when: str) -> None:
    """Forked ones end by os._exit: 100 sends, none stored, exit code 0. ``when``: the library was imported before the
    fork, or by the function that runs in the child."""
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, str(tmp_path / "worker.py"), str(tmp_path), method, when]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr, stored(tmp_path)) == (0, "", 100)


def test_a_forked_child_leaves_the_buffer_to_its_parent(tmp_path: Path) -> None:
    fork = """
    child = os.fork()
    if child == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(sum(queue.ends().values()))
    """
    slow = {**os.environ, "PXRS_LINGER_MS": "60000"}
    ended = program(SEND + textwrap.dedent(fork), tmp_path, env=slow)
    assert (ended.stdout, ended.stderr, stored(tmp_path)) == ("0\n", "", 1000)


def test_a_dropped_producer_whose_messages_are_lost_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def refuse(*_: Any) -> None:
        asked.set()
        answer.wait(DEADLINE)
        raise Unavailable("no space left")

    monkeypatch.setattr(FileLog, "_store", refuse)
    said = "1 message for queue 'q' could not be stored: no space left"
    with pxrs.open(f"file:{tmp_path}/q", settings=Settings(send_timeout_ms=1)) as queue, caplog.at_level(logging.ERROR):
        queue.producer().send("k", b"x")
        assert asked.wait(DEADLINE)
        answer.set()
        eventually(lambda: said in caplog.text, "the loss is told")


def test_a_log_is_synced_also_when_python_gives_no_more_threads(tmp_path: Path) -> None:
    with pxrs.open(f"file:{tmp_path}/q", partitions=2) as queue, queue.producer() as producer:
        assert isinstance(queue.log, FileLog)
        queue.log._threads().shutdown()  # as Python does it before the end
        for number in range(20):
            producer.send(f"k{number}", b"x")
        producer.flush()
        assert sum(queue.ends().values()) == 20 and all(queue.ends().values())


def test_a_relay_does_the_work_itself_when_python_gives_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    relay = AppendThread(done.append, "test")
    for number in range(3):
        relay.start(number)
        relay.wait()
    assert done == [0, 1, 2]


# ---- threads and connections -----------------------------------------------------------------------------------------


def test_everything_ends_in_one_order_and_what_fails_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "_acts", [])
    order: list[Stage] = []

    def ending(stage: Stage) -> Act:
        """What ends a thread, which writes down when it did."""
        told = threading.Event()

        def end() -> None:
            told.wait(DEADLINE)
            order.append(stage)

        thread = threading.Thread(target=end, daemon=True)
        thread.start()

        def act() -> list[threading.Thread]:
            told.set()
            return [thread]

        return act

    def fail() -> list[threading.Thread]:
        raise ValueError

    for stage in reversed(Stage):
        exits.at_exit(stage)(fail)
        exits.at_exit(stage)(ending(stage))
    monkeypatch.setattr(exits, "JOIN_SECONDS", DEADLINE)
    exits.end_all()
    assert order == list(Stage)


def test_a_commit_that_is_handed_in_while_the_process_ends_is_answered(tmp_path: Path) -> None:
    """The loop of the member had ended, and the thread of the batch waited for it until the interpreter was gone."""
    with pxrs.open(f"file:{tmp_path}/q", partitions=1) as queue:
        life = queue.join("g", HeldPartitions(queue.settings, SystemClock()), "A", {}, queue.settings, lambda *_: None)
        life.start()
        life.end_with_process()
        with pytest.raises(Closed):
            life.submit(CommitRequest({})).result(DEADLINE)


def test_a_forked_child_ends_nothing_of_its_parent_and_waits_for_none_of_its_locks(tmp_path: Path) -> None:
    """A thread of the parent woke its member at the moment of the fork; the child waited for that lock at its end."""
    with pxrs.open(f"file:{tmp_path}/q", partitions=1) as queue:
        life = queue.join("g", HeldPartitions(queue.settings, SystemClock()), "A", {}, queue.settings, lambda *_: None)
        life.start()
        held, free = threading.Event(), threading.Event()

        def has_ended() -> bool:
            exits.end_all()
            return True

        def wake() -> None:
            with life._loop._wake_event._cond:  # type: ignore[attr-defined]
                held.set()
                free.wait(DEADLINE)

        waking = threading.Thread(target=wake)
        waking.start()
        try:
            assert held.wait(DEADLINE)
            assert in_forked_child(has_ended, DEADLINE) == 0
        finally:
            free.set()
            waking.join()
        life.stop()


WATCH = """
import atexit, threading

def last():  # registered first, so it comes last
    if INSIDE.is_set():
        GO_ON.set()
        watch.join(30)
    print(sorted(t.name for t in threading.enumerate() if t.name.startswith("pxrs-")))

atexit.register(last)
import sqlite3, sys, pxrs
from pxrs.io import process_exit as exits
from pxrs.stores.sqlite import connections as sqlite

HOLD, INSIDE, GO_ON = threading.Event(), threading.Event(), threading.Event()
connect, sqlite.PATIENCE_SECONDS, exits.JOIN_SECONDS = sqlite._connect, 0.1, 2.0

def held(statement):
    if HOLD.is_set() and threading.current_thread().name.endswith("-watch"):
        INSIDE.set()
        GO_ON.wait(30)

def traced(path, mode):
    connection = connect(path, mode)
    connection.set_trace_callback(held)
    return connection

sqlite._connect = traced
queue = pxrs.open(f"file:{sys.argv[1]}/q", partitions=2)
consumer = queue.consumer("g", print).start()
[watch] = [t for t in threading.enumerate() if t.name.endswith("-watch")]
HOLD.set()
queue.group("g").registry.wake.wake_all()
assert INSIDE.wait(30)
"""


def test_no_connection_is_closed_while_the_watch_thread_is_inside_of_it(tmp_path: Path) -> None:
    """The finalizer of the connection ran under the thread, which then crashed the process."""
    ended = program(WATCH, tmp_path)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "[]", "")


def test_the_last_thread_inside_closes_what_could_not_be_closed_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE_SECONDS", 0.05)
    connections = ThreadConnections(f"{tmp_path}/db", lambda: None)
    inside, go_on = threading.Event(), threading.Event()

    def slowly(connection: Any) -> int:
        inside.set()
        go_on.wait(DEADLINE)
        [(found,)] = connection.execute("SELECT 1")
        return int(found)

    call = Background(connections.call, slowly, True)
    assert inside.wait(DEADLINE)
    connections.close()
    assert connections.count() == 1
    with pytest.raises(Closed):
        connections.call(slowly)
    go_on.set()
    assert call.result(DEADLINE, "the call") == 1
    assert connections.count() == 0


REST = """
import atexit, threading, sys

def last():  # registered first, so it comes last
    print(sorted(t.name for t in threading.enumerate() if t.name.startswith("pxrs-")))

atexit.register(last)
import pxrs
queue = pxrs.open(log=sys.argv[1] and LOG, registry=REGISTRY, partitions=4)
handled = threading.Event()
consumer = queue.consumer("g", lambda message: handled.set()).start()
producer = queue.producer()
producer.send("k", b"x").result()
assert handled.wait(30)
"""


@pytest.mark.parametrize(("log", "registry"), [("file", "sqlite"), ("file", "lockfiles"), ("memory", "memory")])
def test_no_thread_is_left_when_python_begins_to_end(tmp_path: Path, log: str, registry: str) -> None:
    places = {"file": f"file:{tmp_path}/q", "sqlite": f"sqlite:{tmp_path}/r.db", "lockfiles": f"lockfiles:{tmp_path}/r"}
    text = REST.replace("LOG", repr(places.get(log, "memory:")))
    ended = program(text.replace("REGISTRY", repr(places.get(registry, "memory:"))), tmp_path)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "[]", "")


def test_a_member_that_cannot_read_its_log_looks_no_more_when_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def away(*_: Any) -> None:
        asked.set()
        raise Unavailable("the log is away")

    with pxrs.open(f"file:{tmp_path}/q", partitions=1) as queue:
        monkeypatch.setattr(queue.log, "bounds", away)
        looking = LogReachability(queue.log, queue._clock, Settings())
        looking.failed()
        assert asked.wait(DEADLINE)
        [thread] = [thread for thread in sight._end_threads() if thread.is_alive()]
        thread.join(DEADLINE)
        assert not thread.is_alive()


# ---- signals ---------------------------------------------------------------------------------------------------------

RUN = """
import signal, sys, threading, time, pxrs
queue = pxrs.open(f"file:{sys.argv[1]}/q", partitions=2)

def tell(message):
    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # until it runs
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # not in the main thread, which waits

with queue.producer() as producer:
    producer.send("k", b"x")
"""


@pytest.mark.parametrize("run", ['queue.consumer("g", tell).run()', "queue.subscribe({0: 0, 1: 0}, tell).run()"])
def test_a_signal_that_the_kernel_gave_to_another_thread_is_handled(tmp_path: Path, run: str) -> None:
    ended = program(RUN + run + '\nprint("left")', tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "left\n")


def test_a_stopped_process_with_a_sigterm_leaves_when_it_goes_on(tmp_path: Path) -> None:
    text = """
    import sys, pxrs
    queue = pxrs.open(f"file:{sys.argv[1]}/q", partitions=8)
    queue.consumer("g", print, assigned=lambda *_: print("up", flush=True)).run()
    """
    command = [sys.executable, "-c", textwrap.dedent(text), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(number)
        assert process.wait(DEADLINE) == 0
