"""Faults of a Redis server, and what must not happen to the registry on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pxrs.errors import Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.stores.base import ABSENT, CONFLICT, Swap, Verdict
from pxrs.stores.redis.store import RedisStore
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.valkey import ValkeyServer
from pxrs.testing.stores.hooks import Background, get, put, swap, value_of
from tests.stores.kinds.places import LONG, SOON, new_place, opened, store_on
from tests.stores.redis.helpers import has_waiters, is_listening

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A server for this test alone: it may be killed."""
    with ValkeyServer(tmp_path / "server") as server:
        yield server


def waiting(store: RedisStore, prefix: str) -> Background:
    """A wait in another thread that has its subscription, and sleeps."""
    call = Background(store.wait, prefix, store.wait(prefix, 0, 0), LONG)
    wait_until(lambda: is_listening(store) and has_waiters(store), "the waiter sleeps", SOON)
    return call


# ---- notifications ---------------------------------------------------------------------------------------------------


def test_b57_waiters_hear_again_after_the_subscription_alone_was_cut(server: ValkeyServer) -> None:
    place = new_place()
    with store_on(server, place) as store, store_on(server, place) as second:
        call = waiting(store, "w/")
        for number in range(3):
            assert server.ask("CLIENT", "KILL", "TYPE", "pubsub") == 1
            mark = call.result(SOON, "a wait ends when its subscription was cut")
            call = Background(store.wait, "w/", mark, LONG)
            put(second, f"w/{number}", b"x")
            mark = call.result(SOON, "a change after the cut is heard")
            call = Background(store.wait, "w/", mark, LONG)
            wait_until(lambda: has_waiters(store), "the waiter sleeps", SOON)
        put(second, "w/last", b"x")
        call.result(SOON, "a change long after the cut is heard")


def test_b57_a_change_while_nobody_was_subscribed_is_not_lost(server: ValkeyServer) -> None:
    place = new_place()
    with store_on(server, place) as store, store_on(server, place) as second:
        mark = waiting_once(store, second)
        server.ask("ACL", "SETUSER", "default", "-subscribe")
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        wait_until(lambda: not is_listening(store), "the subscription is gone", SOON)
        put(second, "w/unheard", b"x")
        assert store.wait("w/", mark, 0.05) == mark, "who heard nothing must not pass over anything"
        server.ask("ACL", "SETUSER", "default", "+subscribe")
        assert Background(store.wait, "w/", mark, LONG).result(SOON, "the change is found") > mark
        assert value_of(store, "w/unheard") == b"x"


def waiting_once(store: RedisStore, second: RedisStore) -> int:
    call = waiting(store, "w/")
    put(second, "w/first", b"x")
    return int(call.result(SOON, "the first change"))


def test_commits_elsewhere_do_not_end_a_wait_and_cost_no_question(server: ValkeyServer) -> None:
    place = new_place()
    with store_on(server, place) as store, store_on(server, place) as second:
        call = waiting(store, "bells/")
        witness = waiting(store, "partitions/199")
        evals = server.ask("INFO", "commandstats")
        for number in range(200):
            put(second, f"partitions/{number}", b"x")
        assert witness.result(SOON, "all of them were heard") > 0
        assert call.running()
        now = server.ask("INFO", "commandstats")
        asked = now["cmdstat_evalsha"]["calls"] - evals["cmdstat_evalsha"]["calls"]
        assert asked == 200, "the waiter asked the server"
        second.swap_all([Swap("partitions/new", ABSENT, b""), Swap("bells/1", ABSENT, b"")])
        call.result(SOON, "a swap of partitions and a bell")


def test_an_old_mark_is_not_outdated_by_noise_and_a_change_long_ago_is_found(server: ValkeyServer) -> None:
    place = new_place()
    with store_on(server, place) as store, store_on(server, place) as second:
        version = put(second, "quiet/1", b"x")
        mark = store.wait("quiet/", 0, 0)
        for number in range(30):
            put(second, f"noise/{number}", b"x")
        assert Background(store.wait, "quiet/", mark, 0.3).result(SOON, "a quiet wait with an old mark") == mark
        swap(second, "quiet/1", version, None)
        for number in range(30):
            put(second, f"more/{number}", b"x")
        assert Background(store.wait, "quiet/", mark, LONG).result(SOON, "an old deletion is found") > mark


