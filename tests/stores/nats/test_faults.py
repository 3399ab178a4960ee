"""The registry on NATS when things go wrong: servers killed, behind or locked, watches cut, buckets deleted."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from pxrs.errors import BadUrl, PxrsError, Refused, Unavailable, WentBack
from pxrs.io.nats import client as nats_client
from pxrs.stores.base import ABSENT, CONFLICT, Swap, Verdict
from pxrs.stores.nats import bucket as nats_bucket
from pxrs.stores.nats import store as nats_store
from pxrs.stores.nats.store import NatsStore
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import free_ports, wait_until
from pxrs.testing.servers.nats import NatsCluster, NatsServer
from pxrs.testing.stores.hooks import Background, get, put, swap, value_of
from pxrs.testing.stores.sharing import in_forked_child
from tests.stores.kinds.places import LONG, SOON, new_place, opened, store_at, store_on
from tests.stores.nats.helpers import ask, client_loop, consumers, delete_consumers

pytestmark = pytest.mark.processes
_PATIENT = "timeout_ms=15000"


@pytest.fixture
def bucket() -> str:
    return new_place()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that this test may stop."""
    with NatsServer(tmp_path / "nats") as server:
        yield server


# ---- B-60: a replica that is behind ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_b60_a_follower_that_is_behind_is_never_believed(nats_cluster: NatsCluster, bucket: str) -> None:
    keys = [f"p/{number:03d}" for number in range(100)]
    with store_at(nats_cluster.url(bucket)) as store:
        versions = [put(store, key, b"0") for key in keys]
        for number in range(1, 4):
            leader, follower, _ = _leader_first(nats_cluster, bucket)  # it may have changed while one was paused
            with store_at(follower.url(bucket, _PATIENT)) as reader, store_at(leader.url(bucket, _PATIENT)) as writer:
                assert reader.read(keys[:1])[0] is not None  # it is connected to the follower
                follower.pause()
                value = b"%d" % number
                outcomes = writer.swap_each([Swap(k, v, value) for k, v in zip(keys, versions, strict=True)])
                assert {outcome.verdict for outcome in outcomes} == {Verdict.DONE}
                stale, versions = versions, [outcome.version for outcome in outcomes]
                follower.resume()  # from now on it catches up, and answers
                assert {row.value for row in reader.read(keys) if row} == {value}, "a stale row was read"
                assert {row.value for row in reader.scan("p/")} == {value}, "a stale row was scanned"
                assert swap(reader, keys[0], stale[0], b"late") == CONFLICT
        _leader_first(nats_cluster, bucket)[2].kill()
        assert swap(store, keys[0], versions[0], b"two of three") != CONFLICT


def _leader_first(cluster: NatsCluster, bucket: str) -> list[NatsServer]:
    leader = cluster.leader_of(f"KV_{bucket}")
    return [leader, *(node for node in cluster.nodes if node is not leader)]


