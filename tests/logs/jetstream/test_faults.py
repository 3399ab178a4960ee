"""The log over NATS when things go wrong: answers lost, servers killed, consumers meddled with, content damaged."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from pxrs.errors import Damaged, Refused, Unavailable
from pxrs.io.nats import client
from pxrs.logs.base import Log, Stamp
from pxrs.logs.batches import with_offsets
from pxrs.logs.formats.segment import encode
from pxrs.logs.jetstream import writer as jetstream_writer
from pxrs.logs.jetstream.names import subject_of
from pxrs.testing.logs.hooks import entries, numbered, read_all
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.nats import NatsCluster, NatsServer
from tests.logs.jetstream.helpers import Proxy, ask, open_nats, opened, stream_state, with_server

pytestmark = pytest.mark.processes

T = TypeVar("T")
BATCH, STAMP = {0: entries(numbered(3))}, {0: Stamp("p", 0)}


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue of this test alone."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that this test may stop."""
    with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def proxy(nats_server: NatsServer) -> Iterator[Proxy]:
    made = Proxy(nats_server.port)
    yield made
    made.close()


# ---- B-61: what the server's consumers think matters to nobody -------------------------------------------------------


def meddle(address: str, stream: str) -> int:
    """A durable consumer acknowledges everything, is deleted, and is made again, far ahead; how many it was given."""

    async def work(connection: Client) -> int:
        server = connection.jetstream()
        for policy in (DeliverPolicy.ALL, DeliverPolicy.NEW):
            config = ConsumerConfig(deliver_policy=policy, ack_policy=AckPolicy.EXPLICIT)
            consumer = await server.pull_subscribe("", "billing", stream, config)
            if policy is DeliverPolicy.ALL:
                given = await consumer.fetch(10, timeout=5)
                for message in given:
                    await message.ack_sync()
                await server.delete_consumer(stream, "billing")
        return len(given)

    return int(with_server(address, work))


def test_b61_a_reader_goes_on_from_its_own_offset_whatever_consumers_do(nats_server: NatsServer, queue: str) -> None:
    with opened(nats_server.url(queue), partitions=1) as log:
        for number in range(10):
            log.append({0: entries(numbered(5, 5 * number))})
        assert len(read_all(log, 0)) == 50
        assert stream_state(nats_server.address, queue)["consumer_count"] == 0, "reading made a consumer"
        assert meddle(nats_server.address, queue) == 10
        with opened(nats_server.url(queue), create=False) as again:
            assert read_all(again, 0, 23) == list(enumerate(numbered(50)))[23:]
        assert read_all(log, 0, 23) == list(enumerate(numbered(50)))[23:]


# ---- B-62: a retry inside and outside of the window ------------------------------------------------------------------


def lose_the_answer(log: Log, proxy: Proxy) -> None:
    assert log.append({0: entries([b"before"])}) == {0: 0}  # from now on an append is one request and one answer
    proxy.deaf.set()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{proxy.port}"):
        log.append(BATCH, STAMP)
    assert proxy.swallowed.wait(10)


def forget(server: NatsServer, stream: str) -> None:
    """Wait until the server has forgotten the ids of what was published before now."""
    subject = subject_of(stream, "probe")
    ask(server.address, subject, b"x", {"Nats-Msg-Id": "probe"})

    def forgotten() -> bool:
        return "duplicate" not in ask(server.address, subject, b"x", {"Nats-Msg-Id": "probe"})

    wait_until(forgotten, "the server forgets message ids", 10)


def test_b62_a_lost_answer_and_a_retry_at_once_store_it_once(nats_server: NatsServer, proxy: Proxy, queue: str) -> None:
    with (
        opened(nats_server.url(queue), partitions=1) as direct,
        opened(f"nats://127.0.0.1:{proxy.port}/{queue}") as log,
    ):
        lose_the_answer(log, proxy)
        assert direct.bounds(0) == (0, 4), "the server has stored it, and nobody knows"
        assert log.append(BATCH, STAMP) == {0: 1}
        assert read_all(direct, 0, 1) == list(enumerate(numbered(3), 1))


def test_b62_a_lost_answer_and_a_retry_by_another_process(nats_server: NatsServer, proxy: Proxy, queue: str) -> None:
    log = open_nats(f"nats://127.0.0.1:{proxy.port}/{queue}", partitions=1)
    lose_the_answer(log, proxy)
    log.close()  # as if it had been killed: it never retries
    with opened(nats_server.url(queue), create=False) as after:
        assert after.append({0: entries([b"another's"])}) == {0: 4}
        assert after.append(BATCH, STAMP) == {0: 1}
        assert after.bounds(0) == (0, 5)