def test_a_wait_on_a_server_that_was_emptied_does_not_spin(server: ValkeyServer) -> None:
    place = new_place()
    with store_on(server, place) as store, store_on(server, place) as second:
        mark = waiting_once(store, second)
        server.ask("FLUSHALL")
        assert store.wait("w/", 0, 0) > 0
        before = server.ask("INFO", "stats")["total_commands_processed"]
        for _ in range(10):
            mark = store.wait("w/", mark, 0.02)
        assert server.ask("INFO", "stats")["total_commands_processed"] - before < 30
        call = Background(store.wait, "w/", mark, LONG)
        put(second, "w/new", b"x")
        call.result(SOON, "a change after the wipe")


def test_a_restart_under_a_waiting_reader(server: ValkeyServer) -> None:
    place = new_place()
    with store_on(server, place) as store, store_on(server, place) as second:
        version = put(store, "kept", b"x")
        call = waiting(store, "w/")
        server.restart()
        mark = call.result(SOON, "a wait over a restart ends: it may have missed something")
        assert get(store, "kept") == ("kept", b"x", version), "an answered write was on the disk"
        call = Background(store.wait, "w/", mark, LONG)
        put(second, "w/1", b"x")
        call.result(SOON, "a change after the restart")


def test_a_wait_without_a_server_ends_at_its_time_out_or_says_so(server: ValkeyServer) -> None:
    with store_on(server, options="timeout_ms=1000") as store:
        mark = store.wait("w/", 0, 0)
        server.kill()
        for _ in range(3):
            assert Background(store.wait, "w/", mark, 0.05).result(SOON, "a wait without a server") == mark
        with pytest.raises(Unavailable):
            store.wait("w/", 0, 0)


