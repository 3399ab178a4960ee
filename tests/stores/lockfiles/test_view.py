"""The lock files that people see, and the process on which a member's row depends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pxrs.errors import Refused
from pxrs.io.clock import SystemClock
from pxrs.model import Grant, MemberRow, MemberState, Owner
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held
from pxrs.stores.base import Swap
from pxrs.stores.lockfiles.store import LockFileStore
from pxrs.testing.stores.hooks import put
from tests.stores.lockfiles.child import opened, registry_over
from tests.stores.lockfiles.tools import PATIENCE, ROOT, lock_of, rows_shown

A = Owner("A", "life-1")
IMPORTS = "from pxrs.model import MemberRow; from tests.stores.lockfiles.child import opened, registry_over"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def store(place: Path) -> Iterator[LockFileStore]:
    store = opened(place)
    yield store
    store.close()


def test_a_claim_is_a_lock_file_and_a_checkpoint_an_offset_file(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    assert not (place / "consumer_locks").exists()
    grant = _claim(registry, A)
    lock = lock_of(place, 0)
    assert (lock["owner"], lock["epoch"], lock["pid"]) == ("A", "1", str(os.getpid()))
    assert lock["boot id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert lock["process started"].split()[0] == Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    registry.commit({grant: 42})
    offset = place / "consumer_offsets" / "billing" / "partition-0.offset"
    assert offset.read_text() == "next offset to process: 42\npartition 0 of queue orders, group billing\n"
    assert lock_of(place, 0) == lock
    registry.release({grant: 43})
    assert "next offset to process: 43" in offset.read_text()
    assert list((place / "consumer_locks" / "billing").iterdir()) == []
    assert rows_shown(place)[0].epoch == 2


def _claim(registry: Registry, owner: Owner) -> Grant:
    held = registry.claim([0], owner)[0]
    assert isinstance(held, Held)
    return Grant(0, owner, held.row.epoch)


def test_a_new_life_of_a_member_has_a_new_lock_file(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    _claim(registry, A)
    _claim(registry, Owner("A", "life-2"))
    assert (lock_of(place, 0)["incarnation"], lock_of(place, 0)["epoch"]) == ("life-2", "2")


def test_what_an_operator_writes_leaves_the_claim_with_its_owner(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    _claim(registry, A)
    lock = place / "consumer_locks" / "billing" / "partition-0.lock"
    before = lock.stat()
    registry.pause([0], paused=True)
    assert os.path.samestat(before, lock.stat())
    registry.seek({0: 5}, {})
    assert rows_shown(place)[0].checkpoint == 5 and not lock.exists()


def test_rows_that_are_deleted_or_strange_are_not_shown(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    _claim(registry, A)
    row = store.read(["/pxrs/orders/billing/partition/00000"])[0]
    assert row is not None
    version = put(store, row.key, b"no row of ours", row.version)
    assert list((place / "consumer_locks" / "billing").iterdir()) == []
    put(store, row.key, row.value, version)
    assert lock_of(place, 0)["owner"] == "A"
    [row] = store.scan(row.key)
    store.swap_each([Swap(row.key, row.version, None)])
    assert list((place / "consumer_locks" / "billing").iterdir()) == []


def test_one_directory_serves_one_queue_and_any_number_of_groups(place: Path, store: LockFileStore) -> None:
    registry_over(store)
    Registry(store, "orders", "alerts", SystemClock()).initialize(2, "xxh64-spark", "pmod")
    before = store.scan("")
    with pytest.raises(Refused, match=r"'/pxrs/orders'.*'/pxrs/invoices'.*directory of its own"):
        Registry(store, "invoices", "billing", SystemClock()).initialize(2, "xxh64-spark", "pmod")
    assert store.scan("") == before


# ---- which process a member's row depends on ------------------------------------------------------------------------


@pytest.mark.processes
def test_what_others_write_into_a_members_row_does_not_make_it_theirs(store: LockFileStore, place: Path) -> None:
    registry = registry_over(store)
    registry.register(MemberRow("A", "life-1"))
    _run(f"registry_over(opened({str(place)!r})).drain('A')")
    assert [(member.id, member.state) for member in registry.members()] == [("A", MemberState.LEAVING)]


@pytest.mark.processes
def test_a_mark_of_eviction_outlives_the_operator(store: LockFileStore, place: Path) -> None:
    registry = registry_over(store)
    registry.register(MemberRow("A", "life-1"))
    _run(f"registry_over(opened({str(place)!r})).evict('A', 'evicted-1')")
    assert [member.is_evicted for member in registry.members()] == [True]


@pytest.mark.processes
def test_a_member_with_grace_gets_time_to_come_back(store: LockFileStore, place: Path) -> None:
    _run(
        f"registry = registry_over(opened({str(place)!r})); registry.register(MemberRow('A', 'x', grace_ms=30_000));"
        "registry.register(MemberRow('B', 'x'))"
    )
    assert [member.id for member in registry_over(store).members()] == ["A"]


def _run(code: str) -> None:
    """In a process of its own, which has ended afterwards."""
    subprocess.run([sys.executable, "-c", f"{IMPORTS}; {code}"], check=True, timeout=PATIENCE, cwd=ROOT)
