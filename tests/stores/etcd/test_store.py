from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pxrs.drivers import find_driver
from pxrs.errors import BadUrl, Damaged, NewerFormat, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Row, Swap, Verdict
from pxrs.stores.etcd import store as driver
from pxrs.stores.etcd.grpc_channel import messages
from pxrs.stores.etcd.store import EtcdStore
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import free_ports, wait_until
from pxrs.testing.servers.etcd import EtcdServer
from pxrs.testing.stores.hooks import get, put, swap, value_of
from pxrs.testing.stores.sharing import in_forked_child
from tests.stores.etcd.helpers import losing_swaps_alone, operator_of
from tests.stores.kinds.places import SOON, new_place, opened, store_on


@pytest.fixture
def store(etcd_server: EtcdServer) -> Iterator[EtcdStore]:
    with store_on(etcd_server) as store:
        yield store


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", etcd_server.port) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy) -> Iterator[EtcdStore]:
    """A store behind the proxy."""
    store = opened(f"etcd://{proxy.address}/{new_place()}?timeout_ms=2000")
    yield store
    store.close()


# ---- what was lost ---------------------------------------------------------------------------------------------------


def test_a_swap_whose_answer_was_lost_is_recognised_by_its_nonce(behind: EtcdStore, proxy: Proxy) -> None:
    version = put(behind, "b", b"theirs")
    with losing_swaps_alone(behind, proxy, "replies"):
        [mine] = behind.swap_each([Swap("a", ABSENT, b"mine")])
        all_of_them = behind.swap_all([Swap("c", ABSENT, b"1"), Swap("d", ABSENT, b"2"), Swap("b", version, None)])
    assert mine.verdict is Verdict.DONE
    assert get(behind, "a") == Row("a", b"mine", mine.version)
    assert all_of_them.verdict is Verdict.DONE
    assert max(row.version for row in behind.scan("")) == all_of_them.version
    put(behind, "a", b"goes on", mine.version)


def test_of_many_swaps_whose_answers_were_lost_each_is_recognised(behind: EtcdStore, proxy: Proxy) -> None:
    swaps = [Swap(f"k/{number}", ABSENT, b"x") for number in range(300)]
    with losing_swaps_alone(behind, proxy, "replies"):
        outcomes = behind.swap_each(swaps)
    assert {outcome.verdict for outcome in outcomes} == {Verdict.DONE}
    assert {row.key: row.version for row in behind.scan("k/")} == {
        wish.key: outcome.version for wish, outcome in zip(swaps, outcomes, strict=True)
    }


def test_a_lost_swap_of_which_no_row_is_left_stays_unknown(behind: EtcdStore, proxy: Proxy) -> None:
    version = put(behind, "a", b"x")
    with losing_swaps_alone(behind, proxy, "replies"):
        assert swap(behind, "a", version, None).verdict is Verdict.UNKNOWN
    assert get(behind, "a") is None


def test_a_swap_that_never_arrived_is_unknown_and_not_sent_again(behind: EtcdStore, proxy: Proxy) -> None:
    with losing_swaps_alone(behind, proxy, "requests"):
        assert swap(behind, "a", ABSENT, b"lost").verdict is Verdict.UNKNOWN
    assert get(behind, "a") is None


def test_without_a_network_nothing_is_in_doubt(behind: EtcdStore, proxy: Proxy) -> None:
    with proxy.refusing():
        wait_until(lambda: _is_away(behind), "the connection is known to be broken")
        with pytest.raises(Unavailable, match=proxy.address):
            swap(behind, "a", ABSENT, b"x")
        with pytest.raises(Unavailable, match=proxy.address):
            behind.scan("")
    wait_until(lambda: not _is_away(behind), "the network is back")
    assert swap(behind, "a", ABSENT, b"x").verdict is Verdict.DONE


def _is_away(store: EtcdStore) -> bool:
    try:
        store.read(["a"])
    except Unavailable:
        return True
    return False


# ---- rows that expire ------------------------------------------------------------------------------------------------


def test_a_row_with_a_time_to_live_vanishes_and_not_early(store: EtcdStore) -> None:
    clock = SystemClock()
    written = clock.monotonic()
    store.swap_each([Swap("member", ABSENT, b"beat", ttl_ms=1_000)])
    wait_until(lambda: get(store, "member") is None, "the row has vanished")
    assert clock.monotonic() - written >= 1.0


