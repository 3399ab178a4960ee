"""What is refused before anything is written: names, other partition counts, settings that contradict each other, rows
of a later version."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.errors import BadName, BadSetting, BadUrl, Damaged, Mismatch, NewerFormat, NotFound, Refused
from pxrs.model import Group, MemberRow, Owner, Partition
from pxrs.rules import row_format as rows
from pxrs.runtime.queue.settings_file import load_settings
from pxrs.settings import Settings
from pxrs.stores.base import Store, Swap
from tests.runtime.support import PATIENT, Recorder, Site, eventually

# ---- names --------------------------------------------------------------------------------------------------------

BAD_NAMES = (
    "../x", "..", ".", "", "a/b", "/x", "C:\\x", "a\\b", "x" * 300, "x\0y", "\0", "x.", ".x", "-x", "a b", " ", "a\n",
    "ü", "\ud800", "x*", "x%2e", "~",
)  # fmt: skip
"""RocketMQ's traversal (B-66) and its relatives."""


def whole(store: Store) -> list[Any]:
    return list(store.scan(""))


@pytest.mark.parametrize("name", BAD_NAMES)
def test_b66_bad_names_of_groups_and_members_are_refused_before_anything_is_written(name: str) -> None:
    with Site(partitions=2) as site:
        for act in (
            lambda: site.queue.consumer(name, print),
            lambda: site.queue.consumer("g", print, member=name),
            lambda: site.queue.group(name),
        ):
            with pytest.raises(BadName):
                act()
        assert whole(site.queue.store) == []


@pytest.mark.parametrize("name", BAD_NAMES)
def test_b66_bad_names_of_members_are_refused_for_commands_too(name: str) -> None:
    with Site(partitions=2) as site:
        site.member("A", Recorder())
        site.await_owners("A")
        before = [row.key for row in whole(site.queue.store)]
        for act in (site.queue.group("g").evict, site.queue.group("g").drain):
            with pytest.raises(Refused):
                act(name)
        assert [row.key for row in whole(site.queue.store)] == before


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name])
def test_b66_bad_names_of_queues_in_memory_are_refused(name: str) -> None:
    with pytest.raises((BadName, BadUrl)):
        pxrs.open(f"memory:{name}")


@pytest.mark.parametrize("name", ["", ".", "..", "x\0y", "x" * 300, "x.", "a b", "/", "x/..", "C:\\x", "-x"])
def test_b66_bad_names_of_queues_on_disk_are_refused_and_leave_no_file(name: str, tmp_path: Path) -> None:
    for create in (True, False):
        with pytest.raises(Refused):
            pxrs.open(f"file:{tmp_path}/{name}" if name not in ("", "/") else f"file:{name}", create=create)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [None, 7, b"x", ["x"], True])
def test_names_of_other_types_are_refused(name: Any) -> None:
    with Site() as site:
        with pytest.raises(BadName):
            site.queue.group(name)
        if name is not None:
            with pytest.raises(BadName):
                site.queue.consumer("g", print, member=name)


def test_b66_names_that_differ_in_case_only_stay_apart() -> None:
    with Site(partitions=1) as site:
        for name in ("Billing", "billing"):
            with site.queue.consumer(name, Recorder()):
                eventually(lambda n=name: n in site.queue.groups(), name)  # type: ignore[misc]  # default of a lambda
        site.queue.group("billing").delete()
        assert site.queue.groups() == ["Billing"]


def test_names_at_the_limits_work() -> None:
    for name in ("x" * 200, "a.b-c_d", "7", "_"):
        with Site(partitions=1) as site:
            handler = Recorder()
            site.send(1)
            with site.queue.consumer(name, handler, member=name):
                eventually(lambda h=handler: len(h) == 1, name)  # type: ignore[misc]  # default of a lambda


def test_a_member_without_a_name_gets_one_of_its_own() -> None:
    with Site() as site:
        names = {site.queue.consumer("g", print).member_id for _ in range(5)}
        assert len(names) == 5