def test_a_subscription_that_went_silent_is_made_again(
    valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network swallows everything, and no connection breaks."""
    monkeypatch.setattr("pxrs.stores.redis.client.SILENCE_SECONDS", 0.1)
    place = new_place()
    with Proxy("127.0.0.1", valkey_server.port) as proxy, store_on(valkey_server, place) as second:
        store = opened(f"redis://{proxy.address}/0?prefix={place}&timeout_ms=3000")
        call = waiting(store, "w/")
        before = store._listener._marks[b"w/"]
        proxy._lost.add("replies")
        wait_until(lambda: not is_listening(store), "the silence is noticed", SOON)
        put(second, "w/unheard", b"x")
        proxy._lost.discard("replies")
        assert call.result(SOON, "the wait ends with the new subscription") == before + 1
        store.close()


# ---- what a failover or a wipe takes away ----------------------------------------------------------------------------


@pytest.fixture
def pair(server: ValkeyServer, tmp_path: Path) -> Iterator[tuple[ValkeyServer, ValkeyServer, Proxy]]:
    """A primary, its replica, and the network between the two."""
    with (
        Proxy("127.0.0.1", server.port) as between,
        ValkeyServer(tmp_path / "replica", replica_of=between.port) as replica,
    ):
        yield server, replica, between


def test_b58_a_replica_without_the_last_writes_goes_on_above_their_versions(
    pair: tuple[ValkeyServer, ValkeyServer, Proxy],
) -> None:
    """The primary answers, its replica never hears of it, and is promoted."""
    primary, replica, between = pair
    place = new_place()
    with store_on(primary, place) as store:
        old = put(store, "p", b"epoch 1")
        wait_until(lambda: replica.ask("EXISTS", f"{{{place}}}:row:p") == 1, "the replica has the row", SOON)
        with between.losing("replies"):
            lost = put(store, "p", b"epoch 2, answered", old)
            lost_too = put(store, "q", b"answered")
            primary.kill()
    with pytest.raises(Unavailable, match="replica"):
        opened(replica.url(place))
    replica.promote()
    with store_on(replica, place) as store:
        assert value_of(store, "p") == b"epoch 1", "the last write is lost: that is what Redis does"
        assert swap(store, "p", lost, b"stale") == CONFLICT
        assert swap(store, "q", lost_too, b"stale") == CONFLICT
        new = put(store, "p", b"epoch 2, of another owner", old)
        assert new > lost and put(store, "q", b"again") > lost_too, "the counter went back"
        assert swap(store, "p", lost, b"stale") == CONFLICT


@pytest.mark.parametrize("how", ["FLUSHALL", "restart without persistence"])
def test_b59_versions_go_on_after_a_wipe(tmp_path: Path, how: str) -> None:
    with ValkeyServer(tmp_path / "server", durable=False) as server, store_on(server) as store:
        before = {key: put(store, key, b"x") for key in ("a", "b", "c")}
        if how == "FLUSHALL":
            server.ask("FLUSHALL")
        else:
            server.restart()
        assert store.scan("") == []
        assert swap(store, "a", before["a"], b"stale") == CONFLICT
        after = {key: put(store, key, b"y") for key in before}
        assert min(after.values()) > max(before.values())
        for key, version in before.items():
            assert swap(store, key, version, b"stale") == CONFLICT


def test_b59_versions_go_on_when_an_older_copy_is_put_back(server: ValkeyServer, tmp_path: Path) -> None:
    with store_on(server) as store:
        first = put(store, "a", b"1")
        server.save(tmp_path / "copy")
        second = put(store, "a", b"2", first)
        server.restore(tmp_path / "copy")
        assert get(store, "a") == ("a", b"1", first)
        assert swap(store, "a", second, b"stale") == CONFLICT
        assert put(store, "a", b"2 again", first) > second


def test_versions_do_not_go_back_with_the_servers_clock(server: ValkeyServer) -> None:
    """The counter is ahead of the clock, as after a clock that was set back."""
    place = new_place()
    with store_on(server, place) as store:
        ahead = int(SystemClock.wall() * 1_000_000) + 3_600_000_000
        server.ask("SET", f"{{{place}}}:revision", str(ahead))
        assert put(store, "a", b"x") == ahead + 1
        outcome = store.swap_all([Swap("b", ABSENT, b"x"), Swap("c", ABSENT, b"x")])
        assert outcome.version == ahead + 3


# ---- servers that cannot, and users that may not ---------------------------------------------------------------------


def test_a_paused_server_leaves_a_swap_unknown_and_a_read_unavailable(server: ValkeyServer) -> None:
    with store_on(server, options="timeout_ms=1000") as store:
        version = put(store, "a", b"before")
        server.pause()
        assert swap(store, "a", version, b"after").verdict is Verdict.UNKNOWN
        with pytest.raises(Unavailable):
            get(store, "a")
        server.resume()
        wait_until(lambda: _value(store, "a") == b"after", "the swap happens after all, once", SOON)


def _value(store: RedisStore, key: str) -> bytes | None:
    try:
        return value_of(store, key)
    except Unavailable:
        return None


def test_a_server_that_became_a_replica_is_unavailable(server: ValkeyServer) -> None:
    with store_on(server) as store:
        version = put(store, "a", b"x")
        server.ask("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(Unavailable, match="READONLY"):
            swap(store, "a", version, b"y")
        with pytest.raises(Unavailable, match="replica"):
            get(store, "a")
        server.ask("REPLICAOF", "NO", "ONE")
        put(store, "a", b"y", version)


def test_a_full_server_is_unavailable_and_changes_nothing(server: ValkeyServer) -> None:
    with store_on(server) as store:
        version = put(store, "a", b"x")
        server.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Unavailable, match="OOM"):
            store.swap_each([Swap("b", ABSENT, b"y"), Swap("a", version, b"y")])
        server.ask("CONFIG", "SET", "maxmemory", "0")
        assert [(row.key, row.value) for row in store.scan("")] == [("a", b"x")]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_delete_our_keys_is_refused(
    tmp_path: Path, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ["--maxmemory", "100mb", "--maxmemory-policy", policy]
    with ValkeyServer(tmp_path / "server", settings=settings) as server:
        with pytest.raises(Refused, match=f"{policy}.*noeviction"):
            opened(server.url("orders"))
        assert server.ask("KEYS", "*") == []
        with store_on(server, options="allow_eviction=true") as store:
            put(store, "a", b"x")
        assert policy in caplog.text
        server.ask("CONFIG", "SET", "maxmemory", "0")
        with store_on(server) as store:
            put(store, "a", b"x")


def test_a_wrong_password_is_refused_and_no_password_is_ever_shown(tmp_path: Path) -> None:
    with ValkeyServer(tmp_path / "server", password="s3cret/@") as server:
        with store_on(server, "orders") as store:
            put(store, "a", b"x")
            shown = [repr(store), repr(store._client), str(store._client.address), repr(store._client.address)]
        for url in (f"redis://:wr0ng@{server.address}/0", f"redis://{server.address}/0"):
            with pytest.raises(Refused, match=r"password|Authentication") as caught:
                opened(url)
            shown.append(str(caught.value))
        server.kill()
        with pytest.raises(Unavailable) as away:
            opened(server.url("orders"))
        shown.append(str(away.value))
        assert not [text for text in shown if "s3cret" in text or "wr0ng" in text]


def test_a_password_that_was_changed_is_picked_up_from_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first\n")
    with ValkeyServer(tmp_path / "server", password="first") as server:
        store = opened(f"redis://{server.address}/0?password_file={secret}")
        server.ask("CONFIG", "SET", "requirepass", "second")
        server.password = "second"
        server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(Refused):
            get(store, "a")
        secret.write_text("second\n")
        put(store, "a", b"x")
        store.close()


@pytest.mark.parametrize("missing", ["-evalsha -eval", "-publish", "-zadd", "-set", "resetchannels", "resetkeys"])
def test_a_user_who_may_not_do_everything_is_refused_at_once(server: ValkeyServer, missing: str) -> None:
    server.ask("ACL", "SETUSER", "clerk", "on", ">pw", "~*", "&*", "+@all", *missing.split())
    with pytest.raises(Refused):
        opened(f"redis://clerk:pw@{server.address}/0?prefix=orders")
    assert server.ask("KEYS", "*row*") == []


def test_a_user_with_the_rights_that_the_docs_name_can_do_everything(server: ValkeyServer) -> None:
    rights = "~{orders}:* &{orders}:* +@read +@write +@scripting +@pubsub +@connection +info +role +time"
    server.ask("ACL", "SETUSER", "clerk", "on", ">pw", *rights.split())
    store = opened(f"redis://clerk:pw@{server.address}/0?prefix=orders")
    call = waiting(store, "w/")
    version = put(store, "w/1", b"x")
    call.result(SOON, "a change")
    assert swap(store, "w/1", version, None).verdict is Verdict.DONE
    assert store.scan("") == []
    with pytest.raises(Refused):
        opened(f"redis://clerk:pw@{server.address}/0?prefix=bills")
    store.close()


def test_an_unavailable_later_part_leaves_the_first_ones_done(
    valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pxrs.stores.redis.store.ROWS_PER_CALL", 10)
    with store_on(valkey_server) as store:
        run, calls = store._client.run, []

        def run_once(*arguments: object) -> object:
            calls.append(arguments)
            if len(calls) == 2:
                raise Unavailable("no connection")
            answer: object = run(*arguments)
            return answer

        monkeypatch.setattr(store._client, "run", run_once)
        outcomes = store.swap_each([Swap(f"{number:02d}", ABSENT, b"x") for number in range(35)])
        assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE] * 10 + [Verdict.UNKNOWN] * 25
        assert len(calls) == 2 and len(store.scan("")) == 10


def test_a_server_without_enough_replicas_is_unavailable_and_changes_nothing(server: ValkeyServer) -> None:
    with store_on(server) as store:
        server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        with pytest.raises(Unavailable, match="NOREPLICAS"):
            put(store, "a", b"x")
        server.ask("CONFIG", "SET", "min-replicas-to-write", "0")
        assert store.scan("") == []
