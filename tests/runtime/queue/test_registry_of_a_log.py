"""A log knows its registry: under another one nobody consumes and nothing is deleted. Looking makes nothing."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import xxhash

import pxrs
from pxrs.errors import BadSetting, BadUrl, Damaged, Mismatch, NotFound, PxrsError, Refused
from pxrs.logs.base import OwnRegistry
from pxrs.runtime.queue.log_registry import LogRegistry, as_copied, id_key
from pxrs.stores.base import ABSENT, Swap
from pxrs.stores.memory import MemoryStore, SharedRows
from tests.runtime.queue.old_version import consume_with_0_5
from tests.runtime.support import eventually

IDLE: dict[str, Any] = {"housekeeping_ms": 3_600_000, "seal": "manual", "delete_delay_ms": 0, "linger_ms": 0}
SMALL = pxrs.Settings(**IDLE, segment_bytes=1, batch_rows=10, retain="unconsumed")


@pytest.fixture(autouse=True)
def no_registry_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PXRS_REGISTRY", raising=False)


@pytest.fixture
def log(tmp_path: Path) -> str:
    return f"file:{tmp_path}/orders"


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The registry of the real groups."""
    return f"sqlite:{tmp_path}/own.db"


def fill(queue: pxrs.Queue, segments: int) -> None:
    """So many segments, of ten messages each, in the one partition."""
    with queue.producer() as producer:
        for _ in range(segments):
            for _ in range(10):
                producer.send("k", b"v")
            producer.flush()


def consume(queue: pxrs.Queue, group: str = "billing") -> None:
    """A member that starts, and leaves."""
    with queue.consumer(group, lambda _: None):
        pass


def files(tmp_path: Path) -> list[str]:
    """All but messages."""
    found = (path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if "partition-" not in str(path))


def make_old(directory: Path) -> None:
    """Let a queue look as 0.5 has made it."""
    path = directory / "queue.json"
    values = json.loads(path.read_text())
    del values["registry"], values["xxh3"]
    values["xxh3"] = xxhash.xxh3_64_hexdigest(json.dumps(values, sort_keys=True).encode())
    path.write_text(json.dumps(values))
    (directory / "registry.json").unlink(missing_ok=True)


# ---- another registry is refused ------------------------------------------------------------------------------------


def test_a_program_that_forgets_the_registry_deletes_nothing(tmp_path: Path, log: str, own: str) -> None:
    """What the real group has still to read stays, although another registry knows of no such group."""
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        fill(queue, 6)
        consume(queue)
        queue.group("billing").seek({0: 0})
    with pxrs.open(log, settings=SMALL) as forgetful:
        with pytest.raises(Mismatch, match=r"belongs to sqlite:.*own\.db .*opened with registry\.db beside the log"):
            forgetful.consumer("billing", print)
        fill(forgetful, 1)
        done = forgetful.housekeep()
        assert done.trimmed == {} and "nothing is deleted: queue 'orders' belongs to" in done.troubles["retention"]
        assert forgetful.log.bounds(0) == (0, 70)
    assert not (tmp_path / "orders" / "registry.db").exists()


def test_not_even_with_groups_of_its_own_in_the_other_registry(log: str, own: str) -> None:
    """As a program of 0.5 makes them: they say that all is consumed, and the real group needs all."""
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        fill(queue, 6)
        consume(queue)
        queue.group("billing").seek({0: 0})
    with pxrs.open(log, settings=SMALL) as forgetful:
        known = forgetful.log.identity
        group = forgetful.group("billing")
        group.registry.initialize(known.partitions, known.hash, known.reduce, log=known.id)
        group.seek({0: 60})
        assert forgetful.housekeep().trimmed == {} and forgetful.log.bounds(0)[0] == 0
    with pxrs.open(log=log, registry=own, settings=SMALL) as queue:
        queue.group("billing").seek({0: 60})
        assert queue.housekeep().trimmed == {0: (0, 40)}


