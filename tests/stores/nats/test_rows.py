"""Rows in NATS: their keys, markers of deleted ones, expiry, lost answers, large scans."""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from nats.aio.msg import Msg

from pxrs.errors import BadUrl, Mismatch, NewerFormat, Refused, Unavailable
from pxrs.io.clock import SystemClock
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Store, Swap, Verdict, done
from pxrs.stores.nats import bucket as nats_bucket
from pxrs.stores.nats import store as nats_store
from pxrs.stores.nats.bucket import Subjects, key_of, stored_key
from pxrs.stores.nats.store import NatsStore
from pxrs.testing.proxy import Proxy
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.nats import NatsServer
from pxrs.testing.stores.hooks import Background, get, put, swap, value_of
from tests.stores.kinds.places import LONG, SOON, new_place, opened, store_at, store_on
from tests.stores.nats.helpers import ask, edit, losing_swaps_alone

pytestmark = pytest.mark.processes


@pytest.fixture
def bucket() -> str:
    return new_place()


@pytest.fixture
def store(nats_server: NatsServer, bucket: str) -> Iterator[NatsStore]:
    with store_on(nats_server, bucket) as store:
        yield store


def messages(server: NatsServer, bucket: str) -> dict[str, int]:
    """How many messages each subject of the bucket has."""
    info = ask(server.address, f"STREAM.INFO.KV_{bucket}", {"subjects_filter": ">"})
    return dict(info["state"].get("subjects") or {})


# ---- keys ------------------------------------------------------------------------------------------------------------

ODD = ["", "/", "//", "a/", "/a", "a//b", ".", "..", "a.", ".a", "a.b", "=", "=2E", "a=b", "~", "*", ">", "a b", "é\n"]


@pytest.mark.parametrize("key", [*ODD, "/pxrs/orders/billing/partition/00007", "日本/𝄞", "\x00", "%2E", "$KV"])
def test_a_key_is_found_in_its_stored_form(key: str) -> None:
    stored = stored_key(key)
    assert key_of(stored) == key
    assert all(stored.split(".")), "a part of a subject has no characters"
    assert all(c.isascii() and (c.isalnum() or c in "-_=.") for c in stored)


def test_stored_keys_can_be_read() -> None:
    assert stored_key("/pxrs/orders/billing/partition/00007") == "=.pxrs.orders.billing.partition.00007"


def test_the_filter_of_a_prefix_ends_at_its_last_whole_part() -> None:
    subjects = Subjects("b")
    assert subjects.under("/pxrs/q/member/") == "$KV.b.=.pxrs.q.member.>"
    assert subjects.under("/pxrs/q/mem") == "$KV.b.=.pxrs.q.>"
    assert subjects.under("a") == subjects.under("") == subjects.everything


def test_keys_at_the_edges_of_what_nats_takes_are_kept_apart(store: NatsStore) -> None:
    for key in ODD:
        put(store, key, key.encode())
    assert [value_of(store, key) for key in ODD] == [key.encode() for key in ODD]
    assert [row.key for row in store.scan("")] == sorted(ODD)
    assert [row.key for row in store.scan("a")] == sorted(key for key in ODD if key.startswith("a"))
    assert [row.key for row in store.scan("/")] == ["/", "//", "/a"]


def test_a_key_that_is_too_long_is_refused(store: NatsStore) -> None:
    with pytest.raises(Refused, match="too long"):
        put(store, "k" * 3_000, b"x")
    put(store, "k" * 1_900, b"x")


def test_two_buckets_are_apart(nats_server: NatsServer, store: NatsStore) -> None:
    put(store, "a", b"here")
    with store_on(nats_server) as other:
        assert other.scan("") == [] and get(other, "a") is None
        mark = store.wait("", 0, 0.0)
        call = Background(store.wait, "", mark, LONG)
        put(other, "a", b"there")
        assert value_of(store, "a") == b"here"
        assert call.running()
        put(store, "b", b"x")
        call.result(SOON, "a wait in the bucket where something changes")


