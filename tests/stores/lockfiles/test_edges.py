"""Lock files where a small difference matters: whose process a row depends on, and which file is locked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pxrs.io import locks
from pxrs.model import MemberRow
from pxrs.rules.row_format import encode_member
from pxrs.stores.base import Swap
from pxrs.stores.lockfiles.journal import Mutex
from pxrs.stores.lockfiles.process import ProcessIdentity, my_life
from pxrs.stores.lockfiles.rows import FileRow
from pxrs.stores.lockfiles.store import _life_for

KEY = "/pxrs/orders/g/member/A"


def test_a_new_life_of_a_member_depends_on_its_own_process_and_not_on_that_of_the_old_one() -> None:
    """The old process may be about to die: the row of the new one must not go with it."""
    mine = my_life()
    assert mine is not None
    other = ProcessIdentity(*mine)._replace(pid=mine.pid + 1)
    before = FileRow(1, encode_member(MemberRow("A", "life-1")), other)
    beat = Swap(KEY, 1, encode_member(MemberRow("A", "life-1", beat=2)), ttl_ms=10_000)
    new = Swap(KEY, 1, encode_member(MemberRow("A", "life-2")), ttl_ms=10_000)
    assert _life_for(beat, before) == other
    assert _life_for(new, before) == mine


def test_the_lock_that_is_held_is_the_one_that_others_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory was emptied after the file was opened: a lock on what nobody can open keeps nobody out."""
    mutex, sound = Mutex(str(tmp_path / "registry" / "mutex"), 5.0), locks.try_lock
    emptied: list[int] = []

    def empty_first(fd: int) -> bool:
        if not emptied:
            os.unlink(mutex.path)
            emptied.append(fd)
        return sound(fd)

    monkeypatch.setattr(locks, "try_lock", empty_first)
    with mutex.held() as fd:
        assert emptied and os.path.samestat(os.fstat(fd), os.stat(mutex.path))