def test_b60_a_read_from_a_replica_counts_only_if_it_is_not_behind(
    nats_server: NatsServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas that always answer as of a while ago: every answer comes from the leader then."""
    keys = [f"p/{number:03d}" for number in range(100)]
    with store_on(nats_server, bucket) as store:
        store.swap_each([Swap(key, ABSENT, b"old") for key in keys])
        old_answers = store._client.run(store._bucket._direct(_all_of(store, keys)), SOON)
        store.swap_each([Swap(row.key, row.version, b"new") for row in store.scan("p/")])

        async def stale(bucket: object, what: object) -> object:
            return old_answers

        with monkeypatch.context() as patch:
            patch.setattr(nats_bucket.Bucket, "_direct", stale)
            assert {row.value for row in store.read(keys) if row} == {b"new"}
            with pytest.raises(Unavailable):
                store_scan_briefly(store)


@pytest.mark.parametrize("verb", ["INFO", "CREATE"])
def test_a_question_of_opening_that_is_never_answered_is_asked_again(
    nats_server: NatsServer, bucket: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """As by a cluster that chooses a leader: one lost answer must not use up all the time there is."""
    send, lost = nats_client.Client.burst, iter([True])

    async def burst(client: nats_client.Client, sends: list[nats_client.Send], seconds: float) -> list[Msg | None]:
        if sends[0].subject.startswith(f"$JS.API.STREAM.{verb}.") and next(lost, False):
            await asyncio.sleep(seconds)
            return [None]
        return await send(client, sends, seconds)

    monkeypatch.setattr(nats_bucket, "_ASK_SECONDS", 0.2)
    monkeypatch.setattr(nats_client.Client, "burst", burst)
    with store_on(nats_server, bucket) as store:
        assert next(lost, None) is None, "nothing was lost"
        assert put(store, "p/0", b"x") != ABSENT


@pytest.mark.parametrize("rows", [1, 3])
def test_a_swap_that_nobody_hears_is_sent_again(
    nats_server: NatsServer, bucket: str, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """As on a node of a cluster that has not heard yet who leads a new stream."""
    send = nats_client.Client.burst
    unheard = iter([True, True])

    async def burst(client: nats_client.Client, sends: list[nats_client.Send], seconds: float) -> list[Msg | None]:
        if sends[0].subject.startswith("$KV.") and next(unheard, False):
            sends = [one._replace(subject=f"nobody.{one.subject}", answered=True) for one in sends]
        return await send(client, sends, seconds)

    swaps = [Swap(f"p/{number}", ABSENT, b"x") for number in range(rows)]
    with store_on(nats_server, bucket) as store, monkeypatch.context() as patch:
        patch.setattr(nats_client.Client, "burst", burst)
        assert store.swap_all(swaps).verdict is Verdict.DONE
        assert next(unheard, None) is None, "nothing went unheard"
        assert [row.value for row in store.scan("p/")] == [b"x"] * rows


def test_the_last_of_several_swaps_is_not_sent_if_one_before_it_had_no_answer(
    nats_server: NatsServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, deaf = nats_client.Client.burst, iter([True])

    async def burst(client: nats_client.Client, sends: list[nats_client.Send], seconds: float) -> list[Msg | None]:
        if next(deaf, False):
            sends = [sends[0], *(one._replace(subject=f"nobody.{one.subject}") for one in sends[1:])]
        return await send(client, sends, seconds)

    with store_on(nats_server, bucket) as store, monkeypatch.context() as patch:
        patch.setattr(nats_client.Client, "burst", burst)
        outcomes = store.swap_each([Swap(f"p/{number}", ABSENT, b"x") for number in range(3)])
        assert [one.verdict for one in outcomes] == [Verdict.DONE, Verdict.UNKNOWN, Verdict.UNKNOWN]
        assert [row.key for row in store.scan("p/")] == ["p/0"]


def _all_of(store: NatsStore, keys: list[str]) -> dict[str, object]:
    return {"multi_last": [store._bucket.subjects.of(key) for key in keys], "batch": len(keys)}


def store_scan_briefly(store: NatsStore) -> None:
    store._seconds = 0.05
    store.scan("p/")


# ---- the watch alone -------------------------------------------------------------------------------------------------


def test_b57_a_consumer_that_is_deleted_is_made_again(nats_server: NatsServer, bucket: str) -> None:
    with store_on(nats_server, bucket) as store, store_on(nats_server, bucket) as second:
        mark = store.wait("w/", 0, 0.0)
        assert len(consumers(nats_server.address, bucket)) == 1
        call = Background(store.wait, "w/", mark, LONG)
        assert delete_consumers(nats_server.address, bucket) == 1
        mark = call.result(SOON, "a wait whose consumer was deleted")
        assert len(consumers(nats_server.address, bucket)) == 1
        call = Background(store.wait, "w/", mark, LONG)
        put(second, "w/1", b"x")
        call.result(SOON, "a wait with the new consumer")


def test_b57_a_broken_connection_wakes_and_the_watch_goes_on(nats_server: NatsServer, bucket: str) -> None:
    with (
        Proxy("127.0.0.1", nats_server.port) as proxy,
        store_on(nats_server, bucket) as second,
        store_at(f"nats://{proxy.address}/{bucket}") as store,
    ):
        mark = store.wait("w/", 0, 0.0)
        with proxy.refusing():
            put(second, "w/1", b"unheard")
            call = Background(store.wait, "w/", mark, LONG)
        mark = call.result(SOON, "a wait over a connection that broke")
        call = Background(store.wait, "w/", mark, LONG)
        put(second, "w/2", b"heard")
        call.result(SOON, "a wait over the new connection")


def test_b57_a_consumer_that_says_nothing_is_given_up(
    nats_server: NatsServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_bucket, "SILENCE_SECONDS", 0.2)  # shorter than a heartbeat
    with store_on(nats_server, bucket) as store:
        mark = store.wait("w/", 0, 0.0)
        assert Background(store.wait, "w/", mark, LONG).result(SOON, "a silent consumer") != mark


def test_a_closed_store_leaves_no_consumer(nats_server: NatsServer, bucket: str) -> None:
    with store_on(nats_server, bucket) as store:
        store.wait("a/", 0, 0.0)
        store.wait("b/", 0, 0.0)
        assert len(consumers(nats_server.address, bucket)) == 2
    assert consumers(nats_server.address, bucket) == []


def test_a_forked_child_watches_for_itself(nats_server: NatsServer, bucket: str) -> None:
    with store_on(nats_server, bucket) as store:
        mark = store.wait("w/", 0, 0.0)
        put(store, "w/1", b"parent")

        def child() -> bool:
            later = store.wait("w/", mark, SOON)  # a mark of the parent's: it returns at once
            call = Background(store.wait, "w/", later, LONG)
            put(store, "w/2", b"child")
            call.result(SOON, "the child's wait")
            store.close()
            return True

        assert in_forked_child(child) == 0
        assert store.wait("w/", mark, SOON) != mark
        assert value_of(store, "w/2") == b"child"


# ---- the server ------------------------------------------------------------------------------------------------------


def test_rows_versions_and_waits_survive_a_killed_server(own_server: NatsServer, bucket: str) -> None:
    with store_on(own_server, bucket) as store:
        version = put(store, "a", b"before")
        mark = store.wait("a", 0, 0.0)
        call = Background(store.wait, "a", mark, LONG)
        own_server.restart()
        call.result(SOON, "a wait during the restart")
        row = get(store, "a")
        assert row is not None and (row.value, row.version) == (b"before", version)
        assert put(store, "a", b"after", version) > version


def test_a_server_that_is_not_there_is_unavailable_and_the_password_is_not_shown() -> None:
    [port] = free_ports(1)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as refused:
        opened(f"nats://bob:s3cret@127.0.0.1:{port}/b?timeout_ms=300")
    assert "s3cret" not in str(refused.value)


def test_a_paused_server_makes_reads_unavailable_and_swaps_unknown(own_server: NatsServer, bucket: str) -> None:
    with store_on(own_server, bucket) as store:
        version = put(store, "a", b"before")
        store._seconds = 0.3  # from here on no answer is to be waited for
        own_server.pause()
        with pytest.raises(Unavailable):
            store.read(["a"])
        assert swap(store, "a", version, b"after").verdict is Verdict.UNKNOWN
        own_server.resume()
        store._seconds = 3.0
        wait_until(lambda: _value(store, "a") == b"after", "the write that was under way is there", SOON)


def test_a_loop_that_hangs_makes_swaps_unknown(
    nats_server: NatsServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever keeps the loop busy, nobody knows then how far a swap came."""
    monkeypatch.setattr(nats_store, "_SLACK_SECONDS", 0.1)
    with store_on(nats_server, bucket) as store:
        version = put(store, "a", b"before")
        store._seconds = 0.1
        released = threading.Event()
        client_loop().call_soon_threadsafe(released.wait, LONG)
        try:
            assert swap(store, "a", version, b"after").verdict is Verdict.UNKNOWN
            assert store.swap_all([Swap("a", version, b"after")]).verdict is Verdict.UNKNOWN
        finally:
            released.set()
        store._seconds = 3.0
        wait_until(lambda: _value(store, "a") in (b"before", b"after"), "the loop goes on", SOON)


def test_a_deleted_bucket_is_reported_and_not_made_again(nats_server: NatsServer, bucket: str) -> None:
    with store_on(nats_server, bucket) as store:
        version = put(store, "a", b"x")
        ask(nats_server.address, f"STREAM.DELETE.KV_{bucket}")
        calls: list[Callable[[], object]] = [
            lambda: store.read(["a"]),
            lambda: store.scan(""),
            lambda: store.swap_each([Swap("a", version, b"y")]),
            lambda: store.swap_all([Swap("a", version, b"y"), Swap("b", ABSENT, b"y")]),
        ]
        for call in calls:
            with pytest.raises(WentBack, match="gone"):
                call()
        with store_on(nats_server, bucket) as again:
            assert again.scan("") == []


# ---- who may ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    login = ["authorization { user: bob, password: s3cret }"]
    with NatsServer(tmp_path_factory.mktemp("locked"), settings=login) as server:
        yield server


def test_a_wrong_password_is_refused_and_not_shown(locked_server: NatsServer) -> None:
    with pytest.raises(Refused, match="does not accept") as refused:
        opened(f"nats://bob:wr0ng@{locked_server.address}/b?timeout_ms=1000")
    assert "wr0ng" not in str(refused.value)


def test_the_password_is_shown_nowhere(locked_server: NatsServer) -> None:
    with store_at(f"nats://bob:s3cret@{locked_server.address}/shown") as store:
        put(store, "a", b"x")
        assert "s3cret" not in repr(store) and "s3cret" not in repr(store._client.address)
        with pytest.raises(PxrsError) as refused:
            store.swap_all([Swap("a", ABSENT, b"x")] * 1_001)
        assert "s3cret" not in str(refused.value)


def test_the_password_comes_from_the_environment_or_a_file(
    locked_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    with store_at(f"nats://bob@{locked_server.address}/b?password_file={file}") as store:
        put(store, "a", b"x")
    monkeypatch.setenv("PXRS_REGISTRY_USER", "bob")
    monkeypatch.setenv("PXRS_REGISTRY_PASSWORD", "s3cret")
    with store_at(f"nats://{locked_server.address}/b") as store:
        assert value_of(store, "a") == b"x"
    with pytest.raises(BadUrl, match="password_file"):
        opened(f"nats://bob@{locked_server.address}/b?password_file={tmp_path}/none")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for this machine that vouches for itself; its key stands beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    place = tmp_path_factory.mktemp("tls")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run(
        [*command, "-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")], check=True, capture_output=True
    )
    return place / "cert.pem"


def test_tls_is_used_and_verified(certificate: Path, tmp_path: Path) -> None:
    files = f'cert_file: "{certificate}", key_file: "{certificate.with_name("key.pem")}"'
    with NatsServer(tmp_path / "nats", settings=[f"tls {{ {files} }}"]) as server:
        with store_at(server.url("b", f"ca={certificate}")) as store:
            put(store, "a", b"x")
            live = store._client.run(store._client._connection().ready(), SOON)
            writer = live._transport._io_writer  # the library's own
            assert isinstance(writer.get_extra_info("ssl_object"), ssl.SSLObject)
        with store_at(server.url("b", "tls=true&tls_verify=false")) as store:
            assert value_of(store, "a") == b"x"
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            opened(server.url("b", "tls=true&timeout_ms=1000"))


def test_nothing_is_sent_in_plain_text_where_tls_was_asked_for(nats_server: NatsServer, certificate: Path) -> None:
    with Proxy("127.0.0.1", nats_server.port) as proxy:
        with pytest.raises(Unavailable, match="TLS"):
            opened(f"nats://bob:s3cret@{proxy.address}/b?ca={certificate}&timeout_ms=1000")
        assert proxy.connections > 0 and proxy.forwarded["requests"] == 0


def _value(store: NatsStore, key: str) -> bytes | None:
    try:
        return value_of(store, key)
    except Unavailable:
        return None
