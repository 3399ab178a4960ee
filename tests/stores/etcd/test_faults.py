"""Faults of etcd, and of the streams of changes from it: compaction, breaks, a dead leader, a full disk."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pxrs.errors import Unavailable
from pxrs.stores.base import ABSENT, Outcome, Verdict
from pxrs.stores.etcd.grpc_channel import messages
from pxrs.stores.etcd.store import EtcdStore
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.etcd import EtcdCluster, EtcdServer
from pxrs.testing.stores.hooks import Background, get, put, swap, value_of
from tests.stores.etcd.helpers import operator_of
from tests.stores.kinds.places import LONG, SOON, new_place, opened, store_on

# ---- the stream of changes -------------------------------------------------------------------------------------------


class Waiter:
    """A process that waits; what it says is read line by line."""

    def __init__(self, url: str) -> None:
        words = [sys.executable, "-m", "tests.stores.etcd.waiter", url]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def says(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in list(self.lines)), f"the waiter says {text!r}: {self.lines}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(SOON)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def waiting(etcd_server: EtcdServer) -> Iterator[tuple[Waiter, str]]:
    place = new_place()
    waiter = Waiter(etcd_server.url(place))
    yield waiter, place
    waiter.end()


@pytest.mark.processes
@pytest.mark.slow
def test_b55_a_watch_that_a_compaction_overtook_wakes_and_goes_on(
    etcd_server: EtcdServer, waiting: tuple[Waiter, str]
) -> None:
    waiter, place = waiting
    waiter.says("waiting")
    with store_on(etcd_server, place) as store, operator_of(etcd_server) as operator:
        os.kill(waiter.process.pid, signal.SIGSTOP)
        _write_more_than_the_server_keeps_for_a_slow_watch(store)
        operator.ask("Compact", messages.CompactionRequest(revision=operator.revision()))
        os.kill(waiter.process.pid, signal.SIGCONT)
        waiter.says("compacted up to revision")
        put(store, "w/last", b"x")
        waiter.says("saw the last row")


def _write_more_than_the_server_keeps_for_a_slow_watch(store: EtcdStore) -> None:
    version = ABSENT
    for _ in range(1_500):
        version = put(store, "w/big", bytes(20_000), version)


@pytest.fixture
def way(etcd_server: EtcdServer) -> Iterator[Proxy]:
    """The way that watches take, and nothing else."""
    with Proxy("127.0.0.1", etcd_server.port) as way:
        yield way


@pytest.fixture
def store(etcd_server: EtcdServer, way: Proxy) -> Iterator[EtcdStore]:
    with store_on(etcd_server, options=f"watch={way.address}") as store:
        yield store


def test_b55_a_compaction_while_the_watch_is_away_hides_nothing(
    etcd_server: EtcdServer, store: EtcdStore, way: Proxy
) -> None:
    mark = store.wait("w/", 0, SOON)
    with way.refusing(), operator_of(etcd_server) as operator:
        put(store, "w/1", b"while the watch is away")
        operator.ask("Compact", messages.CompactionRequest(revision=operator.revision()))
        waiting = Background(store.wait, "w/", mark, LONG)
    mark = waiting.result(SOON, "the change that was compacted away")
    waiting = Background(store.wait, "w/", _settled(store, mark), LONG)
    put(store, "w/2", b"x")
    waiting.result(SOON, "a change after it")


def test_b56_a_watch_that_breaks_again_and_again_loses_no_wake(store: EtcdStore, way: Proxy) -> None:
    mark = store.wait("w/", 0, SOON)
    for number in range(12):
        wait_until(lambda: way.open == 1, "there is a stream to cut")
        call = Background(_wait_for, store, f"w/{number}", mark)
        cut = way.cut() if number % 2 else 0
        put(store, f"w/{number}", b"x")
        cut += way.cut() if number % 3 == 0 else 0
        assert cut or number in (2, 4, 8, 10), "nothing was cut"
        mark = call.result(SOON, f"wake {number}")


def test_b56_while_the_watch_is_away_reading_is_the_truth_and_waits_end_in_time(store: EtcdStore, way: Proxy) -> None:
    with way.refusing():
        mark = store.wait("w/", 0, SOON)
        assert store.wait("w/", mark, 0.05) == mark
        version = put(store, "w/1", b"x")
        assert store.wait("w/", mark, 0.05) == mark, "a watch that cannot be there"
        assert [row.version for row in store.scan("w/")] == [version]
        assert way.connections == 0
    assert store.wait("w/", mark, SOON) != mark, "the watch did not come back"


def test_waits_for_several_prefixes_share_one_stream(store: EtcdStore, way: Proxy) -> None:
    marks = {prefix: store.wait(prefix, 0, SOON) for prefix in ("a/", "b/", "c/")}
    marks = {prefix: _settled(store, mark, prefix) for prefix, mark in marks.items()}
    calls = {prefix: Background(store.wait, prefix, mark, LONG) for prefix, mark in marks.items()}
    put(store, "b/1", b"x")
    calls["b/"].result(SOON, "the change under its prefix")
    assert calls["a/"].running() and calls["c/"].running()
    assert way.open == 1


def _wait_for(store: EtcdStore, key: str, mark: int) -> int:
    while get(store, key) is None:
        mark = store.wait("w/", mark, LONG)
    return mark


def _settled(store: EtcdStore, mark: int, prefix: str = "w/") -> int:
    """The mark after which nothing has come for a moment."""
    while (later := store.wait(prefix, mark, 0.5)) != mark:
        mark = later
    return mark


# ---- the leader ------------------------------------------------------------------------------------------------------


class Counter:
    """Adds to one row, over and over, and remembers what it was told of each try."""

    def __init__(self, url: str) -> None:
        self.store = opened(url)
        self.told: dict[str, Verdict | None] = {}
        self._ended = threading.Event()
        self._thread = Background(self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.015):
            token = secrets.token_hex(4)
            try:
                [row] = self.store.read(["count"])
            except Unavailable:
                continue
            assert row is not None
            try:
                outcome = swap(self.store, "count", row.version, json.dumps([*json.loads(row.value), token]).encode())
                self.told[token] = outcome.verdict
            except Unavailable:
                self.told[token] = None

    def count(self, verdict: Verdict) -> int:
        return list(self.told.values()).count(verdict)

    def end(self) -> None:
        self._ended.set()
        self._thread.result(SOON, "the counter ends")
        self.store.close()


@pytest.mark.processes
@pytest.mark.slow
def test_b49_the_leader_is_killed_under_commits_and_none_is_lost_or_done_twice(etcd_cluster: EtcdCluster) -> None:
    place, leader = new_place(), etcd_cluster.leader()
    others = [node for node in etcd_cluster.nodes if node is not leader]
    url = f"etcd://{','.join(node.address for node in (leader, *others))}/{place}"
    watching = opened(url)
    put(watching, "count", b"[]")
    mark = watching.wait("count", 0, SOON)
    counters = [Counter(url) for _ in range(2)]
    _await_done(counters, 40)
    leader.kill()
    _await_done(counters, 40)
    assert watching.wait("count", mark, SOON) != mark, "the watch did not move to a living node"
    leader.start()
    etcd_cluster.leader().kill()
    _await_done(counters, 40)
    for counter in counters:
        counter.end()
    _judge([(token, told) for counter in counters for token, told in counter.told.items()], watching)
    watching.close()


def _await_done(counters: list[Counter], more: int) -> None:
    wanted = [counter.count(Verdict.DONE) + more for counter in counters]
    wait_until(
        lambda: all(one.count(Verdict.DONE) >= goal for one, goal in zip(counters, wanted, strict=True)),
        f"{more} more commits of each",
        seconds=60,
    )


def _judge(told: list[tuple[str, Verdict | None]], store: EtcdStore) -> None:
    there = json.loads(value_of(store, "count") or b"")
    assert len(there) == len(set(there)), "a commit was applied twice"
    by_verdict = {verdict: {token for token, one in told if one is verdict} for verdict in (*Verdict, None)}
    assert by_verdict[Verdict.DONE] <= set(there), "an acknowledged commit was lost"
    assert not (by_verdict[Verdict.CONFLICT] | by_verdict[None]) & set(there), "a refused commit was applied"
    assert set(there) <= by_verdict[Verdict.DONE] | by_verdict[Verdict.UNKNOWN]


@pytest.mark.processes
@pytest.mark.slow
def test_a_node_that_hangs_is_left_for_another(etcd_cluster: EtcdCluster) -> None:
    leader = etcd_cluster.leader()
    [first, *others] = [node for node in etcd_cluster.nodes if node is not leader]
    addresses = ",".join(node.address for node in (first, *others, leader))
    store = opened(f"etcd://{addresses}/{new_place()}?timeout_ms=3000")
    version = put(store, "a", b"x")
    first.pause()
    assert value_of(store, "a") == b"x"
    put(store, "a", b"y", version)
    first.resume()
    store.close()


# ---- the disk --------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_full_server_says_so(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, options=["--quota-backend-bytes=1000000"]) as server, store_on(server) as store:
        told = _fill(store)
        assert told.verdict is Verdict.UNKNOWN and "disarm the alarm" in told.reason
        assert store.scan("full/") != []


def _fill(store: EtcdStore) -> Outcome:
    for number in range(100):
        outcome = swap(store, f"full/{number}", ABSENT, bytes(100_000))
        if outcome.verdict is not Verdict.DONE:
            return outcome
    raise AssertionError("the server took more than its quota")