def test_the_tools_of_nats_see_rows(nats_server: NatsServer, bucket: str, store: NatsStore) -> None:
    version = put(store, "/pxrs/q", b"{}")
    found = ask(nats_server.address, f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.=.pxrs.q"})
    assert found["message"]["seq"] == version and found["message"]["data"] == "e30="


# ---- markers and expiry ----------------------------------------------------------------------------------------------


def test_a_row_is_created_where_one_was_deleted(store: NatsStore) -> None:
    first = put(store, "a", b"1")
    swap(store, "a", first, None)
    second = put(store, "a", b"2")
    assert second > first
    assert swap(store, "a", ABSENT, b"3") == CONFLICT
    assert store.swap_all([Swap("a", second, None), Swap("b", ABSENT, b"x")]).verdict is Verdict.DONE
    assert store.swap_all([Swap("a", ABSENT, b"4"), Swap("c", ABSENT, b"x")]).verdict is Verdict.DONE
    assert store.swap_all([Swap("d", ABSENT, b"x"), Swap("a", ABSENT, b"5")]) == CONFLICT
    assert value_of(store, "a") == b"4" and get(store, "d") is None


def test_a_deleted_row_leaves_one_marker_that_expires(nats_server: NatsServer, bucket: str, store: NatsStore) -> None:
    for _ in range(5):
        swap(store, "a", put(store, "a", b"x"), None)
    assert messages(nats_server, bucket) == {f"$KV.{bucket}.a": 1}
    found = ask(nats_server.address, f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": f"$KV.{bucket}.a"})["message"]
    assert f"{nats_bucket.MARKER_SECONDS}s" in nats_bucket._parsed(b64decode(found["hdrs"]))[nats_bucket.TTL]


def test_a_marker_that_is_gone_does_not_disturb(
    nats_server: NatsServer, bucket: str, store: NatsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_store, "MARKER_SECONDS", 1)
    first = put(store, "a", b"1")
    swap(store, "a", first, None)
    wait_until(lambda: not messages(nats_server, bucket), "the marker expires", SOON)
    assert swap(store, "a", first, b"late") == CONFLICT
    assert put(store, "a", b"2") > first


def test_a_race_to_create_over_a_marker_has_one_winner(nats_server: NatsServer, bucket: str) -> None:
    with store_on(nats_server, bucket) as one, store_on(nats_server, bucket) as other:
        for number in range(10):
            key = f"r/{number}"
            swap(one, key, put(one, key, b"old"), None)
            start = threading.Barrier(4)

            def create(store: Store, value: bytes, key: str = key, start: threading.Barrier = start) -> Verdict:
                start.wait(SOON)
                return swap(store, key, ABSENT, value).verdict

            calls = [Background(create, (one, other)[n % 2], b"%d" % n) for n in range(4)]
            verdicts = [call.result(SOON, "a creator") for call in calls]
            assert sorted(verdict.name for verdict in verdicts) == ["CONFLICT"] * 3 + ["DONE"]
            assert value_of(one, key) == b"%d" % verdicts.index(Verdict.DONE)


def test_a_row_with_a_time_to_live_vanishes_and_wakes(nats_server: NatsServer, bucket: str) -> None:
    with store_on(nats_server, bucket) as store, store_on(nats_server, bucket) as second:
        clock = SystemClock()
        began = clock.monotonic()
        [outcome] = store.swap_each([Swap("m/1", ABSENT, b"x", ttl_ms=2_100)])
        mark = second.wait("m/", 0, 0.0)
        assert value_of(second, "m/1") == b"x"
        while get(second, "m/1") is not None:
            mark = second.wait("m/", mark, LONG)
        assert clock.monotonic() - began >= 2.1, "it vanished before its time"
        assert second.scan("m/") == []
        assert swap(store, "m/1", outcome.version, b"late") == CONFLICT
        assert put(store, "m/1", b"again") > outcome.version


def test_every_beat_prolongs_a_row_and_a_write_without_one_keeps_it(store: NatsStore) -> None:
    clock = SystemClock()
    ends = clock.monotonic() + 5.0
    version, kept = ABSENT, ABSENT
    [kept_outcome] = store.swap_each([Swap("kept", kept, b"x", ttl_ms=2_000)])
    put(store, "kept", b"for ever", kept_outcome.version)
    while clock.monotonic() < ends:
        [outcome] = store.swap_each([Swap("beat", version, b"x", ttl_ms=2_000)])
        assert outcome.verdict is Verdict.DONE, "it vanished although it was written all the time"
        version = outcome.version
    assert value_of(store, "kept") == b"for ever"


def test_rows_of_swap_all_may_have_a_time_to_live(store: NatsStore) -> None:
    swaps = [Swap("m/1", ABSENT, b"x", ttl_ms=1_000), Swap("p/1", ABSENT, b"x")]
    assert store.swap_all(swaps).verdict is Verdict.DONE
    wait_until(lambda: get(store, "m/1") is None, "the row expires", SOON)
    assert value_of(store, "p/1") == b"x"


# ---- lost answers ----------------------------------------------------------------------------------------------------


def test_a_write_whose_answer_was_lost_is_recognised(nats_server: NatsServer, bucket: str) -> None:
    with (
        Proxy("127.0.0.1", nats_server.port) as proxy,
        store_at(f"nats://{proxy.address}/{bucket}?timeout_ms=3000") as store,
    ):
        version = put(store, "b", b"theirs")
        with losing_swaps_alone(store, proxy, "replies"):
            [mine] = store.swap_each([Swap("a", ABSENT, b"mine")])
            [stale] = store.swap_each([Swap("b", version + 100, b"x")])
            together = store.swap_all([Swap("d", ABSENT, b"1"), Swap("e", ABSENT, b"2"), Swap("b", version, None)])
        assert mine == done(get(store, "a").version)  # type: ignore[union-attr]  # it is there
        assert stale.verdict is Verdict.UNKNOWN, "what was refused cannot be told from what is under way"
        assert together == done(get(store, "e").version)  # type: ignore[union-attr]  # the same
        assert get(store, "b") is None


def test_a_swap_after_one_without_an_answer_is_not_sent(nats_server: NatsServer, bucket: str) -> None:
    """The last of them is a bell: it must not ring for something that may not have happened yet."""
    with (
        Proxy("127.0.0.1", nats_server.port) as proxy,
        store_at(f"nats://{proxy.address}/{bucket}?timeout_ms=3000") as store,
    ):
        with losing_swaps_alone(store, proxy, "requests"):
            row, bell = store.swap_each([Swap("a", ABSENT, b"x"), Swap("bell", ABSENT, b"{}")])
        assert (row.verdict, bell.verdict) == (Verdict.UNKNOWN, Verdict.UNKNOWN)
        assert store.scan("") == []


def test_a_write_that_was_never_sent_is_unavailable(nats_server: NatsServer, bucket: str) -> None:
    with (
        Proxy("127.0.0.1", nats_server.port) as proxy,
        store_at(f"nats://{proxy.address}/{bucket}?timeout_ms=500") as store,
    ):
        with proxy.refusing():
            wait_until(lambda: _is_unavailable(store), "the broken connection is noticed", SOON)
        wait_until(lambda: not _is_unavailable(store), "the connection is back", SOON)
        put(store, "a", b"x")


# ---- many and large --------------------------------------------------------------------------------------------------


def test_five_thousand_rows_are_written_read_and_scanned(store: NatsStore) -> None:
    keys = [f"/pxrs/q/g/partition/{number:05d}" for number in range(5_000)]
    outcomes = store.swap_each([Swap(key, ABSENT, key.encode()) for key in keys])
    assert {outcome.verdict for outcome in outcomes} == {Verdict.DONE}
    put(store, "/pxrs/q/g/partition", b"no child")
    rows = store.scan("/pxrs/q/g/partition/")
    assert [row.key for row in rows] == keys
    assert [row.version for row in rows] == [outcome.version for outcome in outcomes]
    assert store.read(keys) == rows


def test_a_scan_of_many_rows_is_never_half_of_a_swap_all(nats_server: NatsServer, bucket: str) -> None:
    """The two rows stand at the two ends of a long scan, and a third outside of it."""
    with store_on(nats_server, bucket) as store, store_on(nats_server, bucket) as second:
        store.swap_each([Swap(f"p/{number:04d}", ABSENT, b"-") for number in range(1, 400)])
        versions = dict.fromkeys(("p/0000", "p/0400", "q/0"), ABSENT)
        ended = threading.Event()
        store.swap_all([Swap(key, ABSENT, b"0") for key in versions])
        reader = Background(_see_ends, second, ended)
        for number in range(1, 40):
            rows = store.read(list(versions))
            swaps = [Swap(row.key, row.version, b"%d" % number) for row in rows if row]
            assert store.swap_all(swaps).verdict is Verdict.DONE
        ended.set()
        assert reader.result(SOON, "the reader") == set()


def test_a_walk_that_ended_inside_of_a_swap_all_goes_on(store: NatsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that shows the first message of a batch before it has stored the others."""
    swaps = [Swap("p/1", put(store, "p/1", b"old"), b"new"), Swap("p/2", ABSENT, b"new"), Swap("q", ABSENT, b"new")]
    first = store.swap_all(swaps).version - 2
    bucket, early_look, early_walk = store._bucket, [True], [True]
    direct, newest_under = bucket._direct, bucket._newest_under

    async def newest_early(subject: str, seconds: float) -> nats_bucket.StoredKey | None:
        found = await newest_under(subject, seconds)
        return found._replace(version=first) if found and early_look and early_look.pop() else found

    async def direct_early(what: Mapping[str, Any]) -> list[Msg]:
        answers = await direct(what)
        return [answers[0], answers[-1]] if early_walk and early_walk.pop() else answers

    monkeypatch.setattr(bucket, "_newest_under", newest_early)
    monkeypatch.setattr(bucket, "_direct", direct_early)
    assert [(row.key, row.value) for row in store.scan("p/")] == [("p/1", b"new"), ("p/2", b"new")]
    assert not early_look and not early_walk


def test_more_rows_than_a_batch_can_hold_are_refused(store: NatsStore) -> None:
    swaps = [Swap(f"r/{number}", ABSENT, b"x") for number in range(1_001)]
    with pytest.raises(Refused, match="1,000"):
        store.swap_all(swaps)
    assert store.scan("") == []
    assert store.swap_all(swaps[:1_000]).verdict is Verdict.DONE


def test_a_row_that_is_too_large_is_refused_before_anything_is_sent(store: NatsStore) -> None:
    with pytest.raises(Refused, match="max_payload"):
        store.swap_each([Swap("a", ABSENT, b"x"), Swap("b", ABSENT, bytes(1_048_576))])
    assert store.scan("") == []


def test_the_same_key_twice_in_one_call_is_judged_in_order(store: NatsStore) -> None:
    version = put(store, "a", b"0")
    outcomes = store.swap_each([Swap("a", version, None), Swap("a", ABSENT, b"1"), Swap("a", version, b"2")])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE, Verdict.DONE, Verdict.CONFLICT]
    version = outcomes[1].version
    assert store.swap_all([Swap("a", version, None), Swap("a", ABSENT, b"3")]).verdict is Verdict.DONE
    assert value_of(store, "a") == b"3"


# ---- opening ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "a.b", "a/b", "b%20c", "b?colour=red", "b?replicas=0"])
def test_bad_urls_are_refused(place: str) -> None:
    with pytest.raises(BadUrl):
        opened(f"nats://127.0.0.1:1/{place}")


def test_a_bucket_of_somebody_else_is_left_alone(nats_server: NatsServer, bucket: str) -> None:
    ask(nats_server.address, f"STREAM.CREATE.KV_{bucket}", {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"]})
    with pytest.raises(Refused, match="no registry of PXRS"):
        opened(nats_server.url(bucket))


@pytest.mark.parametrize(
    "change",
    [{"max_msgs_per_subject": 5}, {"max_age": 3_600_000_000_000}, {"allow_direct": False}, {"allow_atomic": False}],
)
def test_a_bucket_that_was_changed_is_refused_by_name(
    nats_server: NatsServer, bucket: str, change: dict[str, object]
) -> None:
    opened(nats_server.url(bucket)).close()
    answer = edit(nats_server.address, bucket, **change, duplicate_window=1_000_000_000)
    assert "error" not in answer, answer
    with pytest.raises(Refused, match=next(iter(change))):
        opened(nats_server.url(bucket))


def test_a_later_format_is_refused(nats_server: NatsServer, bucket: str) -> None:
    opened(nats_server.url(bucket)).close()
    edit(nats_server.address, bucket, metadata={"pxrs.registry": "2"})
    with pytest.raises(NewerFormat, match="format 2"):
        opened(nats_server.url(bucket))


def test_replicas_need_a_cluster_and_are_kept(nats_server: NatsServer, bucket: str) -> None:
    with pytest.raises(Refused, match="cluster"):
        opened(nats_server.url(bucket, "replicas=3"))
    opened(nats_server.url(bucket, "replicas=1")).close()
    with pytest.raises(Mismatch, match="1 replicas"):
        opened(nats_server.url(bucket, "replicas=3"))


def test_openers_at_the_same_time_agree(nats_server: NatsServer, bucket: str) -> None:
    calls = [Background(NatsStore.open, nats_server.url(bucket), Settings()) for _ in range(6)]
    stores = [call.result(SOON, "an opener") for call in calls]
    put(stores[0], "a", b"x")
    assert {value_of(store, "a") for store in stores} == {b"x"}
    for store in stores:
        store.close()


def _is_unavailable(store: NatsStore) -> bool:
    try:
        store.swap_each([Swap("never", 99, b"x")])
    except Unavailable:
        return True
    return False


def _see_ends(store: Store, ended: threading.Event) -> set[tuple[bytes, bytes]]:
    """The pairs of first and last value that differ."""
    torn = set()
    while not ended.is_set():
        rows = store.scan("p/")
        if len(rows) != 401 or rows[0].value != rows[-1].value:
            torn.add((rows[0].value, rows[-1].value))
    return torn
