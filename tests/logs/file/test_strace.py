"""A process is killed at every single system call that has to do with files, and the next one finds a whole log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pxrs.logs.base import Stamp
from tests.logs.file.strace_child import opened, whole_rows
from tests.logs.file.strace_tools import QUERIES, Zygote, zygote
from tests.logs.helpers import entries, numbered

pytestmark = pytest.mark.processes

KILLED = -9
SMALL = {"segment_bytes": 1, "durability": "fsync"}


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote(tmp_path_factory.mktemp("strace")) as started:
        yield started


def written(queue: Path, segments: int) -> list[dict[str, Any]]:
    """A queue of so many segments with two messages each; returns its messages, whole."""
    log = opened(str(queue), create=True, partitions=1, segment_bytes=1, durability="flush")
    for number in range(segments):
        log.append({0: entries(numbered(2, 2 * number))}, {0: Stamp("w", number)})
    return whole_rows(log)


class Kill:
    """One run that was killed: at which call, and which one of these."""

    def __init__(self, call: str, number: int, queue: Path) -> None:
        self.queue, self.report = queue, queue.parent / "report"
        self._text = f"{call} {number}"

    def __str__(self) -> str:
        return self._text

    def told(self) -> list[str]:
        return self.report.read_text().splitlines() if self.report.exists() else []


def kills(children: Zygote, queue: Path, work: str, **args: Any) -> Iterator[Kill]:
    """Do the work on copies of the queue, killed at each of its calls in turn, until no call is left to kill it at."""
    copy, report = queue.parent / "copy", queue.parent / "report"
    if "report" in args:
        args["report"] = str(report)
    shutil.copytree(queue, copy)
    ended = children.traced(["-e", "trace=%file,%desc"], work, queue=str(copy), **args)
    assert ended.code == 0
    for call in sorted({call.name for call in ended.calls} - QUERIES):
        for number in count(1):
            shutil.rmtree(copy)
            report.unlink(missing_ok=True)
            shutil.copytree(queue, copy)
            code = children.traced(
                ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"], work, queue=str(copy), **args
            ).code
            assert code in (0, KILLED), f"{call} {number}"
            yield Kill(call, number, copy)
            if code == 0:
                break


def accounted_for(found: dict[str, Any]) -> bool:
    """Whether each file is one that the log knows. Indexes are as good as their segments, and may be missing."""
    stored = {name for name, _, _ in found["chunks"]}
    indexes = {name.replace(".arrow", ".index") for name in stored if name.endswith(".arrow")}
    left = set(found["names"]) - stored - {"lock", "housekeeping.lock", "manifest.json"}
    return stored <= set(found["names"]) and left <= indexes


@pytest.mark.slow
def test_sealing_killed_at_every_call_leaves_the_same_messages_and_no_orphan(children: Zygote, tmp_path: Path) -> None:
    queue, seen = tmp_path / "orders", 0
    rows = written(queue, 4)
    for kill in kills(children, queue, "seal"):
        found = children.look(kill.queue)
        assert found["rows"] == rows, kill
        assert (found["bounds"], found["given"], found["last"]) == ((0, 8), 8, [(8, b"after")]), kill
        assert accounted_for(found), (str(kill), found["names"])
        seen += 1
    assert seen > 80


@pytest.mark.slow
def test_sealing_on_top_of_a_seal_that_was_killed_gives_the_same_files(children: Zygote, tmp_path: Path) -> None:
    """Not only the next reader: the next sealer as well."""
    queue, finished = tmp_path / "orders", tmp_path / "finished"
    rows = written(queue, 4)
    shutil.copytree(queue, finished)
    assert children.run("seal", queue=str(finished)) == 0
    names = sorted(path.name for path in (finished / "partition-0").iterdir())
    for call in ("rename", "unlink", "fsync", "write"):
        for number in count(1):
            copy = tmp_path / f"{call}-{number}"
            shutil.copytree(queue, copy)
            inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]
            code = children.traced(inject, "seal", queue=str(copy)).code
            assert children.run("seal", queue=str(copy)) == 0
            assert sorted(path.name for path in (copy / "partition-0").iterdir()) == names, (call, number)
            if code == 0:
                break
        assert number > 2
    assert children.look(copy)["rows"] == rows


@pytest.mark.slow
def test_b39_trimming_killed_at_every_call_deletes_nothing_that_it_does_not_say(
    children: Zygote, tmp_path: Path
) -> None:
    queue = tmp_path / "orders"
    rows = written(queue, 5)
    assert children.run("seal", queue=str(queue)) == 0  # up to offset 6
    starts = set()
    for kill in kills(children, queue, "trim", offset=8):
        found = children.look(kill.queue)
        start = found["bounds"][0]
        starts.add(start)
        assert found["bounds"] == (start, 10) and found["rows"] == rows[start:], kill
        assert found["given"] == 10, kill
        assert accounted_for(found), (str(kill), found["names"])
    assert starts == {0, 8}, "all at once, by the manifest"


@pytest.mark.slow
def test_b28_b36_b62_appending_killed_at_every_call_loses_nothing_and_doubles_nothing(
    children: Zygote, tmp_path: Path
) -> None:
    queue, batches = tmp_path / "orders", 3
    before = written(queue, 2)
    doubts = 0
    for kill in kills(children, queue, "append", report="", first=2, count=batches, **SMALL):
        told = kill.told()
        assert told == [f"{2 + number} given {4 + 2 * number}" for number in range(len(told))], kill
        copy = kill.queue.with_name("resent")
        shutil.copytree(kill.queue, copy)
        found = children.look(kill.queue)
        assert found["rows"][:4] == before and accounted_for(found), (str(kill), found["names"])
        whole = found["given"] - 4 - 2 * len(told)
        assert whole in (0, 2), f"{kill}: acknowledged are {told}, stored is {found['bounds']}"
        assert [row["value"] for row in found["rows"]] == numbered(found["given"])[: len(found["rows"])], kill
        doubts += whole == 2
        left = {"first": 2 + len(told), "count": batches - len(told)}
        assert children.run("append", queue=str(copy), report=str(kill.report), **left, **SMALL) == 0
        assert len(kill.told()) == batches
        assert [row["value"] for row in children.look(copy)["rows"]] == numbered(4 + 2 * batches), f"{kill}: each once"
        shutil.rmtree(copy)
    assert doubts > 5, "some were killed after the write and before the acknowledgement"


@pytest.mark.parametrize(("rolls", "stored_again"), [(0, False), (1, False), (2, True)])
def test_b62_a_retry_after_a_kill_is_recognised_also_when_others_have_opened_a_new_segment(
    children: Zygote, tmp_path: Path, rolls: int, stored_again: bool
) -> None:
    """The window is the active segment and the one before it. Outside of it the batch is stored again, visibly."""
    queue, report = tmp_path / "orders", tmp_path / "report"
    written(queue, 2)
    inject = ["-e", "inject=pwrite64:signal=KILL:when=1"]  # the mark: all is on the disk, nothing was acknowledged
    resend = {"queue": str(queue), "report": str(report), "first": 2, "count": 1, **SMALL}
    assert children.traced(inject, "append", **resend).code == KILLED
    assert not report.exists()
    other = opened(str(queue), segment_bytes=1)
    for number in range(rolls):
        assert other.append({0: entries([b"other"])}) == {0: 6 + number}
    assert children.run("append", **resend) == 0
    assert report.read_text() == f"2 given {6 + rolls if stored_again else 4}\n"
    stored = [row["value"] for row in children.look(queue)["rows"]]
    again = numbered(2, 4) if stored_again else []
    assert stored == [*numbered(6), *[b"other"] * rolls, *again]
