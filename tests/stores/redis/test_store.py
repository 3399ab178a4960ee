from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pxrs.errors import BadUrl, Damaged, NewerFormat, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Swap, Verdict
from pxrs.stores.redis.store import RedisStore
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import free_ports, wait_until
from pxrs.testing.servers.valkey import ValkeyServer
from pxrs.testing.stores.hooks import get, put, swap, value_of
from pxrs.testing.stores.sharing import in_forked_child
from tests.stores.kinds.places import SOON, new_place, opened, store_on
from tests.stores.redis.helpers import losing_swaps_alone


@pytest.fixture
def store(valkey_server: ValkeyServer) -> Iterator[RedisStore]:
    with store_on(valkey_server) as store:
        yield store


# ---- what was lost ---------------------------------------------------------------------------------------------------


def test_a_swap_whose_answer_was_lost_is_recognised_by_its_nonce(valkey_server: ValkeyServer) -> None:
    with Proxy("127.0.0.1", valkey_server.port) as proxy:
        store = opened(f"redis://{proxy.address}/?prefix={new_place()}&timeout_ms=1000")
        version = put(store, "b", b"theirs")
        with losing_swaps_alone(store, proxy, "replies"):
            mine, conflict = store.swap_each([Swap("a", ABSENT, b"mine"), Swap("b", version + 1, b"mine")])
            all_of_them = store.swap_all([Swap("c", ABSENT, b"1"), Swap("d", ABSENT, b"2"), Swap("b", version, None)])
        assert mine.verdict is Verdict.DONE
        assert get(store, "a") == ("a", b"mine", mine.version)
        assert conflict.verdict is Verdict.UNKNOWN, "a row that is not ours may have been ours and overwritten"
        assert all_of_them.verdict is Verdict.DONE
        assert max(row.version for row in store.scan("")) == all_of_them.version
        store.close()


def test_a_key_that_is_twice_in_a_lost_call_stays_unknown(valkey_server: ValkeyServer) -> None:
    with Proxy("127.0.0.1", valkey_server.port) as proxy:
        store = opened(f"redis://{proxy.address}/?prefix={new_place()}&timeout_ms=1000")
        with losing_swaps_alone(store, proxy, "replies"):
            outcomes = store.swap_each([Swap("a", ABSENT, b"1"), Swap("a", ABSENT, b"2"), Swap("b", ABSENT, b"3")])
        assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.DONE]
        store.close()


def test_a_swap_that_never_arrived_is_unknown_and_not_sent_again(valkey_server: ValkeyServer) -> None:
    with Proxy("127.0.0.1", valkey_server.port) as proxy:
        store = opened(f"redis://{proxy.address}/?prefix={new_place()}&timeout_ms=1000")
        with losing_swaps_alone(store, proxy, "requests"):
            assert swap(store, "a", ABSENT, b"lost").verdict is Verdict.UNKNOWN
        assert get(store, "a") is None
        store.close()


def test_a_connection_that_the_server_closed_while_idle_is_not_used(
    valkey_server: ValkeyServer, store: RedisStore
) -> None:
    for number in range(5):
        put(store, f"before/{number}", b"x")
        valkey_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        put(store, f"after/{number}", b"x")
        valkey_server.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert value_of(store, f"after/{number}") == b"x"


def test_without_a_network_nothing_is_in_doubt(valkey_server: ValkeyServer) -> None:
    with Proxy("127.0.0.1", valkey_server.port) as proxy:
        store = opened(f"redis://{proxy.address}/?prefix={new_place()}&timeout_ms=1000")
        with proxy.refusing():
            with pytest.raises(Unavailable, match=proxy.address):
                swap(store, "a", ABSENT, b"x")
            with pytest.raises(Unavailable, match=proxy.address):
                store.read(["a"])
        put(store, "a", b"x")
        store.close()


# ---- rows that expire ------------------------------------------------------------------------------------------------


def has_row(store: RedisStore, key: str) -> bool:
    return store.read([key]) != [None]