@pytest.mark.parametrize("fresh", [False, True])
def test_b62_a_retry_after_the_window_is_found_among_the_last_batches(
    nats_server: NatsServer, proxy: Proxy, queue: str, fresh: bool
) -> None:
    options = "duplicate_window_ms=100"
    log = open_nats(f"nats://127.0.0.1:{proxy.port}/{queue}?{options}", partitions=1)
    lose_the_answer(log, proxy)
    forget(nats_server, queue)
    with opened(nats_server.url(queue), create=False) as other:
        assert other.append({0: entries([b"another's"])}, {0: Stamp("q", 0)}) == {0: 4}
        retrying = other if fresh else log
        assert retrying.append(BATCH, STAMP) == {0: 1}
        assert read_all(other, 0, 1) == [*enumerate(numbered(3), 1), (4, b"another's")]
    log.close()


def test_b62_beyond_every_window_it_is_stored_again_and_never_lost(
    nats_server: NatsServer, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream_writer, "LOOK_BACK", 1)
    monkeypatch.setattr(jetstream_writer, "LOOK_BACK_AT_LEAST", 2)
    url = nats_server.url(queue, "duplicate_window_ms=100")
    with opened(url, partitions=1) as log:
        log.append(BATCH, STAMP)
        for number in range(4):
            log.append({0: entries([b"%d" % number])})
        forget(nats_server, queue)
    with opened(url) as late:
        assert late.append(BATCH, STAMP) == {0: 7}
        assert read_all(late, 0, 7) == list(enumerate(numbered(3), 7))