# ---- identity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "both"),
    [
        ({"partitions": 9}, ("8", "9")),
        ({"hash": "sha256"}, ("'xxh64'", "'sha256'")),
        ({"reduce": "jump"}, ("'pmod'", "'jump'")),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_b67_another_partition_count_or_hash_is_refused(
    kind: str, wish: dict[str, Any], both: tuple[str, str], tmp_path: Path
) -> None:
    url = f"file:{tmp_path}/orders" if kind == "file" else f"memory:orders-{tmp_path.name}"
    with pxrs.open(url, partitions=8, hash="xxh64", reduce="pmod") as queue:
        queue.consumer("g", print)
    with pytest.raises(Mismatch) as caught:
        pxrs.open(url, **wish)
    assert all(value in str(caught.value) for value in both)
    with pxrs.open(url) as queue:
        assert (queue.partitions, queue.log.identity.hash, queue.log.identity.reduce) == (8, "xxh64", "pmod")


def test_b67_a_group_row_of_another_log_is_refused(tmp_path: Path) -> None:
    """A registry that is shared, and a log that was recreated with another count: the group's row says so."""
    registry = f"sqlite:{tmp_path}/registry.db"
    with pxrs.open(log=f"file:{tmp_path}/a/orders", registry=registry, partitions=8) as queue:
        queue.make_group("g")
    with (
        pxrs.open(log=f"file:{tmp_path}/b/orders", registry=registry, partitions=4) as queue,
        pytest.raises(Mismatch, match=r"partitions = 8.*4"),
    ):
        queue.consumer("g", print)


def test_a_queue_that_is_not_there_is_not_made_when_it_shall_not_be(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        pxrs.open(f"file:{tmp_path}/orders", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["orders", "", "ftp:x", ":x", "nats://h/x"])
def test_urls_without_a_driver_are_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        pxrs.open(url)


def test_a_queue_is_named_once() -> None:
    with pytest.raises(BadUrl):
        pxrs.open()
    with pytest.raises(BadUrl):
        pxrs.open("memory:", log="memory:")


def test_a_guarantee_that_the_registry_lacks_is_refused() -> None:
    with pytest.raises(Refused, match="DURABLE"):
        pxrs.open("memory:", require=[pxrs.Guarantee.DURABLE])


@pytest.mark.parametrize("partitions", [0, -1, 65_537, 1.5, "8", True])
def test_partition_counts_out_of_range_are_refused(partitions: Any) -> None:
    with pytest.raises(BadSetting):
        pxrs.open("memory:", partitions=partitions)


# ---- rows of other versions ---------------------------------------------------------------------------------------

ROWS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Any]]] = {
    "partition": (lambda: rows.encode_partition(Partition(3)), lambda data: rows.decode_partition(3, data)),
    "member": (lambda: rows.encode_member(MemberRow("A", "1")), lambda data: rows.decode_member("A", data)),
    "group": (lambda: rows.encode_group(Group(8, "xxh64", "pmod")), lambda data: rows.decode_group("g", data)),
}


@pytest.mark.parametrize("kind", ROWS)
def test_b68_a_row_of_a_later_version_is_refused_and_named(kind: str) -> None:
    encode, decode = ROWS[kind]
    later = json.dumps({**json.loads(encode()), "v": 2, "shiny": True}).encode()
    with pytest.raises(NewerFormat, match=kind):
        decode(later)


@pytest.mark.parametrize("kind", ROWS)
def test_b68_an_unknown_field_of_the_same_version_is_tolerated(kind: str) -> None:
    encode, decode = ROWS[kind]
    more = json.dumps({**json.loads(encode()), "shiny": [1, 2]}).encode()
    assert decode(more) == decode(encode())


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"[]", b"\xff", b'{"v": 1}', b'{"v": "1"}', b'"v"', b"7"])
def test_b68_a_damaged_row_is_an_error_that_names_it(kind: str, data: bytes) -> None:
    with pytest.raises(Damaged, match=kind):
        ROWS[kind][1](data)


def test_b68_a_consumer_does_not_write_over_rows_of_a_later_version() -> None:
    with Site(partitions=1) as site:
        site.queue.group("g").registry.initialize(1, site.queue.log.identity.hash, site.queue.log.identity.reduce)
        key = site.queue.group("g").registry.keys.partitions + "00000"
        [row] = site.queue.store.read([key])
        assert row is not None
        later = json.dumps({**json.loads(row.value), "v": 2}).encode()
        site.queue.store.swap_each([Swap(key, row.version, later)])
        consumer = site.queue.consumer("g", Recorder())
        with pytest.raises(NewerFormat, match="format 2"):
            consumer.run()
        [after] = site.queue.store.read([key])
        assert after is not None and after.value == later


# ---- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"lease_ms": -1}, "lease_ms = -1"),
        ({"lease_ms": 0}, "lease_ms = 0"),
        ({"lease_ms": 10}, "at least 50"),
        ({"lease_ms": "10s"}, "must be int"),
        ({"lease_ms": 1.5}, "must be int, not float"),
        ({"lease_ms": None}, "not NoneType"),
        ({"lease_ms": True}, "not bool"),
        ({"beat_ms": 10_000}, "beat_ms = 10000 must be below"),
        ({"beat_ms": 6_666}, "must be below stop_taking_ms"),
        ({"stop_taking_ms": 10_000}, "must be below lease_ms"),
        ({"drain_ms": 30_001}, "must be below revoke_timeout_ms"),
        ({"progress_limit_ms": 9_999}, "must be below progress_limit_ms"),
        ({"batch_bytes": 1 << 30}, "must be below buffer_bytes"),
        ({"backoff_ms": 20_000}, "must be below backoff_max_ms"),
        ({"tries": 0}, "at least 1"),
        ({"commit_every": 0}, "at least 1"),
        ({"metrics_port": 65_536}, "65535"),
        ({"metrics_port": -1}, "at least 0"),
        ({"on_failure": "ignore"}, "'dead-letter', 'skip', 'stop'"),
        ({"durability": "none"}, "'fsync', 'flush'"),
        ({"prefix": 7}, "must be str"),
        ({"lease": 10}, "did you mean"),
        ({"lease-ms": 10}, "did you mean 'lease_ms'"),
        ({"zzz": 1}, "known are"),
        ({7: 1}, "unknown setting 7"),
    ],
)
def test_b69_settings_that_cannot_be_meant_are_refused(wrong: dict[Any, Any], says: str) -> None:
    with pytest.raises(BadSetting, match=says.replace("(", r"\(")):
        Settings.from_mapping(wrong)


