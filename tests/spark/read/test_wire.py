"""The connection between a Python worker and its JVM."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest

from pxrs.spark import spark_internals as wire
from pxrs.spark.read import task as reading
from pxrs.spark.read.plan import Plan
from pxrs.spark.read.source import PlannedReader
from pxrs.spark.read.task import ReadSpec, TaskReader

_READING = ReadSpec("orders", ("key",), pa.schema([("key", pa.binary())]))


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection by TCP."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as ends:
        mine = ends.enter_context(socket.create_connection(server.getsockname()))
        yield mine, ends.enter_context(server.accept()[0])


def is_hastened(end: socket.socket) -> bool:
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_what_is_ready_is_sent_without_waiting(connected: tuple[socket.socket, socket.socket]) -> None:
    assert not any(map(is_hastened, connected))
    wire.do_not_wait()
    assert all(map(is_hastened, connected))


def test_what_came_in_is_acknowledged_at_once(connected: tuple[socket.socket, socket.socket]) -> None:
    for end in connected:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
    wire.do_not_wait()
    assert all(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for end in connected)


def test_a_connection_works_as_before(connected: tuple[socket.socket, socket.socket]) -> None:
    mine, other = connected
    wire.do_not_wait()
    mine.sendall(b"task")
    assert other.recv(10) == b"task"


def test_other_files_are_left_as_they_are_and_none_stays_open() -> None:
    pipe, pair = os.pipe(), socket.socketpair()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        wire.do_not_wait()
    assert len(os.listdir("/proc/self/fd")) < before + 50  # other threads of this process open and close files too
    pair[0].sendall(b"x")
    assert pair[1].recv(1) == b"x"
    for one in pair:
        one.close()
    for descriptor in pipe:
        os.close(descriptor)


def test_spark_as_it_is_waits(monkeypatch: pytest.MonkeyPatch, connected: tuple[socket.socket, socket.socket]) -> None:
    monkeypatch.setenv(wire.VARIABLE, "1")
    wire.do_not_wait()
    assert not any(map(is_hastened, connected))


@pytest.mark.parametrize(("missing", "instead"), [("_ACKNOWLEDGE_NOW", None), ("_DESCRIPTORS", "/proc/nothing")])
def test_where_the_system_has_no_such_thing_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, connected: tuple[socket.socket, socket.socket], missing: str, instead: str | None
) -> None:
    monkeypatch.setattr(wire, missing, instead)
    wire.do_not_wait()
    assert not any(map(is_hastened, connected))


def test_a_reader_does_it_when_it_comes_to_a_worker_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(reading, "do_not_wait", lambda: calls.append("hastened"))
    sent = pickle.dumps(TaskReader(_READING, b"function"))
    assert not calls
    came = pickle.loads(sent)
    assert calls == ["hastened"]
    assert (came.reading, came.function) == (_READING, b"function")


def test_so_does_what_the_source_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(reading, "do_not_wait", lambda: calls.append("hastened"))
    came = pickle.loads(pickle.dumps(PlannedReader(Plan("orders", ("key",), ()), _READING.schema)))
    assert isinstance(came, TaskReader) and calls == ["hastened"]