def test_a_row_that_is_written_again_and_again_stays(store: EtcdStore) -> None:
    # The one that is not written again shows that enough time has passed. Both leases are equally long.
    store.swap_each([Swap("silent", ABSENT, b"0", ttl_ms=3_000)])
    [beat] = store.swap_each([Swap("member", ABSENT, b"0", ttl_ms=3_000)])

    def silent_is_gone() -> bool:
        nonlocal beat
        [beat] = store.swap_each([Swap("member", beat.version, b"1", ttl_ms=3_000)])
        assert beat.verdict is Verdict.DONE, "a row vanished although it was kept alive"
        return get(store, "silent") is None

    wait_until(silent_is_gone, "the other row has vanished")
    assert get(store, "member") is not None


def test_a_write_without_a_time_to_live_makes_the_row_permanent(store: EtcdStore) -> None:
    first = store.swap_each([Swap(key, ABSENT, b"0", ttl_ms=3_000) for key in ("kept", "silent")])
    put(store, "kept", b"for good", first[0].version)
    wait_until(lambda: get(store, "silent") is None, "the other row has vanished")
    assert value_of(store, "kept") == b"for good"


def test_closing_a_store_takes_no_row_away(etcd_server: EtcdServer, store: EtcdStore) -> None:
    place = store.address.place
    with store_on(etcd_server, place) as other:
        [row] = other.swap_each([Swap("member", ABSENT, b"0", ttl_ms=600_000)])
    assert get(store, "member") == Row("member", b"0", row.version)


def test_a_lease_that_is_gone_is_made_anew(etcd_server: EtcdServer, store: EtcdStore) -> None:
    with operator_of(etcd_server) as operator:
        before = operator.leases()
        store.swap_each([Swap("member", ABSENT, b"0", ttl_ms=600_000)])
        [lease] = operator.leases() - before
        operator.ask("LeaseRevoke", messages.LeaseRevokeRequest(ID=lease))
        assert get(store, "member") is None
        [again] = store.swap_each([Swap("member", ABSENT, b"1", ttl_ms=600_000)])
        assert again.verdict is Verdict.DONE
        assert lease not in operator.leases() and len(operator.leases() - before) == 1


# ---- places and limits -----------------------------------------------------------------------------------------------


def test_two_places_on_one_server_do_not_see_each_other(etcd_server: EtcdServer) -> None:
    name = new_place()
    places = [name, f"{name}b", f"{name}/b", f"{name}/b/c", f"{name}/format"]
    stores = [opened(etcd_server.url(place)) for place in places]
    keys = ("b/x", "/b//x", "x", "/x", "format")
    for number, one in enumerate(stores):
        for key in keys:
            put(one, key, b"%d" % number)
    for number, one in enumerate(stores):
        assert [(row.key, row.value) for row in one.scan("")] == [(key, b"%d" % number) for key in sorted(keys)]
        one.close()


def test_no_more_rows_than_etcd_takes_in_one_swap(store: EtcdStore) -> None:
    swaps = [Swap(f"k/{number}", ABSENT, b"x") for number in range(EtcdStore.max_atomic)]
    assert store.swap_all(swaps).verdict is Verdict.DONE
    with pytest.raises(Refused, match="128"):
        store.swap_all([Swap(f"m/{number}", ABSENT, b"x") for number in range(129)])
    assert store.scan("m/") == []


def test_a_thousand_swaps_are_judged_each_alone(store: EtcdStore) -> None:
    for number in range(0, 1_000, 10):
        put(store, f"k/{number}", b"taken")
    outcomes = store.swap_each([Swap(f"k/{number}", ABSENT, b"mine") for number in range(1_000)])
    assert [number for number, outcome in enumerate(outcomes) if outcome == CONFLICT] == list(range(0, 1_000, 10))
    assert sum(row.value == b"mine" for row in store.scan("k/")) == 900


def test_of_many_swaps_the_last_is_not_seen_before_the_others(store: EtcdStore) -> None:
    swaps = [Swap(f"k/{number}", ABSENT, b"x") for number in range(400)]
    [*_, bell] = store.swap_each([*swaps, Swap("bell", ABSENT, b"{}")])
    assert all(row.version <= bell.version for row in store.scan("k/"))


