"""The text of a ``nats://`` URL and of a stream, and what is refused before anything is made."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import BadUrl, Damaged, Mismatch, NewerFormat, Refused
from pxrs.logs.base import Stamp
from pxrs.logs.jetstream.names import message_id, stream_of, target_of, to_metadata
from pxrs.logs.jetstream.stream import Stream
from pxrs.testing.logs.hooks import entries, numbered, read_all, run_together
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.nats import NatsServer
from tests.logs.jetstream.helpers import ask, open_nats, opened, stream_state

pytestmark = pytest.mark.processes


# ---- URLs and names --------------------------------------------------------------------------------------------------


def test_the_parts_of_a_url() -> None:
    target = target_of("nats://bob:s%2Fcret@one:4223,two,[::1]:5/orders?replicas=3&duplicate_window_ms=500")
    assert target.address.servers == ("one:4223", "two:4222", "[::1]:5")
    assert (target.address.user, target.address.password) == ("bob", "s/cret")
    assert (target.queue, target.replicas, target.window_ms) == ("orders", 3, 500)
    assert "cret" not in str(target.address)


@pytest.mark.parametrize(
    "url",
    [
        "nats:orders",
        "nats://",
        "nats://host",
        "nats://host/",
        "nats:///orders",
        "nats://a b/orders",
        "nats://host:port/orders",
        "nats://host,,other/orders",
        "nats://host/orders?replicas=0",
        "nats://host/orders?replicas=two",
        "nats://host/orders?duplicate_window_ms=-1",
        "nats://bob:secret@host/orders?colour=red",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(BadUrl, match="nats:") as refused:
        target_of(url)
    assert "secret" not in str(refused.value)


def test_no_two_logs_share_a_stream() -> None:
    names = [("a.b",), ("a_b",), ("a-b",), ("a", "b"), ("a", "b.c"), ("a", "b", "c"), ("x" * 200,), ("x" * 199, "y")]
    streams = [stream_of(*parts) for parts in names]
    assert len(set(streams)) == len(names)
    assert all(len(stream) <= 200 and not set(stream) & set(".*> /\\") for stream in streams)


def test_a_message_id_holds_no_character_that_ends_a_header() -> None:
    assert message_id(Stamp("a b\r\nX: y", 7), 3, 0) == "a%20b%0D%0AX%3A%20y:3:7"
    assert message_id(Stamp("p", 7), 3, 2) == "p:3:7:2"


def test_without_the_client_package_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['nats'] = None\n"
        "import pxrs\n"
        "try: pxrs.open(log='nats://127.0.0.1/q', registry='memory:')\n"
        "except pxrs.errors.BadUrl as error: print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'pxrs[nats]'" in answer.stdout


# ---- what a stream records -------------------------------------------------------------------------------------------


def edit(server: NatsServer, stream: str, change: Callable[[dict[str, object]], None]) -> None:
    config = ask(server.address, f"$JS.API.STREAM.INFO.{stream}")["config"]
    change(config)
    assert "error" not in ask(server.address, f"$JS.API.STREAM.UPDATE.{stream}", config)


def test_a_later_format_is_refused(nats_server: NatsServer) -> None:
    open_nats(nats_server.url("later"), partitions=1).close()
    edit(nats_server, "later", lambda config: config["metadata"].update({"pxrs.format": "2"}))  # type: ignore[attr-defined]  # a dict
    with pytest.raises(NewerFormat, match="'later' has format 2"):
        open_nats(nats_server.url("later"))


def test_an_edited_identity_is_refused(nats_server: NatsServer) -> None:
    open_nats(nats_server.url("edited"), partitions=4).close()
    edit(nats_server, "edited", lambda config: config["metadata"].update({"pxrs.partitions": "8"}))  # type: ignore[attr-defined]  # a dict
    with pytest.raises(Damaged, match="'edited': its metadata is damaged: its checksum"):
        open_nats(nats_server.url("edited"))


def test_a_stream_of_somebody_else_is_left_alone(nats_server: NatsServer) -> None:
    ask(nats_server.address, "$JS.API.STREAM.CREATE.theirs", {"name": "theirs", "subjects": ["theirs.*"]})
    with pytest.raises(Refused, match="'theirs' is there and is no log of PXRS"):
        open_nats(nats_server.url("theirs"))


@pytest.mark.parametrize(("limit", "value"), [("max_age", 10**12), ("max_bytes", 10**6), ("max_msgs", 10**6)])
def test_a_stream_whose_server_would_delete_the_next_offset_is_refused(
    nats_server: NatsServer, limit: str, value: int
) -> None:
    open_nats(nats_server.url(limit), partitions=1).close()
    edit(nats_server, limit, lambda config: config.update({limit: value}))
    with pytest.raises(Refused, match=f"{limit} = {value}.*retention_ms"):
        open_nats(nats_server.url(limit))


def test_replicas_need_a_cluster_and_are_kept(nats_server: NatsServer) -> None:
    with pytest.raises(Refused, match="cluster"):
        open_nats(nats_server.url("three", "replicas=3"))
    open_nats(nats_server.url("three", "replicas=1"), partitions=1).close()
    with pytest.raises(Mismatch, match="has 1 replicas, and is opened with replicas=3"):
        open_nats(nats_server.url("three", "replicas=3"))


def test_creators_at_the_same_time_agree(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)
    create = Stream.create

    async def all_at_once(self: Stream, *args: object) -> bool:
        await asyncio.to_thread(together.wait)  # all have seen that there is no stream
        return await create(self, *args)  # type: ignore[arg-type]  # handed on as they are

    monkeypatch.setattr(Stream, "create", all_at_once)
    logs = run_together(20, [lambda: open_nats(nats_server.url("race"), partitions=3)] * 3)
    assert len({log.identity for log in logs}) == 1
    for log in logs:
        log.close()


def test_the_identity_survives_in_metadata(nats_server: NatsServer) -> None:
    with opened(nats_server.url("kept"), partitions=3, hash="sha256") as log:
        metadata = ask(nats_server.address, "$JS.API.STREAM.INFO.kept")["config"]["metadata"]
        assert to_metadata(log.identity).items() <= metadata.items()


def test_a_wrong_password_is_refused_without_showing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pxrs.io.nats.client.CONNECT_SECONDS", 1.0)
    login = ["authorization { user: bob, password: secret }"]
    with NatsServer(tmp_path / "nats", settings=login) as server:
        with pytest.raises(Refused, match="user and password") as refused:
            open_nats(f"nats://bob:wrong@{server.address}/orders")
        assert "wrong" not in str(refused.value)
        open_nats(f"nats://bob:secret@{server.address}/orders", partitions=1).close()


# ---- how it is used --------------------------------------------------------------------------------------------------


def test_a_forked_child_has_a_connection_of_its_own(nats_server: NatsServer) -> None:
    with opened(nats_server.url("forked"), partitions=1) as log:
        log.append({0: entries(numbered(3))})
        assert log.bounds(0) == (0, 3)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                log.append({0: entries(numbered(2, 3))})
                code = 0 if read_all(log, 0) == list(enumerate(numbered(5))) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert log.append({0: entries(numbered(1, 5))}) == {0: 5}
        assert read_all(log, 0) == list(enumerate(numbered(6)))


def test_reading_many_batches_takes_few_requests(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(nats_server.url("ahead"), partitions=1) as log:
        for number in range(300):
            log.append({0: entries([b"%d" % number])})
        requests: list[int] = []
        run = Stream.run

        async def counted(self: Stream, partition: int, sequence: int, *rest: int) -> object:
            requests.append(sequence)
            return await run(self, partition, sequence, *rest)

        monkeypatch.setattr(Stream, "run", counted)
        assert len(read_all(log, 0)) == 300
        assert len(requests) <= 4


def test_a_queue_over_nats_from_producer_to_consumer(nats_server: NatsServer, tmp_path: Path) -> None:
    seen: list[tuple[int, int, bytes]] = []
    with pxrs.open(log=nats_server.url("story"), registry=f"sqlite:{tmp_path}/registry.db", partitions=4) as queue:
        with queue.producer() as producer:
            receipt = producer.send("acct-1", b"first")
            keys, values = [b"acct-%d" % (n % 50) for n in range(20_000)], [b"%d" % n for n in range(20_000)]
            producer.send_batch(pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))
        partition, offset = receipt.result()
        assert (partition, offset) == (queue.partitioner.partition("acct-1"), 0)
        assert sum(queue.ends().values()) == 20_001
        assert stream_state(nats_server.address, "story")["messages"] <= 20_001 / 50

        def handle(batch: list[pxrs.Message]) -> None:
            seen.extend((m.partition, m.offset, m.value) for m in batch)

        consumer = queue.consumer("billing", handle, member="A", deliver="list")
        consumer.start()
        wait_until(lambda: len(seen) >= 20_001, "the consumer has seen everything", 30)
        with queue.producer() as producer:
            producer.send("acct-1", b"live")
        wait_until(lambda: len(seen) >= 20_002, "the consumer has seen the live message", 30)
        consumer.stop()
        assert [row["lag"] for row in queue.group("billing").describe()] == [0] * 4
    assert len({(partition, offset) for partition, offset, _ in seen}) == 20_002
    assert sorted(value for _, _, value in seen) == sorted([b"first", b"live", *values])


def test_batches_are_compressed_if_wished(nats_server: NatsServer) -> None:
    batch = {0: entries([b"always the same"] * 1_000)}
    sizes = []
    for name in ("none", "zstd"):
        settings = pxrs.Settings.from_mapping({"compression": name})
        with opened(nats_server.url(f"packed-{name}"), settings=settings, partitions=1) as log:
            log.append(batch)
            sizes.append(log.chunks(0)[0].bytes)
            assert read_all(log, 0) == list(enumerate([b"always the same"] * 1_000))
    assert sizes[1] < sizes[0] / 5


def test_retention_deletes_old_batches_and_nothing_that_a_group_needs(nats_server: NatsServer, tmp_path: Path) -> None:
    settings = pxrs.Settings(housekeeping_ms=60_000, retention_bytes=1, segment_bytes=1)
    names = nats_server.url("brief"), f"sqlite:{tmp_path}/registry.db"
    with pxrs.open(log=names[0], registry=names[1], partitions=1, settings=settings) as queue:
        group = queue.make_group("billing")
        with queue.producer() as producer:
            for number in range(8):
                producer.send("a", b"%d" % number).result()
        starts = []
        for checkpoint in (0, 3, 8):
            group.seek({0: checkpoint})
            queue.housekeep()
            starts.append(queue.log.bounds(0)[0])
        assert starts == [0, 3, 6], "two chunks always stay; with such small segments each batch is one"
        assert [message.value for message in queue.read(partition=0, offset=6)] == [b"6", b"7"]
