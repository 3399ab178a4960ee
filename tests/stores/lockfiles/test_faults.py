"""Faults that break registries of lock files elsewhere: stale locks, ids that come again, inherited locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pxrs
from pxrs.errors import Refused, Unavailable
from pxrs.model import MemberRow, Owner
from pxrs.runtime.registry.rows import Held
from pxrs.stores.lockfiles import process as lockfiles_life
from pxrs.stores.lockfiles import store as lockfiles_url
from pxrs.stores.lockfiles.journal import Mutex
from pxrs.stores.lockfiles.process import ProcessIdentity, is_dead, my_life
from pxrs.stores.lockfiles.rows import RowFiles
from pxrs.stores.lockfiles.store import LockFileStore
from pxrs.testing.faults.scenario import eventually
from pxrs.testing.stores.hooks import Background
from pxrs.testing.stores.ownership import expired
from pxrs.testing.stores.sharing import in_forked_child
from tests.stores.lockfiles.child import opened, registry_over
from tests.stores.lockfiles.tools import PATIENCE, ROOT, command, end, lock_of, rows_shown, start

HOUR_MS = 3_600_000
MEMBER = "/pxrs/orders/billing/member/A"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def store(place: Path) -> Iterator[LockFileStore]:
    store = opened(place)
    yield store
    store.close()


def me() -> ProcessIdentity:
    life = my_life()
    assert life is not None
    return life


def rewrite(place: Path, life: ProcessIdentity) -> None:
    """Let the row of member A depend on another process."""
    rows = RowFiles(str(place / "rows"))
    stored = rows.read(MEMBER)
    assert stored is not None and stored.life == me()
    Path(rows.path(MEMBER)).write_bytes(stored._replace(life=life).as_bytes())


@pytest.mark.processes
@pytest.mark.slow
def test_b40_a_killed_member_is_replaced_at_once_and_not_after_its_lease(tmp_path: Path, place: Path) -> None:
    """Lease and poll last an hour: only the death of the process can be what the others act on."""
    log, registry = f"file:{tmp_path / 'orders'}", f"lockfiles:{place}"
    args = {"log": log, "registry": registry, "commit_interval_ms": 20} | {
        "lease_ms": HOUR_MS, "poll_ms": HOUR_MS, "progress_limit_ms": 2 * HOUR_MS, "revoke_timeout_ms": HOUR_MS,
    }  # fmt: skip
    members: dict[str, subprocess.Popen[str]] = {}
    with pxrs.open(log=log, registry=registry, partitions=8) as queue, queue.producer() as producer:
        group = queue.group("billing")

        def shared_by(*names: str) -> bool:
            producer.send("key", b"x")
            owners = [row.owner.id if row.owner else "" for row in rows_shown(place)]
            shares = [owners.count(name) for name in names]  # equal ones: nothing moves any more
            return sum(shares) == len(owners) == 8 and max(shares) - min(shares) <= 1

        try:
            for name in ("A", "B", "C"):
                members[name] = start("consume", member=name, **args)
                eventually(lambda: shared_by(*members), f"{list(members)} share everything")
            for row in rows_shown(place):
                assert row.owner is not None
                assert lock_of(place, row.number)["pid"] == str(members[row.owner.id].pid)
            for name in ("A", "C"):  # the leader, and one that is led
                end(members.pop(name))
                eventually(lambda: shared_by(*members), f"{list(members)} take over what {name} had")
            eventually(lambda: group.describe().total_lag == 0, "everything is processed")
            rows_shown(place)
        finally:
            for process in members.values():
                end(process)


@pytest.mark.processes
def test_b40_a_row_of_a_killed_process_is_void_and_wakes_its_readers(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    holder = start("register_and_wait", place=str(place))
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "registered\n"
        mark = store.wait("nothing/", 0, PATIENCE)
        [member] = registry.members()
        waiting = Background(store.wait, "nothing/", mark, 3_600.0)
        holder.kill()  # nobody asks for its exit code: it stays as a zombie, and is dead all the same
        assert waiting.result(PATIENCE, "a wait while a process dies") != mark
        assert registry.members() == []
        assert registry.register(member) == registry.member("A")
    finally:
        end(holder)


@pytest.mark.processes
def test_a_process_that_died_before_it_could_be_watched_wakes_too(place: Path, store: LockFileStore) -> None:
    holder = start("register_and_wait", place=str(place))
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "registered\n"
        stored = RowFiles(str(place / "rows")).read(MEMBER)
        assert stored is not None and stored.life is not None and stored.life.pid == holder.pid
    finally:
        end(holder)
    mark = store.wait("nothing/", 0, PATIENCE)
    waiting = Background(store.wait, "nothing/", mark, 3_600.0)
    store._deaths.know(stored.life)
    assert waiting.result(PATIENCE, "a wait after a process died") != mark


def test_b41_an_id_with_another_start_time_is_another_process(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    registry.register(MemberRow("A", "life-1"))
    assert [member.id for member in registry.members()] == ["A"]
    rewrite(place, me()._replace(started=me().started - 1))
    assert registry.members() == []
    assert registry.member("A") == Held(None, 0)
    assert not Path(RowFiles(str(place / "rows")).path(MEMBER)).exists(), "what is void goes away"


def test_b41_an_id_of_an_earlier_boot_is_another_process(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    registry.register(MemberRow("A", "life-1"))
    rewrite(place, me()._replace(boot="of-yesterday"))
    assert registry.members() == []


@pytest.mark.processes
def test_b41_a_pid_that_is_given_again_keeps_no_row_alive(place: Path) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespace can be made here; the tests with a written start time stand for it")
    ran = subprocess.run(
        [*unshare, *command("reuse_a_pid", place=str(place))],
        cwd=ROOT, timeout=PATIENCE, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_an_id_of_another_namespace_proves_nothing(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    registry.register(MemberRow("A", "life-1"))
    rewrite(place, ProcessIdentity(2**22 + 1, 1, me().boot, "another-container"))
    assert [member.id for member in registry.members()] == ["A"]


def test_b42_age_proves_nothing(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    registry.register(MemberRow("A", "life-1", lease_ms=1))
    registry.claim([0], Owner("A", "life-1"))
    for path in place.rglob("*"):
        os.utime(path, (0, 0))  # as if everything had stood still for half a century
    assert [member.id for member in registry.members()] == ["A"]
    registry.claim([0], Owner("B", "life-1"))
    assert lock_of(place, 0)["owner"] == "A" and rows_shown(place)[0].owner == Owner("A", "life-1")


@pytest.mark.processes
@pytest.mark.slow
def test_b43_the_mutex_is_never_held_by_two(tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("0")
    code = f"from tests.stores.lockfiles.counter import count_up; count_up({str(tmp_path)!r}, 500)"
    processes = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(8)]
    try:
        assert [process.wait(PATIENCE * 2) for process in processes] == [0] * 8
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert (tmp_path / "counter").read_text() == "4000"
    assert (tmp_path / "mutex").exists()


def test_b43_a_mutex_that_was_deleted_under_its_waiter_is_not_the_one_it_gets(tmp_path: Path) -> None:
    path = tmp_path / "mutex"
    one, two, three = (Mutex(str(path), PATIENCE) for _ in range(3))
    with one.held():
        entered, leave = threading.Event(), threading.Event()
        waiting = Background(_hold, two, entered, leave)
        eventually(lambda: _times_open(path) == 2, "the waiter has it open")
        path.unlink()  # whoever opened it before waits for a file that is gone
        with three.held():
            assert not entered.wait(0.05), "two hold the mutex"
        leave.set()
    waiting.result(PATIENCE, "the waiter gets the new file")


def _times_open(path: Path) -> int:
    """How many descriptors of this process stand for that file."""
    found = path.stat()
    return sum(
        (status.st_dev, status.st_ino) == (found.st_dev, found.st_ino)
        for status in map(_status_of, os.listdir("/proc/self/fd"))
        if status is not None
    )


def _status_of(descriptor: str) -> os.stat_result | None:
    try:
        return os.fstat(int(descriptor))
    except OSError:  # closed meanwhile
        return None


def _hold(mutex: Mutex, entered: threading.Event, leave: threading.Event) -> None:
    with mutex.held():
        entered.set()
        leave.wait(PATIENCE)


@pytest.mark.processes
def test_b44_killed_between_the_lock_file_and_its_text(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    killed = start("claim_and_die", place=str(place))
    assert killed.wait(PATIENCE) == -signal.SIGKILL
    assert (place / "consumer_locks" / "billing" / "partition-0.lock").read_text() == ""
    assert registry.partition(0).owner == Owner("A", "life-1"), "the claim was in the journal"
    assert lock_of(place, 0)["pid"] == str(killed.pid)
    [orphan] = expired(registry)
    assert orphan.owner is not None
    registry.force_release({0: orphan.owner})
    claimed = registry.claim([0], Owner("B", "life-1"))[0]
    assert isinstance(claimed, Held) and lock_of(place, 0)["owner"] == "B"
    assert rows_shown(place)[0].epoch == 3
    end(killed)


def test_b44_a_lock_file_without_a_row_stops_nobody(place: Path, store: LockFileStore) -> None:
    registry = registry_over(store)
    lock = place / "consumer_locks" / "billing" / "partition-1.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text("")
    registry.claim([1], Owner("B", "life-1"))
    assert lock_of(place, 1)["owner"] == "B"


@pytest.mark.parametrize(("number", "name"), [(0x6969, "NFS"), (0xFF534D42, "CIFS"), (0x65735546, "FUSE")])
def test_b45_a_network_file_system_is_refused_unless_allowed(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    """No such file system can be mounted here: only what the kernel says of it is feigned."""
    monkeypatch.setattr(lockfiles_url, "kind_of_file_system", lambda _: number)
    with pytest.raises(Refused, match=rf"{name}.*allow_network=true"):
        opened(place)
    assert not place.exists()
    opened(f"{place}?allow_network=true").close()


def test_b45_on_a_network_another_boot_may_be_another_machine() -> None:
    elsewhere = me()._replace(boot="of-another-machine")
    assert is_dead(elsewhere)
    assert not is_dead(elsewhere, other_machines=True)
    assert is_dead(me()._replace(started=1), other_machines=True)


def test_without_proc_nobody_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = me()._replace(started=1)
    monkeypatch.setattr(lockfiles_life, "my_life", lambda: None)
    assert not is_dead(gone)


def test_b46_a_forked_child_neither_has_nor_frees_its_parents_lock(tmp_path: Path) -> None:
    mutex = Mutex(str(tmp_path / "mutex"), 0.05)
    with mutex.held():
        assert in_forked_child(lambda: _is_refused(mutex)) == 0
        assert in_forked_child(lambda: _is_refused(mutex)) == 0, "the first child freed it"


def test_b46_a_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    mutex = Mutex(str(tmp_path / "mutex"), PATIENCE)
    with mutex.held():
        child = os.fork()
        if not child:
            signal.pause()
    try:
        with Mutex(str(tmp_path / "mutex"), 1.0).held():
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _is_refused(mutex: Mutex) -> bool:
    mutex.after_fork()
    try:
        with mutex.held():
            return False
    except Unavailable:
        return True


def test_b46_a_member_in_a_forked_child_is_a_process_of_its_own(store: LockFileStore) -> None:
    registry = registry_over(store)
    assert in_forked_child(lambda: bool(registry.register(MemberRow("A", "life-1")))) == 0
    assert registry.members() == [], "the child has ended, and the row did not depend on its parent"