def test_values_that_do_not_fit_into_one_request_go_in_several(store: EtcdStore) -> None:
    large = os.urandom(600_000)
    outcomes = store.swap_each([Swap(f"k/{number}", ABSENT, large) for number in range(4)])
    assert {outcome.verdict for outcome in outcomes} == {Verdict.DONE}
    assert [row.value for row in store.scan("")] == [large] * 4


def test_a_value_that_no_request_can_hold_is_refused(store: EtcdStore) -> None:
    for size in (1_600_000, 5_000_000):
        with pytest.raises(Refused):
            put(store, "a", bytes(size))
    assert store.scan("") == []


def test_b53_a_key_with_a_nul_byte_is_kept_as_it_is(store: EtcdStore) -> None:
    put(store, "a\0b", b"1")
    put(store, "a", b"2")
    assert [(row.key, row.value) for row in store.scan("a")] == [("a", b"2"), ("a\0b", b"1")]


def test_delete_and_create_of_one_key_go_together(store: EtcdStore) -> None:
    version = put(store, "a", b"old")
    outcome = store.swap_all([Swap("a", version, None), Swap("a", ABSENT, b"new")])
    assert get(store, "a") == Row("a", b"new", outcome.version)
    assert store.swap_all([Swap("a", ABSENT, None), Swap("a", ABSENT, b"late")]) == CONFLICT


def test_a_scan_in_pages_shows_one_moment(store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [f"k/{number:03}" for number in range(250)]
    outcomes = store.swap_each([Swap(key, ABSENT, b"old") for key in keys])
    monkeypatch.setattr(driver, "PAGE_ROWS", 100)
    page, asked = store._page, 0

    def page_and_write(key: bytes, end: bytes, revision: int) -> object:
        nonlocal asked
        asked += 1
        answer = page(key, end, revision)
        if asked == 1:
            put(store, "k/249", b"new", outcomes[249].version)
        return answer

    monkeypatch.setattr(store, "_page", page_and_write)
    rows = store.scan("k/")
    assert asked == 3 and [row.key for row in rows] == keys
    assert {row.value for row in rows} == {b"old"}
    assert value_of(store, "k/249") == b"new"


# ---- opening ---------------------------------------------------------------------------------------------------------


def test_the_driver_answers_to_its_url_and_promises_everything() -> None:
    assert find_driver("pxrs.stores", "etcd://h/p") is EtcdStore
    assert EtcdStore.guarantees == frozenset(Guarantee)


def test_b68_a_newer_format_is_refused(etcd_server: EtcdServer) -> None:
    place = new_place()
    with operator_of(etcd_server) as operator:
        for value, error in ((b"2", NewerFormat), (b"hello", Damaged)):
            operator.ask("Put", messages.PutRequest(key=f"{place}/format".encode(), value=value))
            with pytest.raises(error, match=place):
                opened(etcd_server.url(place))
        assert [key for key in operator.all_keys() if key.startswith(place.encode())] == [f"{place}/format".encode()]


def test_nobody_there_is_said_with_hosts_and_without_the_password() -> None:
    [port] = free_ports(1)
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as caught:
        opened(f"etcd://me:hush@127.0.0.1:{port}/p?timeout_ms=300")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("etcd:place", "has no host"),
        ("etcd://h:0/p", "no host and port"),
        ("etcd://h/p?lease=1", "no option 'lease'"),
        ("etcd://h/p?timeout_ms=soon", "timeout_ms"),
        ("etcd://h/p?tls=true&tls_verify=false", "tls_verify"),
        ("etcd://h/p?ca=missing.pem", "missing.pem"),
    ],
)
def test_b69_a_bad_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(BadUrl, match=why):
        opened(url)


def test_a_child_is_refused_where_grpc_would_hang(store: EtcdStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")

    def refused() -> bool:
        with pytest.raises(Refused, match="GRPC_ENABLE_FORK_SUPPORT"):
            store.read(["a"])
        return True

    assert in_forked_child(refused, SOON) == 0
    put(store, "a", b"the parent goes on")


def test_the_second_node_is_asked_when_the_first_is_away(etcd_server: EtcdServer) -> None:
    [nobody] = free_ports(1)
    store = opened(f"etcd://127.0.0.1:{nobody},{etcd_server.address}/{new_place()}")
    put(store, "a", b"x")
    mark = store.wait("a", 0, SOON)
    put(store, "ab", b"x")
    assert store.wait("a", mark, SOON) != mark
    store.close()