def test_the_id_is_in_log_and_registry_with_the_first_group(tmp_path: Path, log: str, own: str) -> None:
    with pxrs.open(log=log, registry=own, partitions=1) as queue:
        assert queue.log.registry() == OwnRegistry()
        consume(queue)
        row = queue.store.read([id_key("/pxrs/", "orders")])[0]
        recorded = queue.log.registry()
        assert row is not None and recorded == OwnRegistry(json.loads(row.value)["id"], own)
        consume(queue, "audit")
        assert queue.log.registry() == recorded, "other groups change nothing"


def test_the_embedded_registry_is_recorded_too(tmp_path: Path, log: str, own: str) -> None:
    with pxrs.open(log, partitions=1) as queue:
        consume(queue)
    with pxrs.open(log=log, registry=own) as other, pytest.raises(Mismatch, match=r"belongs to registry\.db beside"):
        other.consumer("billing", print)
    assert not (tmp_path / "own.db").exists()
    with pxrs.open(log=log, registry=f"sqlite:{tmp_path}/orders/registry.db") as same:
        consume(same)


def test_a_directory_that_was_moved_whole_keeps_its_registry(tmp_path: Path, log: str) -> None:
    with pxrs.open(log, partitions=1) as queue:
        consume(queue)
    os.makedirs(tmp_path / "elsewhere")
    os.rename(tmp_path / "orders", tmp_path / "elsewhere" / "orders")
    with pxrs.open(f"file:{tmp_path}/elsewhere/orders") as queue:
        consume(queue)


