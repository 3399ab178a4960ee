"""The kernel says no, or less than the truth, to a real process: errors at single system calls, and a full disk.

Also the order of system calls, as the kernel sees it: what is acknowledged was synced, what is renamed was synced
before and its directory after.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from pxrs.errors import Damaged, Unavailable
from pxrs.logs.base import OpenOptions
from pxrs.logs.file.log import FileLog
from pxrs.settings import Settings
from tests.logs.file.strace_child import opened
from tests.logs.file.strace_tools import Call, Zygote, zygote
from tests.logs.file.test_strace import accounted_for, written
from tests.logs.helpers import entries, numbered, read_all

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with zygote(tmp_path_factory.mktemp("strace")) as started:
        yield started


def create(queue: Path, partitions: int = 1) -> Path:
    opened(str(queue), create=True, partitions=partitions).close()
    return queue


def values(found: dict[str, list[dict[str, bytes]]]) -> list[bytes]:
    return [row["value"] for row in found["rows"]]


def appended(children: Zygote, queue: Path, inject: str, batches: int = 5, **settings: object) -> list[str]:
    """What a process is told that appends so many batches while the kernel answers like that."""
    report = queue.with_name("report")
    report.unlink(missing_ok=True)
    ended = children.traced(
        ["-e", f"inject={inject}"], "append", queue=str(queue), report=str(report), first=0, count=batches, **settings
    )
    assert ended.code == 0
    return report.read_text().splitlines()


# --- errors


def test_b31_after_a_failed_sync_nothing_is_acknowledged(children: Zygote, tmp_path: Path) -> None:
    queue = create(tmp_path / "orders")
    told = appended(children, queue, "fdatasync:error=EIO:when=2")
    assert told[0] == "0 given 0"
    assert len(told) == 5, told
    for line in told[1:]:  # the third sync would "succeed"
        assert re.match(r"\d Damaged: queue 'orders', partition 0: .*Input/output error.*open the queue anew", line)
    found = children.look(queue)
    assert values(found) == numbered(2), "what may not be on the disk is not in the log"
    assert found["given"] == 2 and accounted_for(found)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_b31_b35_a_segment_whose_name_could_not_be_synced_is_not_used(
    children: Zygote, tmp_path: Path, number: int
) -> None:
    """Two segments are made, each with a sync of its file and one of the directory; one of these fails."""
    queue = create(tmp_path / "orders")
    told = appended(children, queue, f"fsync:error=EIO:when={number}", 3, segment_bytes=1)
    refused = (number - 1) // 2
    assert re.match(rf"{refused} Unavailable: .*no new segment could be made: .*Input/output error", told[refused])
    given = [line for line in told if "given" in line]
    assert len(given) == 2 and len(told) == 3
    found = children.look(queue)
    stored = [sequence for sequence in range(3) if sequence != refused]
    assert values(found) == [value for sequence in stored for value in numbered(2, 2 * sequence)]
    assert accounted_for(found)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EDQUOT"])
def test_b30_a_write_that_fails_stores_nothing_and_the_next_goes_on(
    children: Zygote, tmp_path: Path, error: str
) -> None:
    queue = create(tmp_path / "orders")
    told = appended(children, queue, f"write:error={error}:when=3")  # the first one is that of the new segment
    assert [line.split(":")[0] for line in told] == [
        "0 given 0",
        "1 Unavailable",
        "2 given 2",
        "3 given 4",
        "4 given 6",
    ]
    assert "nothing was stored" in told[1]
    found = children.look(queue)
    assert values(found) == numbered(2) + numbered(6, 4) and accounted_for(found)


@pytest.mark.parametrize("number", range(1, 9))
def test_b33_a_write_that_is_said_to_be_done_in_part_and_was_not_is_noticed(
    children: Zygote, tmp_path: Path, number: int
) -> None:
    """The kernel says 37 bytes, and has written none. What is acknowledged is there, whole."""
    queue = create(tmp_path / "orders")
    told = appended(children, queue, f"write:retval=37:when={number}", 4, segment_bytes=1)
    acknowledged = [int(line.split()[0]) for line in told if "given" in line]
    assert len(told) == 4 and len(acknowledged) >= 3
    found = children.look(queue)
    assert values(found) == [value for sequence in acknowledged for value in numbered(2, 2 * sequence)]
    assert accounted_for(found)


# --- errors while sealing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "calls"),
    [("error=ENOSPC", "write"), ("retval=37", "write"), ("error=EIO", "write fsync rename unlink")],
)
def test_b30_b33_a_seal_that_fails_leaves_the_partition_as_it_was_and_works_later(
    children: Zygote, tmp_path: Path, error: str, calls: str
) -> None:
    queue, report, refusals = tmp_path / "orders", tmp_path / "report", 0
    rows = written(queue, 4)
    for call in calls.split():
        for number in count(1):
            copy = tmp_path / f"{call}-{number}"
            shutil.copytree(queue, copy)
            report.unlink(missing_ok=True)
            inject = ["-e", f"inject={call}:{error}:when={number}"]
            assert children.traced(inject, "seal", queue=str(copy), report=str(report)).code == 0, (call, number)
            told = report.read_text()
            if told.startswith("sealed"):
                break
            refusals += 1
            assert re.match("(Unavailable|Damaged): .*partition-0", told), told
            assert not list((copy / "partition-0").glob("*.parquet.tmp")), "the space is free again"
            found = children.look(copy)
            assert found["rows"] == rows and accounted_for(found), (call, number, found["names"])
            assert children.run("seal", queue=str(copy), report=str(report)) == 0
            assert read_all(opened(str(copy)), 0, 8) == [(8, b"after")]
            assert not list((copy / "partition-0").glob(f"{2:020d}.arrow"))
        assert number > 2, call
    assert refusals >= 4 * len(calls.split())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here: only test_b30_b33_a_real_limit_of_the_kernel runs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def append_if_possible(log: FileLog, number: int) -> bool:
    try:
        log.append({0: entries([b"x" * 5_000, *numbered(9, number)])})
    except Unavailable as error:
        return "No space left on device" not in str(error)
    return True


def test_b30_a_disk_that_is_really_full(small_disk: Path) -> None:
    queue, ballast, stored = str(small_disk / "orders"), small_disk / "ballast", 0
    ballast.write_bytes(bytes(200_000))
    log = opened(queue, create=True, partitions=1, segment_bytes=100_000)
    while append_if_possible(log, stored):
        stored += 10
    assert 500 < stored < 10_000
    with pytest.raises(Unavailable, match=r"neither sealed nor trimmed.*No space left on device"):
        log.seal(0)
    for one in (log, opened(queue)):
        assert len(read_all(one, 0)) == stored
    assert not list((small_disk / "orders").rglob("*.tmp"))
    ballast.unlink()
    assert log.append({0: entries([b"more"])}) == {0: stored}
    assert len(log.seal(0)) > 1
    assert [offset for offset, _ in read_all(opened(queue), 0)] == list(range(stored + 1))


# --- the order of system calls


def path_of(call: Call) -> str:
    """The name of the file that a call is about; of the new one for a rename."""
    named = re.findall(r'<([^>]*)>|"([^"]*)"', call.args)
    found = named[-1] if call.name == "rename" else named[0]
    return Path(found[0] or found[1]).name


def steps(calls: list[Call]) -> list[str]:
    wanted = ("write", "fsync", "fdatasync", "rename", "unlink", "pwrite64", "writev")
    return [f"{call.name} {path_of(call)}" for call in calls if call.name in wanted and call.result != "-1"]


def test_b35_what_is_renamed_is_synced_before_and_its_directory_after(children: Zygote, tmp_path: Path) -> None:
    queue, a, b = tmp_path / "orders", f"{0:020d}", f"{2:020d}"
    seen = steps(children.traced([], "create", queue=str(queue)).calls)
    assert seen == [
        f"fsync {tmp_path.name}",
        "fsync orders",
        "write queue.json.tmp",
        "fsync queue.json.tmp",
        "rename queue.json",
        "fsync orders",
        "pwrite64 lock",
        "write new-segment.tmp",
        "fsync new-segment.tmp",
        f"rename {a}.arrow",
        "fsync partition-0",
        f"write {a}.arrow",
        f"fdatasync {a}.arrow",
        "pwrite64 lock",
    ]
    queue = tmp_path / "sealed"
    written(queue, 4)
    seen = steps(children.traced([], "seal", queue=str(queue)).calls)
    assert seen == [
        step
        for base in (a, b)
        for step in (
            f"write {base}.parquet.tmp",
            f"fsync {base}.parquet.tmp",
            f"rename {base}.parquet",
            "fsync partition-0",
            "write manifest.json.tmp",
            "fsync manifest.json.tmp",
            "rename manifest.json",
            "fsync partition-0",
            f"unlink {base}.index",
            f"unlink {base}.arrow",
        )
    ]
    seen = steps(children.traced([], "trim", queue=str(queue), offset=6).calls)
    assert seen[:5] == [
        "write manifest.json.tmp",
        "fsync manifest.json.tmp",
        "rename manifest.json",
        "fsync partition-0",
        "fsync partition-0",
    ]
    assert {step.split()[0] for step in seen[5:]} == {"unlink"}


def test_b35_a_manifest_that_was_left_unsynced_is_synced_before_anything_is_deleted_for_it(
    children: Zygote, tmp_path: Path
) -> None:
    queue = tmp_path / "orders"
    written(queue, 3)
    inject = ["-e", "inject=fsync:signal=KILL:when=4"]  # after the manifest was renamed
    assert children.traced(inject, "seal", queue=str(queue)).code == -9
    seen = steps(children.traced([], "seal", queue=str(queue)).calls)
    assert seen[0] == "fsync partition-0"
    assert sorted(seen[1:]) == [f"unlink {0:020d}.arrow", f"unlink {0:020d}.index"]


@pytest.mark.parametrize("partitions", [3, 40], ids=["few files", "many files"])
def test_b32_what_is_acknowledged_was_synced_in_every_partition(
    children: Zygote, tmp_path: Path, partitions: int
) -> None:
    queue, report = create(tmp_path / "orders", partitions), tmp_path / "report"
    args = {"report": str(report), "first": 0, "count": 4, "partitions": partitions, "segment_bytes": 3_000}
    calls = children.traced([], "append", queue=str(queue), **args).calls
    unsynced: set[str] = set()
    for call in (call for call in calls if call.result != "-1"):
        path = re.findall(r"<([^>]*)>", call.args)[:1]
        if call.name == "write" and path[0].endswith((".arrow", ".tmp")):
            unsynced.add(path[0])
        elif call.name in ("fsync", "fdatasync"):
            unsynced.discard(path[0])
        elif call.name == "rename":
            assert not unsynced & set(re.findall(r'"([^"]*)"', call.args))
        elif call.name == "pwrite64":  # the mark, from which on readers see it
            assert not [one for one in unsynced if one.startswith(f"{Path(path[0]).parent}/")]
        elif call.name == "writev":
            assert not unsynced
    assert report.read_text().count("given") == sum(call.name == "writev" for call in calls) == 4
    assert sum(call.name == "rename" for call in calls) > partitions, "segments changed on the way"


def test_b32_a_batch_of_a_writer_killed_before_its_sync_is_synced_before_it_is_shown(
    children: Zygote, tmp_path: Path
) -> None:
    queue, report = create(tmp_path / "orders"), str(tmp_path / "report")
    args = {"queue": str(queue), "report": report, "first": 0, "count": 1}
    assert children.traced(["-e", "inject=fdatasync:signal=KILL:when=1"], "append", **args).code == -9
    log = FileLog.open(f"file:{queue}", OpenOptions(), Settings(), create=False)
    assert log.bounds(0) == (0, 0), "written, not synced: no reader sees it"
    seen = steps(children.traced([], "append", **args).calls)
    segment = f"{0:020d}.arrow"
    assert seen == [
        f"fdatasync {segment}", "fsync partition-0", "pwrite64 lock", f"fdatasync {segment}", "pwrite64 lock",
        "writev report",
    ]  # fmt: skip
    assert read_all(log, 0) == list(enumerate(numbered(2))), "stored once"


def test_a_log_whose_sync_failed_is_named_by_type(children: Zygote, tmp_path: Path) -> None:
    queue = create(tmp_path / "orders")
    assert Damaged.__name__ in appended(children, queue, "fdatasync:error=EIO:when=1", 1)[0]
    assert children.look(queue)["given"] == 0