def test_a_row_with_a_time_to_live_vanishes_and_not_early(store: RedisStore) -> None:
    clock = SystemClock()
    written = clock.monotonic()
    [outcome] = store.swap_each([Swap("member", ABSENT, b"beat", ttl_ms=300)])
    version = outcome.version
    wait_until(lambda: not has_row(store, "member"), "the row expires", SOON)
    assert clock.monotonic() - written >= 0.3
    assert store.scan("") == []
    assert swap(store, "member", version, b"late") == CONFLICT
    assert put(store, "member", b"again") > version


def test_a_row_that_is_renewed_stays(store: RedisStore) -> None:
    store.swap_each([Swap("witness", ABSENT, b"", ttl_ms=2_000)])
    version = ABSENT
    while has_row(store, "witness"):
        [outcome] = store.swap_each([Swap("member", version, b"beat", ttl_ms=2_000)])
        assert outcome.verdict is Verdict.DONE
        version = outcome.version
    assert has_row(store, "member")


@pytest.mark.parametrize("mode", ["each", "all"])
def test_a_write_without_a_time_to_live_makes_the_row_permanent(store: RedisStore, mode: str) -> None:
    [outcome] = store.swap_each([Swap("member", ABSENT, b"beat", ttl_ms=1_500)])
    store.swap_each([Swap("witness", ABSENT, b"", ttl_ms=2_000)])
    stay = [Swap("member", outcome.version, b"stays")]
    assert (store.swap_all(stay) if mode == "all" else store.swap_each(stay)[0]).verdict is Verdict.DONE
    wait_until(lambda: not has_row(store, "witness"), "the other row expires", SOON)
    assert [row.key for row in store.scan("")] == ["member"]


def test_a_scan_forgets_the_keys_of_expired_rows(valkey_server: ValkeyServer) -> None:
    place = new_place()
    with store_on(valkey_server, place) as store:
        store.swap_each([Swap(f"m/{number}", ABSENT, b"x", ttl_ms=50) for number in range(2_500)])
        put(store, "m/stays", b"x")
        wait_until(lambda: not has_row(store, "m/2499"), "the rows expire", SOON)
        wait_until(lambda: [row.key for row in store.scan("m/")] == ["m/stays"], "only one row is left", SOON)
        assert valkey_server.ask("ZCARD", f"{{{place}}}:keys") == 1


def test_a_time_to_live_that_is_none_is_refused_before_anything_is_sent(store: RedisStore) -> None:
    with pytest.raises(Refused, match="0 ms"):
        store.swap_each([Swap("a", ABSENT, b"x"), Swap("b", ABSENT, b"x", ttl_ms=0)])
    assert store.scan("") == []


# ---- round trips -----------------------------------------------------------------------------------------------------


def calls_of_scripts(server: ValkeyServer) -> int:
    found = server.ask("INFO", "commandstats")
    return sum(int(found.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("eval", "evalsha"))


def test_4096_rows_take_few_round_trips(valkey_server: ValkeyServer, store: RedisStore) -> None:
    keys = [f"p/{number:05d}" for number in range(4_096)]
    put(store, "warm", b"")
    store.scan("none/")
    before = calls_of_scripts(valkey_server)
    outcomes = store.swap_each([Swap(key, ABSENT, b"0") for key in keys])
    assert calls_of_scripts(valkey_server) - before == 1, "a swap_each of 4,096 rows"
    swaps = [Swap(key, outcome.version, b"1") for key, outcome in zip(keys, outcomes, strict=True)]
    assert store.swap_all(swaps).verdict is Verdict.DONE
    assert calls_of_scripts(valkey_server) - before == 2, "a swap_all of 4,096 rows"
    assert [row.key for row in store.scan("p/")] == keys
    assert calls_of_scripts(valkey_server) - before == 3, "a scan of 4,096 rows"
    assert {row.value for row in store.read(keys) if row} == {b"1"}


def test_a_swap_all_of_too_many_rows_is_refused_with_the_limit(store: RedisStore) -> None:
    with pytest.raises(Refused, match="65536"):
        store.swap_all([Swap(str(number), ABSENT, b"") for number in range(store.max_atomic + 1)])
    assert store.scan("") == []


def test_a_server_that_forgot_its_scripts_gets_them_again(valkey_server: ValkeyServer, store: RedisStore) -> None:
    version = put(store, "a", b"1")
    valkey_server.ask("SCRIPT", "FLUSH")
    put(store, "a", b"2", version)
    valkey_server.ask("SCRIPT", "FLUSH")
    assert [row.value for row in store.scan("")] == [b"2"]
    mark = store.wait("", 0, 0)
    put(store, "b", b"")
    valkey_server.ask("SCRIPT", "FLUSH")
    assert store.wait("", mark, SOON) > mark


# ---- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://127.0.0.1:1/orders", "orders"),
        ("redis://127.0.0.1:1/-1", "-1"),
        ("redis://127.0.0.1:1,127.0.0.1:2/0", "Sentinel"),
        ("redis://127.0.0.1:1/0?prefix=", "prefix"),
        ("redis://127.0.0.1:1/0?prefix=a%7Db", "braces"),
        ("redis://127.0.0.1:1/0?prefx=a", "prefx"),
        ("redis://127.0.0.1:1/0?tls=perhaps", "tls"),
        ("redis://127.0.0.1:1/0?ca=/no/such/file.pem", "certificates"),
        ("redis:", "host"),
    ],
)
def test_a_bad_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadUrl, match=said):
        opened(url)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    [port] = free_ports(1)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as caught:
        opened(f"redis://me:s3cret@127.0.0.1:{port}/0")
    assert "s3cret" not in str(caught.value)