def test_of_two_first_groups_in_two_registries_one_is_refused(log: str, own: str, tmp_path: Path) -> None:
    """Both have looked and found nothing recorded before either wrote."""
    with (
        pxrs.open(log=log, registry=own, partitions=1) as one,
        pxrs.open(log=log, registry=f"sqlite:{tmp_path}/two.db") as two,
    ):
        first, second = one.consumer("billing", print), two.consumer("billing", print)
        outcomes: list[PxrsError | None] = []
        together = threading.Barrier(2)

        def start(consumer: Any) -> None:
            together.wait(30)
            try:
                consumer.start().stop()
                outcomes.append(None)
            except Mismatch as error:
                outcomes.append(error)

        threads = [threading.Thread(target=start, args=(consumer,)) for consumer in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(map(bool, outcomes)) == [False, True], outcomes


def test_the_later_of_two_writers_learns_that_it_was_second(log: str, own: str, tmp_path: Path) -> None:
    with (
        pxrs.open(log=log, registry=own, partitions=1) as one,
        pxrs.open(log=log, registry=f"sqlite:{tmp_path}/two.db") as two,
    ):
        late = LogRegistry(two.log, two.store, "/pxrs/", "two.db")
        late.check = lambda: OwnRegistry()  # type: ignore[method-assign]  # it has looked before the other wrote
        consume(one)
        with pytest.raises(Mismatch, match=r"belongs to sqlite:.*own\.db"):
            late.record()


def test_a_wiped_registry_is_named_and_adopting_is_the_way_out(log: str, own: str, caplog: Any) -> None:
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        fill(queue, 1)
        consume(queue)
        queue.store.swap_all([Swap(row.key, row.version, None) for row in queue.store.scan("")])
    with pxrs.open(log=log, registry=own, settings=SMALL) as queue:
        with pytest.raises(Mismatch, match=r"has no id for this queue now: it was wiped.*pxrs registry adopt"):
            queue.consumer("billing", print)
        assert "nothing is deleted" in queue.housekeep().troubles["retention"]
        queue.adopt_registry()
        with caplog.at_level(logging.INFO, "pxrs.group"):
            consume(queue)
        assert "made this group anew" in caplog.text and "WARNING" in caplog.text


def test_a_look_at_another_registry_says_so_and_goes_on(log: str, own: str, caplog: Any) -> None:
    with pxrs.open(log=log, registry=own, partitions=1) as queue:
        consume(queue)
    with pxrs.open(log) as other:
        assert other.groups() == [] == other.groups()
    assert len([record for record in caplog.records if "belongs to sqlite:" in record.message]) == 1


def test_a_damaged_record_stops_deletion_and_names_the_way_out(tmp_path: Path, log: str, own: str) -> None:
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        consume(queue)
        path = tmp_path / "orders" / "registry.json"
        path.write_text(path.read_text().replace("own.db", "oil.db"))
        with pytest.raises(Damaged, match=r"registry\.json is damaged: its checksum.*pxrs registry adopt"):
            queue.consumer("billing", print)
        assert "registry.json is damaged" in queue.housekeep().troubles["retention"]
        queue.adopt_registry()
        consume(queue)


def test_another_prefix_is_another_registry(log: str, own: str) -> None:
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        consume(queue)
    with pxrs.open(log=log, registry=own, settings=SMALL.with_(prefix="/other/")) as other:
        assert "nothing is deleted" in other.housekeep().troubles["retention"]
        with pytest.raises(Mismatch, match="has no id for this queue"):
            other.consumer("billing", print)


# ---- registries in memory -------------------------------------------------------------------------------------------


def test_a_registry_in_memory_is_never_recorded_and_deletes_nothing(tmp_path: Path, log: str) -> None:
    with pxrs.open(log=log, registry="memory:", partitions=1, settings=SMALL) as queue:
        fill(queue, 6)
        consume(queue)
        queue.group("billing").seek({0: 60})
        done = queue.housekeep()
        assert done.trimmed == {} and "a registry in memory" in done.troubles["retention"]
    assert not (tmp_path / "orders" / "registry.json").exists()
    with pxrs.open(log) as queue:
        consume(queue)
    with pxrs.open(log=log, registry="memory:") as queue, pytest.raises(Mismatch, match=r"in memory.*queue\.subscribe"):
        queue.consumer("billing", print)


def test_a_log_in_memory_has_its_registry_there_and_is_trimmed() -> None:
    with pxrs.open("memory:trimmed-orders", partitions=1, settings=SMALL) as queue:
        fill(queue, 6)
        consume(queue)
        queue.group("billing").seek({0: 60})
        assert queue.housekeep().trimmed == {0: (0, 40)}


# ---- logs of 0.5 ----------------------------------------------------------------------------------------------------


def test_a_log_of_0_5_is_not_trimmed_until_its_registry_is_recorded(tmp_path: Path, log: str, own: str) -> None:
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        fill(queue, 6)
        known = queue.log.identity
        queue.group("billing").registry.initialize(known.partitions, known.hash, known.reduce, log=known.id)
        queue.group("billing").seek({0: 60})
        make_old(tmp_path / "orders")
        done = queue.housekeep()
        assert done.trimmed == {} and "not recorded yet" in done.troubles["retention"]
        consume(queue)
        assert queue.housekeep().trimmed == {0: (0, 40)}


def test_nor_is_a_new_log_while_its_groups_are_of_0_5(log: str, own: str) -> None:
    """They record nothing, so that there may be others, in another registry."""
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        fill(queue, 6)
        known = queue.log.identity
        queue.group("billing").registry.initialize(known.partitions, known.hash, known.reduce, log=known.id)
        queue.group("billing").seek({0: 60})
        assert queue.log.registry() == OwnRegistry()
        assert "not recorded yet" in queue.housekeep().troubles["retention"] and queue.log.bounds(0)[0] == 0
        consume(queue)
        assert queue.housekeep().trimmed == {0: (0, 40)}


def test_a_new_log_without_groups_is_trimmed_by_age(log: str) -> None:
    """Nobody has consumed it: there is nothing to protect, and nothing to record."""
    settings = pxrs.Settings(**IDLE, segment_bytes=1, batch_rows=10, retention_bytes=1)
    with pxrs.open(log, partitions=1, settings=settings) as queue:
        fill(queue, 6)
        assert queue.housekeep().trimmed == {0: (0, 40)}


def test_no_registry_is_made_beside_a_log_whose_dead_letters_show_a_group(tmp_path: Path, log: str, own: str) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no")

    settings = pxrs.Settings(**IDLE, tries=1)
    with pxrs.open(log=log, registry=own, partitions=1, settings=settings) as queue:
        fill(queue, 1)
        with queue.consumer("billing", fail) as consumer:
            eventually(lambda: consumer.tally.dead_lettered == 10, "all ten are put aside")
    make_old(tmp_path / "orders")
    with pxrs.open(log) as forgetful, pytest.raises(Mismatch, match=r"consumed before, by group 'billing'.*PXRS_REG"):
        forgetful.consumer("audit", print)
    assert not (tmp_path / "orders" / "registry.db").exists()
    with pxrs.open(log=log, registry=own) as queue:
        consume(queue)


def test_nor_where_staged_output_of_this_log_shows_one(tmp_path: Path, log: str) -> None:
    with pxrs.open(log, partitions=1) as queue:
        plans = tmp_path / "orders" / "_staging" / "plans"
        plans.mkdir(parents=True)
        plan = {"format": 1, "queue": "orders", "log": queue.log.identity.id, "group": "billing", "epochs": {}}
        (plans / "other.json").write_text(json.dumps({**plan, "log": "another"}))
        queue.check_registry()
        (plans / "batch.json").write_text(json.dumps(plan))
        with pytest.raises(Mismatch, match="by group 'billing'"):
            queue.consumer("audit", print)


def test_beside_0_5_1_the_record_harms_nobody(tmp_path: Path, log: str, own: str) -> None:
    """What 0.5.1 has made is taken over; and it reads, consumes and dumps what has a record."""
    assert consume_with_0_5(log, own) == "['old']"
    with pxrs.open(log=log, registry=own) as queue:
        assert queue.log.registry() is None
        consume(queue, "new")
        recorded = queue.log.registry()
        assert recorded is not None and recorded.id
    assert consume_with_0_5(log, own) == "['new', 'old']"
    with pxrs.open(log=log, registry=own) as queue:
        assert queue.log.registry() == recorded
        consume(queue, "new")


# ---- nothing is made before it is needed ----------------------------------------------------------------------------


def test_looking_and_sending_make_no_registry(tmp_path: Path, log: str) -> None:
    with pxrs.open(log, partitions=1) as queue:
        with queue.producer() as producer:
            producer.send("k", b"v")
        assert queue.groups() == [] and queue.ends() == {0: 1} and len(queue.read(0, 0)) == 1
        with pytest.raises(NotFound):
            queue.group("billing").describe()
        assert queue.store.wait("/pxrs/", 0, 0.0) == 1 == queue.store.wait("/pxrs/", 1, 0.0)
    assert files(tmp_path) == ["orders/queue.json"]


def test_a_consumer_makes_nothing_before_its_start(tmp_path: Path, log: str) -> None:
    with pxrs.open(log, partitions=1) as queue:
        consumer = queue.consumer("billing", print, "A")
        assert queue.groups() == [] and files(tmp_path) == ["orders/queue.json"]
        consumer.start()
        assert queue.groups() == ["billing"]
        consumer.stop()
    assert {"orders/registry.db", "orders/registry.json"} <= set(files(tmp_path))


@pytest.mark.parametrize("scheme", ["sqlite", "lockfiles"])
def test_a_registry_that_another_process_makes_meanwhile_is_seen(tmp_path: Path, log: str, scheme: str) -> None:
    registry = f"{scheme}:{tmp_path}/own"
    with pxrs.open(log=log, registry=registry, partitions=1) as waiting, pxrs.open(log=log, registry=registry) as other:
        assert waiting.groups() == [] and not (tmp_path / "own").exists()
        consume(other)
        assert waiting.groups() == ["billing"]
        consume(waiting)


@pytest.mark.parametrize("registry", ["sqlite:./own.db", "lockfiles:./own", None])
def test_a_registry_is_made_where_it_was_named_also_if_the_process_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: str | None
) -> None:
    """As daemons do, between opening and starting. It was made in the other directory, or nowhere."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    places = {"url": "file:./orders"} if registry is None else {"log": "file:./orders", "registry": registry}
    with pxrs.open(**places, partitions=1, settings=SMALL) as queue:  # type: ignore[arg-type]  # strings
        monkeypatch.chdir(tmp_path / "other")
        consume(queue)
    assert os.path.exists(tmp_path / (registry.partition("./")[2] if registry else "orders/registry.db"))
    assert os.listdir(tmp_path / "other") == []


def test_a_registry_that_cannot_be_leaves_no_queue_behind(tmp_path: Path, log: str) -> None:
    for registry in ("sqlite:/nowhere/at/all.db", "lockfiles:/nowhere/at/all", "nowhere:x"):
        with pytest.raises(Refused):
            pxrs.open(log=log, registry=f"{registry}")
    assert list(tmp_path.iterdir()) == []
    with pxrs.open(log=log, registry=f"sqlite:{tmp_path}/orders/mine.db", partitions=1) as queue:
        consume(queue)
    assert (tmp_path / "orders" / "mine.db").exists()


def test_a_log_that_cannot_be_written_to_is_consumed_without_a_record(
    log: str, own: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    def create_file(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with pxrs.open(log=log, registry=own, partitions=1) as queue:
        monkeypatch.setattr("pxrs.logs.file.queue_file.create_file", create_file)
        consume(queue)
        assert queue.groups() == ["billing"] and queue.log.registry() == OwnRegistry()
    assert "its registry is not recorded" in caplog.text


# ---- how it is said -------------------------------------------------------------------------------------------------


def test_a_new_group_over_messages_is_a_note_and_no_warning(log: str, caplog: Any) -> None:
    with pxrs.open(log, partitions=1) as queue, caplog.at_level(logging.INFO, "pxrs.group"):
        fill(queue, 1)
        consume(queue)
    told = [record for record in caplog.records if "made this group" in record.message]
    assert [record.levelname for record in told] == ["INFO"] and "10 messages" in told[0].message


def test_the_environment_names_the_registry(log: str, own: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PXRS_REGISTRY", own)
    with pxrs.open(log, partitions=1) as queue:
        consume(queue)
    assert (tmp_path / "own.db").exists() and not (tmp_path / "orders" / "registry.db").exists()
    with pxrs.open("memory:", partitions=1) as queue:
        consume(queue, "in-memory")
        assert isinstance(queue.store, MemoryStore), "a queue in memory has its registry there"
    with (
        pxrs.open(log=log, registry=f"sqlite:{tmp_path}/other.db") as queue,
        pytest.raises(Mismatch, match=r"opened with sqlite:.*other\.db"),
    ):
        queue.consumer("billing", print)  # what is named goes before the environment


def test_an_unknown_log_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadUrl, match=r"no driver for 'kafka' .*there are: file, memory, nats"):
        pxrs.open("kafka:orders")
    with pytest.raises(BadUrl, match=r"--registry sqlite:PATH in the shell, or PXRS_REGISTRY"):
        pxrs.open("nats://127.0.0.1:1/orders")


def test_one_guarantee_is_one_word(log: str) -> None:
    pxrs.open(log, partitions=1, require="durable").close()
    with pytest.raises(Refused, match="does not guarantee ACROSS_HOSTS"):
        pxrs.open(log, require="across hosts")
    with pytest.raises(BadSetting, match="'lasting'"):
        pxrs.open(log, require="lasting")


def test_a_damaged_queue_json_names_the_file_and_the_way_out(tmp_path: Path, log: str) -> None:
    pxrs.open(log, partitions=1).close()
    path = tmp_path / "orders" / "queue.json"
    whole = json.loads(path.read_text())
    for content in ("", "[1]", "{}", json.dumps({k: v for k, v in whole.items() if k != "xxh3"}), "[" * 100_000):
        path.write_text(content)
        with pytest.raises(Damaged, match=r"queue\.json is damaged: .*put it back from a copy"):
            pxrs.open(log)


def test_a_damaged_registry_db_names_the_file_and_the_way_out(tmp_path: Path, log: str) -> None:
    with pxrs.open(log, partitions=1) as queue:
        consume(queue)
    copy = tmp_path / "copy" / "orders"  # no connection of this process is open there
    shutil.copytree(tmp_path / "orders", copy, ignore=shutil.ignore_patterns("*-wal", "*-shm", "*-bell"))
    (copy / "registry.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(Damaged, match=r"registry\.db is no database of ours.*pxrs registry adopt"):
        pxrs.open(f"file:{copy}")
    (copy / "registry.db").unlink()
    with pxrs.open(f"file:{copy}") as queue:
        queue.adopt_registry()
        consume(queue)


# ---- the id in the registry -----------------------------------------------------------------------------------------


def test_a_crash_between_log_and_row_does_not_lose_the_registry(log: str, own: str) -> None:
    """The log has the new id, the registry has it as the next one only: the next start writes it."""
    with pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue:
        consume(queue)
        row, key = queue.store.read([id_key(SMALL.prefix, queue.name)])[0], id_key(SMALL.prefix, queue.name)
        assert row is not None
        queue.store.swap_each([Swap(key, row.version, as_copied(row.value))])
        belonging = queue._belonging(SMALL)
        belonging._settle = lambda *_: None  # type: ignore[method-assign]  # it dies there
        new = belonging.record()
        assert new.id != json.loads(row.value)["id"] and "is a copy" in belonging.why_not_trim()
        consume(queue)
        there = queue.store.read([key])[0]
        assert there is not None and json.loads(there.value) == {"format": 1, "id": new.id}
        assert queue.log.registry() == new and queue._belonging(SMALL).why_not_trim() == ""


def test_of_two_copies_with_consumers_at_once_one_is_refused(log: str, own: str, tmp_path: Path) -> None:
    other = f"sqlite:{tmp_path}/other.db"
    with (
        pxrs.open(log=log, registry=own, partitions=1, settings=SMALL) as queue,
        pxrs.open(log=log, registry=other, settings=SMALL) as copy,
    ):
        consume(queue)
        row, key = queue.store.read([id_key(SMALL.prefix, queue.name)])[0], id_key(SMALL.prefix, queue.name)
        assert row is not None
        queue.store.swap_each([Swap(key, row.version, as_copied(row.value))])
        copy.store.swap_each([Swap(key, ABSENT, as_copied(row.value))])
        late = copy._belonging(SMALL)
        recorded = late.check()
        assert recorded is not None
        consume(queue)
        with pytest.raises(Mismatch, match=r"own\.db"):  # both had seen the common id; the log takes one new one
            late._write(recorded, late._wanted(recorded, late._own()))
        with pytest.raises(Mismatch, match=r"own\.db"):
            consume(copy)


def test_the_first_of_two_ids_counts(log: str) -> None:
    table = SharedRows()
    with pxrs.open("memory:first-id", partitions=1) as queue:
        one, two = (LogRegistry(queue.log, MemoryStore(table), "/pxrs/") for _ in range(2))
        assert one.record() == two.record()


def test_a_spoilt_id_is_damaged_and_adopting_writes_it_anew() -> None:
    with pxrs.open("memory:spoilt-id", partitions=1) as queue:
        key = id_key("/pxrs/", "spoilt-id")
        for value in (b"{", b"[]", b'{"format": 1, "id": 7}', b'{"format": 1}'):
            row = queue.store.read([key])[0]
            queue.store.swap_each([Swap(key, row.version if row else 0, value)])
            with pytest.raises(Damaged, match="_registry/id is damaged"):
                consume(queue)
        queue.adopt_registry()
        consume(queue)


def test_dead_letters_are_not_sent_again_under_another_registry(log: str, own: str, tmp_path: Path) -> None:
    with pxrs.open(log, registry=own, partitions=1, settings=pxrs.Settings(**IDLE, tries=1)) as queue:
        with queue.producer() as producer:
            producer.send("k", b"bad")

        def fail(_: Any) -> None:
            raise ValueError("bad")

        with queue.consumer("billing", fail):
            eventually(lambda: queue.group("billing").dead_letters.waiting().letters == 1, "a dead letter")
    with pxrs.open(log, registry=f"sqlite:{tmp_path}/other.db", settings=pxrs.Settings(**IDLE)) as queue:
        with pytest.raises(Mismatch, match=r"belongs to .*own\.db"):
            queue.group("billing").dead_letters.retry()
        assert sum(queue.ends().values()) == 1, "nothing was sent"
