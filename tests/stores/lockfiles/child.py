"""Processes on lock files: ones that strace is put on, ones that end in the worst moment, and members that consume.

python -m tests.stores.lockfiles.child                          waits for work, as ``logs.strace_child`` tells
python -m tests.stores.lockfiles.child consume '{"log": ...}'   does one thing
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import pxrs
from pxrs.errors import PxrsError
from pxrs.io.clock import SystemClock
from pxrs.model import MemberRow, Owner
from pxrs.runtime.registry.registry import Registry
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Swap
from pxrs.stores.lockfiles import directory as lockfiles_place
from pxrs.stores.lockfiles.process import ProcessIdentity, my_life
from pxrs.stores.lockfiles.store import LockFileStore
from tests.logs.file import strace_child

GONE, LATER = "/pxrs/orders/billing/target/1", "/pxrs/orders/billing/target/2"


def opened(place: str | Path) -> LockFileStore:
    return LockFileStore.open(f"lockfiles:{place}", Settings())


def registry_over(store: LockFileStore) -> Registry:
    registry = Registry(store, "orders", "billing", SystemClock())
    registry.initialize(2, "xxh64-spark", "pmod")
    return registry


# --- the work


def swap_together(place: str, report: str, longest: int) -> None:
    """Claim two partitions, take one row away and make another, all or none; tell what became of it."""
    try:
        store = opened(place)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lockfiles_place, "LONGEST", longest)
            outcome = store.swap_all(wishes(store))
    except PxrsError as error:
        strace_child.tell(report, type(error).__name__)
    else:
        strace_child.tell(report, outcome.verdict.name)


def wishes(store: LockFileStore) -> list[Swap]:
    """Both partitions have a checkpoint and an owner afterwards."""
    rows = store.scan("/pxrs/orders/billing/partition/")
    claimed = [Swap(row.key, row.version, _claimed(row.value)) for row in rows]
    gone = store.read([GONE])[0]
    return [*claimed, Swap(GONE, gone.version if gone else ABSENT, None), Swap(LATER, ABSENT, b"new")]


def _claimed(value: bytes) -> bytes:
    return json.dumps(json.loads(value) | {"owner": ["A", "life-1"], "epoch": 1, "checkpoint": 7}).encode()


def claim_and_die(place: str) -> None:
    """Register, claim partition 0, and be killed when its lock file is made and nothing stands in it."""
    registry = registry_over(opened(place))
    registry.register(MemberRow("A", "life-1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lockfiles_place, "write_all", _die)
        registry.claim([0], Owner("A", "life-1"))


def _die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def register_and_wait(place: str) -> None:
    registry_over(opened(place)).register(MemberRow("A", "life-1"))
    print("registered", flush=True)
    signal.pause()


def consume(log: str, registry: str, member: str, **settings: Any) -> None:
    with pxrs.open(log=log, registry=registry, settings=Settings(**settings)) as queue:
        queue.consumer("billing", lambda _: None, member=member).run()


def reuse_a_pid(place: str) -> None:
    """In a PID namespace of its own: a member dies, and another process gets its id. Its row must be void."""
    registry = registry_over(opened(place))
    pid = _member_that_dies(place)
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
    other = os.fork()
    if not other:
        signal.pause()
    here = my_life()
    assert other == pid, "the id was not given again"
    assert here is not None and here.pid != pid
    assert registry.members() == [], "a row stands although its process is dead"
    os.kill(other, signal.SIGKILL)


def _member_that_dies(place: str) -> int:
    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        registry_over(opened(place)).register(MemberRow("A", "life-1"))
        os.write(told, json.dumps(my_life()).encode())
        signal.pause()
    life = ProcessIdentity(*json.loads(os.read(ready, 1_000)))
    members = registry_over(opened(place)).members()
    assert [member.id for member in members] == ["A"], "a row is void although its process lives"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    _wait_for_next_tick(life)
    return pid


def _wait_for_next_tick(life: ProcessIdentity) -> None:
    """Start times count in hundredths of a second; an id does not come round so soon outside of tests."""
    while time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") < life.started + 2:
        os.sched_yield()


WORK: tuple[Callable[..., None], ...] = (
    swap_together,
    claim_and_die,
    register_and_wait,
    consume,
    reuse_a_pid,
)

if __name__ == "__main__":
    strace_child.WORK.update((work.__name__, work) for work in WORK)
    if len(sys.argv) > 1:
        strace_child.WORK[sys.argv[1]](**json.loads(sys.argv[2]))
    else:
        strace_child.main()