def test_two_prefixes_do_not_see_each_other(valkey_server: ValkeyServer) -> None:
    place = new_place()
    with store_on(valkey_server, place) as one, store_on(valkey_server, place + "2") as two:
        put(one, "a", b"one")
        mark = two.wait("", 0, 0)
        put(two, "b", b"two")
        assert swap(two, "a", ABSENT, b"two").verdict is Verdict.DONE
        assert value_of(one, "a") == b"one" and [row.key for row in one.scan("")] == ["a"]
        assert two.wait("", mark, SOON) != mark


def test_two_databases_do_not_see_each_other(valkey_server: ValkeyServer) -> None:
    place = new_place()
    with store_on(valkey_server, place) as one:
        two = opened(f"redis://{valkey_server.address}/1?prefix={place}")
        put(two, "a", b"two")
        assert one.scan("") == []
        two.close()


def test_a_later_format_is_refused_before_writing(valkey_server: ValkeyServer) -> None:
    place = new_place()
    valkey_server.ask("SET", f"{{{place}}}:format", "99")
    with pytest.raises(NewerFormat, match="99"):
        opened(valkey_server.url(place))
    assert valkey_server.ask("KEYS", f"{{{place}}}*") == [f"{{{place}}}:format"]


def test_a_key_of_somebody_else_is_named(valkey_server: ValkeyServer, store: RedisStore) -> None:
    row = store._names.row("a").decode()
    valkey_server.ask("SET", row, "hello")
    with pytest.raises(Damaged, match="row:a"):
        store.read(["a"])
    valkey_server.ask("DEL", row)
    valkey_server.ask("LPUSH", row, "hello")
    [outcome, other] = store.swap_each([Swap("b", ABSENT, b"x"), Swap("a", ABSENT, b"x")])
    assert outcome.verdict is other.verdict is Verdict.UNKNOWN
    assert "WRONGTYPE" in outcome.reason
    assert get(store, "b") is None


def test_a_forked_child_waits_and_writes_on_connections_of_its_own(store: RedisStore) -> None:
    mark = store.wait("", 0, 0)
    put(store, "a", b"parent")
    mark = store.wait("", mark, SOON)  # now the parent listens

    def child() -> bool:
        writer = threading.Timer(0.01, put, (store, "b", b"child"))
        writer.start()
        heard = store.wait("", mark, SOON) != mark
        writer.join()
        return heard and value_of(store, "b") == b"child"

    assert in_forked_child(child, SOON) == 0
    assert store.wait("", mark, SOON) != mark, "the parent's own subscription still works"
    assert value_of(store, "b") == b"child"


def test_durability_is_not_promised() -> None:
    assert Guarantee.DURABLE not in RedisStore.guarantees


def test_a_store_that_loses_everything_at_a_restart_is_warned_of(
    valkey_server: ValkeyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), store_on(valkey_server):
        assert caplog.text == ""
    with ValkeyServer(tmp_path / "server", durable=False) as server, store_on(server):
        assert "append-only" in caplog.text
