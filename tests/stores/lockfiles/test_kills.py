"""A process is killed, or lied to, at every single system call of a write: rows are all old or all new, never mixed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from pxrs.model import Owner
from pxrs.stores.base import Row
from pxrs.stores.lockfiles.journal import LONGEST
from pxrs.testing.stores.hooks import put
from tests.logs.file.strace_tools import QUERIES, Zygote, need_strace
from tests.stores.lockfiles.child import GONE, LATER, opened, registry_over
from tests.stores.lockfiles.tools import ROOT, rows_shown

pytestmark = [pytest.mark.processes, pytest.mark.slow]

KILLED = -9


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    need_strace()
    command = [sys.executable, "-m", "tests.stores.lockfiles.child"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT
    ) as process:
        yield Zygote(process, tmp_path_factory.mktemp("strace"))
        assert process.stdin is not None
        process.stdin.close()


class Tries:
    """The same write on fresh copies of one registry, each time with something wrong with one of its calls."""

    def __init__(self, children: Zygote, directory: Path, longest: int = LONGEST) -> None:
        self._children = children
        self._longest = longest
        self._original, self._report = directory / "original", directory / "report"
        self.copy = directory / "copy"
        store = opened(self._original)
        registry_over(store)
        put(store, GONE, b"old")
        self.before = values(store.scan(""))
        store.close()

    def run(self, *options: str) -> tuple[int, str, list[str]]:
        """The exit code, what the process told, and the names of its calls."""
        shutil.rmtree(self.copy, ignore_errors=True)
        self._report.unlink(missing_ok=True)
        shutil.copytree(self._original, self.copy)
        args = {"place": str(self.copy), "report": str(self._report), "longest": self._longest}
        ended = self._children.traced([*options], "swap_together", **args)
        told = self._report.read_text().strip() if self._report.exists() else ""
        return ended.code, told, [call.name for call in ended.calls]

    def calls(self) -> list[str]:
        """The calls that have to do with files."""
        code, told, calls = self.run("-e", "trace=%file,%desc")
        assert (code, told) == (0, "DONE")
        return sorted({*calls} - QUERIES)

    def found(self) -> str:
        """Whether a fresh process finds the rows as they were, or as they should be. All else is an error."""
        store = opened(self.copy)
        now, shown = values(store.scan("")), rows_shown(self.copy)
        if now == self.before:
            assert [row.owner for row in shown] == [None, None]
            state = "old"
        else:
            assert {GONE, LATER} & now.keys() == {LATER} and now.keys() - {LATER} == self.before.keys() - {GONE}
            assert [(row.owner, row.checkpoint) for row in shown] == [(Owner("A", "life-1"), 7)] * 2
            state = "new"
        store.close()
        left = sorted(path.name for path in (self.copy / "registry").iterdir() if not path.is_dir())
        assert left == ["format.json", "journal", "mutex", "queue"]
        return state


def values(rows: list[Row]) -> dict[str, bytes]:
    return {row.key: row.value for row in rows}


def test_killed_at_every_call_a_write_of_several_rows_is_done_or_not(children: Zygote, tmp_path: Path) -> None:
    tries = Tries(children, tmp_path)
    seen = []
    for call in tries.calls():
        for number in count(1):
            code, told, _ = tries.run("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}")
            assert code in (0, KILLED), f"{call} {number}"
            state = tries.found()
            assert not told or state == "new", f"{call} {number}: it was told that it is done"
            seen.append(state)
            if code == 0:
                break
    assert seen.count("old") > 20 and seen.count("new") > 20


@pytest.mark.parametrize(
    ("call", "error"), [("write", "ENOSPC"), ("fdatasync", "EIO"), ("rename", "EIO"), ("fsync", "EIO")]
)
def test_an_error_of_the_disk_is_raised_and_stored_messages_are_readable(
    children: Zygote, tmp_path: Path, call: str, error: str
) -> None:
    tries = Tries(children, tmp_path)
    seen = set()
    for number in count(1):
        code, told, calls = tries.run("-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={number}")
        assert code == 0, f"{call} {number}"
        state = tries.found()
        assert (told, state) in {("DONE", "new"), ("Unavailable", "old"), ("UNKNOWN", "old")}, f"{call} {number}"
        seen.add(told)
        if number > len(calls):
            break
    assert "DONE" in seen
    assert call in ("rename", "fsync") or seen & {"Unavailable", "UNKNOWN"}


def test_a_disk_that_takes_less_than_it_is_given_is_noticed(children: Zygote, tmp_path: Path) -> None:
    tries = Tries(children, tmp_path)
    told = set()
    for number in count(1):
        code, said, calls = tries.run("-e", "trace=write", "-e", f"inject=write:retval=1:when={number}")
        assert code == 0
        assert (said, tries.found()) in {("DONE", "new"), ("Unavailable", "old")}, number
        told.add(said)
        if number > len(calls):
            break
    assert told == {"DONE", "Unavailable"}