def test_b69_derived_settings_follow_the_lease() -> None:
    settings = Settings(lease_ms=3_000)
    assert (settings.beat_ms, settings.stop_taking_ms) == (1_000, 2_000)
    assert settings.with_(lease_ms=600).beat_ms == 200
    assert settings.with_(tries=5).beat_ms == 1_000


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- lease_ms\n", "found list"),
        ("lease_ms\n", "found str"),
        ("lease_ms: 5000\nlease_ms: 6000\n", "'lease_ms' is there twice"),
        ("lease_ms: [\n", "not readable as YAML"),
        ("lease_ms: 5s\n", "must be int"),
        ("lease_ms: -5\n", "at least"),
        ("beat_ms: 9000\nlease_ms: 5000\n", "must be below"),
        ("leese_ms: 5000\n", "did you mean 'lease_ms'"),
        ("a: !!python/object/apply:os.system ['true']\n", "not readable as YAML"),
    ],
)
def test_b69_a_bad_file_is_refused_with_its_name(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "pxrs.yaml"
    path.write_text(text)
    with pytest.raises(BadSetting, match=says) as caught:
        load_settings(str(path), {})
    if says not in ("must be int", "at least", "must be below"):
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_settings_file_sets_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pxrs.yaml"
    path.write_text(text)
    assert load_settings(str(path), {}) == Settings()


def test_b69_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"nowhere\.yaml"):
        load_settings(str(tmp_path / "nowhere.yaml"), {})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(BadSetting, match=r"binary\.yaml"):
        load_settings(str(tmp_path / "binary.yaml"), {})


@pytest.mark.parametrize("text", ["", "ten", "10s", "1e4", "0x10", "1.0", "-1", " "])
def test_b69_garbage_in_the_environment_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match=r"PXRS_LEASE_MS|lease_ms"):
        load_settings(None, {"PXRS_LEASE_MS": text})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PXRS_RETENTION_BYTE", "PXRS_RETENTION_BYTES"),
        ("PXRS_LEASEMS", "PXRS_LEASE_MS"),
        ("PXRS_DURABLITY", "PXRS_DURABILITY"),
    ],
)
def test_b69_a_slip_in_the_environment_is_refused_with_the_name_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(BadSetting, match=rf"{name} .*did you mean {meant}\?"):
        load_settings(None, {name: "3"})


def test_other_names_in_the_environment_are_left_alone() -> None:
    names = ("URL", "SETTINGS", "KEY", "PARTITION", "OFFSET", "TEST_SEED", "HOME", "")
    environ = {f"PXRS_{name}": "3" for name in names if name != "SETTINGS"} | {"RETENTION_BYTE": "3"}
    assert load_settings(None, environ) == Settings()


def test_file_then_environment_then_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pxrs.yaml"
    path.write_text("lease_ms: 5000\ntries: 7\nbackoff_ms: 3\n")
    environ = {"PXRS_SETTINGS": str(path), "PXRS_TRIES": "8", "PXRS_BACKOFF_MS": "4"}
    settings = load_settings(None, environ, backoff_ms=5)
    assert (settings.lease_ms, settings.tries, settings.backoff_ms) == (5_000, 8, 5)
    monkeypatch.setenv("PXRS_LEASE_MS", "2000")
    with pxrs.open("memory:") as queue:
        assert queue.settings.lease_ms == 2_000
    monkeypatch.setenv("PXRS_LEASE_MS", "soon")
    with pytest.raises(BadSetting):
        pxrs.open("memory:")


def test_defaults_are_those_of_the_contract() -> None:
    with pxrs.open("memory:", settings=Settings()) as queue:
        assert queue.partitions == 16
        assert (queue.log.identity.hash, queue.log.identity.reduce) == ("xxh64-spark", "pmod")
        assert (queue.settings.lease_ms, queue.settings.poll_ms, queue.settings.prefix) == (10_000, 10_000, "/pxrs/")


def test_settings_of_one_consumer_can_differ() -> None:
    with Site(settings=PATIENT) as site:
        site.member("A", Recorder(), settings=PATIENT.with_(lease_ms=30_000))
        site.await_owners("A")
        [row] = site.queue.group("g").registry.members()
        assert row.lease_ms == 30_000 and row.owner == Owner("A", row.inc)