def test_b62_a_server_that_hangs_is_unavailable_and_the_retry_is_recognised(
    own_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(own_server.url("orders"), partitions=1) as log:
        log.append({0: entries([b"before"])})
        monkeypatch.setattr(client, "ANSWER_SECONDS", 0.3)
        own_server.pause()
        with pytest.raises(Unavailable, match="no answer within"):
            log.append(BATCH, STAMP)
        own_server.resume()
        monkeypatch.undo()
        assert log.append(BATCH, STAMP) == {0: 1}
        assert read_all(log, 0, 1) == list(enumerate(numbered(3), 1))


def test_a_batch_in_parts_is_stored_as_a_whole_and_recognised(nats_server: NatsServer, queue: str) -> None:
    values = [b"%07d" % number * 100_000 for number in range(5)]
    with opened(nats_server.url(queue), partitions=1) as log:
        assert log.append({0: entries(values)}, STAMP) == {0: 0}
        assert stream_state(nats_server.address, queue)["messages"] > 3
        assert log.append({0: entries([b"next"])}) == {0: 5}
        assert log.append({0: entries(values)}, STAMP) == {0: 0}
        with opened(nats_server.url(queue)) as fresh:
            assert fresh.append({0: entries(values)}, STAMP) == {0: 0}
            assert read_all(fresh, 0) == list(enumerate([*values, b"next"]))


def test_a_message_that_the_server_does_not_take_is_refused_before_anything_is_stored(
    nats_server: NatsServer, queue: str
) -> None:
    with opened(nats_server.url(queue), partitions=2) as log:
        with pytest.raises(Refused, match="max_payload"):
            log.append({0: entries([b"small"]), 1: entries([b"x" * 2_000_000])})
        assert log.bounds(0) == log.bounds(1) == (0, 0)


# ---- servers that go away --------------------------------------------------------------------------------------------


class Load:
    """Appends numbered, stamped batches one after the other until it is told to end, whatever happens."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._over = threading.Event()
        self.told: list[int] = []
        self.failures = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            number = len(self.told)
            try:
                given = self._log.append({0: entries([b"%d" % number] * 5)}, {0: Stamp("load", number)})
                self.told.append(given[0])
            except Unavailable:
                self.failures += 1

    def wait_for(self, more: int) -> None:
        reached = len(self.told) + more
        wait_until(lambda: len(self.told) >= reached, f"{reached} batches are appended", 60)

    def end(self) -> None:
        self._over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def check(self, log: Log) -> None:
        """Everything that was acknowledged is there, once, in order, and dense."""
        assert self.told == list(range(0, 5 * len(self.told), 5))
        expected = [(offset, b"%d" % (offset // 5)) for offset in range(5 * len(self.told))]
        assert read_all(log, 0) == expected


def test_a_server_that_is_away_is_named(own_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = own_server.url("orders")
    log = open_nats(url, partitions=1)
    log.append(BATCH, STAMP)
    own_server.stop()
    with monkeypatch.context() as patch:
        patch.setattr(client, "CONNECT_SECONDS", 0.5)
        with pytest.raises(Unavailable, match=own_server.address):
            log.bounds(0)
        with pytest.raises(Unavailable, match=own_server.address):
            open_nats(url)
    own_server.start()
    assert patiently(lambda: log.append(BATCH, STAMP)) == {0: 0}
    assert log.bounds(0) == (0, 3)
    log.close()


def test_acknowledged_messages_survive_a_restart_and_a_kill_under_load(own_server: NatsServer) -> None:
    with opened(own_server.url("orders"), partitions=1) as log:
        load = Load(log)
        for end in (own_server.kill, own_server.stop, own_server.kill):
            load.wait_for(20)
            end()
            own_server.start()
        load.wait_for(20)
        load.end()
        load.check(log)
        with opened(own_server.url("orders"), create=False) as fresh:
            load.check(fresh)


@pytest.mark.slow
def test_with_three_nodes_the_loss_of_one_under_load_loses_nothing(nats_cluster: NatsCluster) -> None:
    with opened(nats_cluster.url("orders"), partitions=1) as log:
        load = Load(log)
        load.wait_for(20)
        leader = nats_cluster.leader_of("orders")
        leader.kill()
        load.wait_for(20)
        second = nats_cluster.leader_of("orders")
        assert second is not leader
        load.end()
        load.check(log)
        leader.start()
        next(node for node in nats_cluster.nodes if node not in (leader, second)).kill()  # now the first one counts
        fresh = patiently(lambda: open_nats(nats_cluster.url("orders", "")))
        patiently(lambda: load.check(fresh))
        last = {0: entries([b"last"])}
        assert patiently(lambda: fresh.append(last, {0: Stamp("last", 0)})) == {0: 5 * len(load.told)}
        fresh.close()


def patiently(call: Callable[[], T]) -> T:
    """Call it until it is not Unavailable: without a leader a cluster answers nothing for some seconds."""
    answers: list[T] = []

    def answered() -> bool:
        with suppress(Unavailable):
            answers.append(call())
        return bool(answers)

    wait_until(answered, "the cluster answers", 60)
    return answers[0]


# ---- several processes -----------------------------------------------------------------------------------------------


def start_producer(url: str, name: str, batches: int, rows: int) -> subprocess.Popen[str]:
    root = Path(__file__).parents[3]
    words = [sys.executable, "-m", "tests.logs.jetstream.producer_process", url, name, str(batches), str(rows)]
    return subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE, text=True)


def test_producers_in_two_processes_stay_dense(nats_server: NatsServer, queue: str) -> None:
    url = nats_server.url(queue)
    with opened(url, partitions=1) as log:
        processes = {name: start_producer(url, name, 40, 3) for name in ("a", "b")}
        told = {name: process.communicate(timeout=60)[0].split() for name, process in processes.items()}
        assert [process.returncode for process in processes.values()] == [0, 0]
        found = read_all(log, 0)
        assert [offset for offset, _ in found] == list(range(240))
        for name, words in told.items():
            for number, first in zip(words[::2], words[1::2], strict=True):
                assert [value for _, value in found[int(first) : int(first) + 3]] == [f"{name}-{number}".encode()] * 3


# ---- what is stored is not what it should be -------------------------------------------------------------------------


def publish(server: NatsServer, stream: str, data: bytes) -> int:
    return int(ask(server.address, subject_of(stream, 0), data)["seq"])


def test_damage_is_named_by_stream_subject_and_sequence(nats_server: NatsServer, queue: str) -> None:
    with opened(nats_server.url(queue), partitions=1) as log:
        log.append(BATCH)
        message, header = encode(with_offsets(entries(numbered(3)), 3), None)
        content = bytearray(message)
        content[header.size + 100] ^= 1
        sequence = publish(nats_server, queue, bytes(content))
        assert log.read(0, 0) is not None, "what stands before it can be read"
        with pytest.raises(Damaged, match=rf"{queue}, subject pxrs.{queue}.0, sequence {sequence}: .* offset 3"):
            log.read(0, 3)


def test_a_message_of_somebody_else_on_the_subject_is_named(nats_server: NatsServer, queue: str) -> None:
    with opened(nats_server.url(queue), partitions=1) as log:
        log.append(BATCH)
        sequence = publish(nats_server, queue, b"hello")
        with pytest.raises(Damaged, match=f"sequence {sequence}: no intact batch"):
            log.bounds(0)


def test_a_missing_batch_is_named(nats_server: NatsServer, queue: str) -> None:
    with opened(nats_server.url(queue), partitions=1) as log:
        for number in range(3):
            log.append({0: entries(numbered(3, 3 * number))})
        ask(nats_server.address, f"$JS.API.STREAM.MSG.DELETE.{queue}", {"seq": 2})
        assert log.read(0, 0) is not None
        with pytest.raises(Damaged, match=r"sequence 3: offset 3 is missing; this batch starts at 6"):
            log.read(0, 3)


def test_a_stream_that_was_deleted_or_created_anew_is_an_error_not_a_wait(nats_server: NatsServer, queue: str) -> None:
    with opened(nats_server.url(queue), partitions=1) as log, opened(nats_server.url(queue)) as reader:
        log.append(BATCH)
        assert len(read_all(reader, 0)) == 3
        ask(nats_server.address, f"$JS.API.STREAM.DELETE.{queue}")
        for wrong in (lambda: log.append(BATCH), lambda: log.bounds(0)):
            with pytest.raises(Damaged, match="deleted"):
                wrong()
        with opened(nats_server.url(queue), partitions=1):
            with pytest.raises(Damaged, match=r"anew|before"):
                log.append(BATCH)
            with pytest.raises(Damaged, match="anew"):
                wait_until(lambda: reader.read(0, 3) is not None, "the reader sees it", 10)
