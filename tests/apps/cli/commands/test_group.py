"""group list|describe|members|seek|pause|resume|delete and member evict|drain."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import pxrs as library
from pxrs.apps.cli.commands.group import show as group_commands
from pxrs.logs.file.log import FileLog
from pxrs.model import MemberRow
from tests.apps.cli.helpers import QUEUE, Pxrs, make_group, make_queue
from tests.tools.waiting import eventually

COLUMNS = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "EPOCH"]


@pytest.fixture
def ready(pxrs: Pxrs) -> Pxrs:
    """A queue of 40 messages and a group without members that has processed nothing."""
    make_queue(pxrs, messages=40)
    make_group(pxrs, "billing")
    return pxrs


@contextmanager
def running_member(group: str, name: str) -> Iterator[library.Consumer]:
    settings = library.Settings(lease_ms=10_000, beat_ms=300, poll_ms=100)
    with (
        library.open(QUEUE, create=False, settings=settings) as queue,
        queue.consumer(group, lambda _: None, name) as consumer,
    ):
        eventually(lambda: consumer.state == "live", "a member at work")
        yield consumer


def checkpoints(name: str = "billing") -> list[int]:
    with library.open(QUEUE, create=False) as queue:
        return [line.checkpoint for line in queue.group(name).describe()]


def ends() -> list[int]:
    with library.open(QUEUE, create=False) as queue:
        return list(queue.ends().values())


def test_list_shows_state_and_lag(ready: Pxrs) -> None:
    lines = [line.split() for line in ready("group", "list", QUEUE).out.splitlines()]
    assert lines == [
        ["GROUP", "STATE", "MEMBERS", "LAST-SEEN", "TOTAL-LAG", "DEAD-LETTERS", "OLDEST"],
        ["billing", "Empty", "0", "-", "40", "0", "-"],
    ]


def test_describe_has_kafkas_columns_and_a_total(ready: Pxrs) -> None:
    shown = ready("group", "describe", QUEUE, "billing")
    head, _, body = shown.out.partition("\n\n")
    facts = dict(line.split(maxsplit=1) for line in head.splitlines())
    assert facts["GROUP"] == "billing" and facts["STATE"] == "Empty" and facts["MEMBERS"] == "0"
    assert facts["IDLE"] == "-" and facts["TOTAL-LAG"] == "40"
    rows = [line.split() for line in body.splitlines()]
    assert rows[0] == COLUMNS[2:] and len(rows) == 5 and facts["QUEUE"] == "orders" and "TOPIC" not in facts
    assert rows[1][:2] == ["0", "0"] and rows[1][4:6] == ["-", "-"]
    assert "has no members" in shown.err


def test_describe_for_programs(ready: Pxrs) -> None:
    found = json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)
    assert found["total_lag"] == 40 and len(found["partitions"]) == 4
    assert found["partitions"][2]["partition"] == 2 and found["partitions"][2]["consumer_id"] is None
    rows = list(csv.reader(io.StringIO(ready("group", "describe", QUEUE, "billing", "-o", "csv").out)))
    assert rows[0] == [*COLUMNS, "ERROR", "PARKED", "PAUSED"] and rows[1][9:] == ["-", "-", "no"]
    assert sum(int(row[5]) for row in rows[1:]) == 40


@pytest.mark.parametrize(("limit", "code"), [(39, 3), (40, 0)])
def test_too_much_lag_is_exit_code_3(ready: Pxrs, limit: int, code: int) -> None:
    assert ready("group", "describe", QUEUE, "billing", "--fail-if-lag", limit).code == code


# ---- a log that cannot be read --------------------------------------------------------------------------------------


def put_checkpoint(partition: int, offset: int) -> None:
    """As it stands when the log was cut behind it: no seek allows that."""
    with library.open(QUEUE, create=False) as queue:
        queue.group("billing").registry.seek({partition: offset}, {})


def test_b27_a_checkpoint_beyond_the_end_is_no_lag_of_0(ready: Pxrs) -> None:
    ready("group", "seek", QUEUE, "billing", "--to-latest", "--execute")
    assert ready("group", "describe", QUEUE, "billing", "--fail-if-lag", 0).code == 0
    put_checkpoint(2, 5_000)
    shown = ready("group", "describe", QUEUE, "billing", "--fail-if-lag", 1_000_000)
    assert shown.code == 3 and "offset 5000 is ahead of the log" in shown.out and "the lag is not known" in shown.err
    line = next(words for words in map(str.split, shown.out.splitlines()) if words[:1] == ["2"])
    assert line[1:4] == ["5000", str(ends()[2]), "?"]
    found = json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)
    assert found["total_lag"] is None and [p["lag"] for p in found["partitions"]] == [0, 0, None, 0]
    assert [bool(p["error"]) for p in found["partitions"]] == [False, False, True, False]
    listed = ready("group", "list", QUEUE)
    assert listed.out.split()[-3] == "?" and "ahead of the log" in listed.err


def test_an_unknown_end_is_no_lag_of_0(ready: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    ready("group", "seek", QUEUE, "billing", "--to-latest", "--execute")

    def bounds(_: FileLog, partition: int) -> tuple[int, int]:
        raise library.errors.Damaged(f"partition {partition} is gone")

    monkeypatch.setattr(FileLog, "bounds", bounds)
    shown = ready("group", "describe", QUEUE, "billing", "--fail-if-lag", 0)
    assert shown.code == 3 and shown.out.count("?") == 9 and "partition 3 is gone" in shown.out
    found = json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)
    assert {(p["log_end_offset"], p["lag"]) for p in found["partitions"]} == {(None, None)}
    with library.open(QUEUE, create=False) as queue:
        assert queue.group("billing").describe().total_lag > 0, "whoever waits for 0 must not take it for done"


def test_watch_shows_it_again_until_interrupted(ready: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    # Not time.sleep itself: threads of other tests may sleep as well, and would be the ones interrupted.
    monkeypatch.setattr(group_commands, "_pause", pause)
    shown = ready("group", "describe", QUEUE, "billing", "--watch", "--every", "500ms")
    assert shown.code == 0 and shown.out.count("TOTAL-LAG") == 3 and pauses == [0.5] * 3


@pytest.mark.parametrize("verb", ["describe", "members", "pause", "resume", "delete", "seek --to-latest"])
def test_a_group_that_is_not_there_is_named(pxrs: Pxrs, verb: str) -> None:
    make_queue(pxrs)
    name, *options = verb.split()
    shown = pxrs("group", name, QUEUE, "nobody", *options)
    assert shown.code == 1 and "there is no group 'nobody'" in shown.err


def test_members_owners_and_hosts_are_shown(ready: Pxrs) -> None:
    with running_member("billing", "A"):
        above, _, *rows = [line.split() for line in ready("group", "members", QUEUE, "billing").out.splitlines()]
        assert above == ["GROUP", "billing"] and rows[0][0] == "CONSUMER-ID" and rows[1][0] == "A"
        assert rows[0][-2:] == ["ASSIGNMENT", "LEADER"] and "LAST-SEEN" in rows[0]
        assert rows[1][-5] == "active" and rows[1][-3:] == ["4", "0-3", "yes"]
        [member] = json.loads(ready("group", "members", QUEUE, "billing", "-o", "json").out)
        described = json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)
        assert described["state"] == "Stable" and described["members"] == 1
        assert {(p["consumer_id"], p["host"]) for p in described["partitions"]} == {("A", member["host"])}
        refused = ready("group", "delete", QUEUE, "billing")
        assert refused.code == 1 and "has members: A" in refused.err


SPARK = {"engine": "spark", "app": "local-17", "ui": "http://127.0.0.1:4040", "jvm": "4711"}


def enter(name: str, partitions: list[int], lease_ms: int = 60_000, **info: str) -> None:
    """A member's rows as its process would leave them: it is in the group, and owns these partitions."""
    about = tuple({"host": "h", "pid": "1", **info}.items())
    # It has just beaten: who looks need not wait for its next beat.
    row = MemberRow(name, f"life-of-{name}", lease_ms=lease_ms, info=about, seen=time.time())
    with library.open(QUEUE, create=False) as queue:
        registry = queue.group("billing").registry
        registry.register(row)
        claimed = registry.claim(partitions, row.owner)
    assert [one for one in claimed.values() if isinstance(one, library.errors.PxrsError)] == []


def test_spark_members_are_shown_with_application_and_web_page(ready: Pxrs) -> None:
    enter("A", [0, 1], 60_000, **SPARK)
    enter("B", [2], engine="threads")
    lines = [line.split(",") for line in ready("group", "members", QUEUE, "billing", "-o", "csv").out.splitlines()]
    assert lines[0][-3:] == ["APP", "UI", "JVM"]
    assert lines[1][1] == "A" and lines[1][-3:] == ["local-17", "http://127.0.0.1:4040", "4711"]
    assert lines[2][1] == "B" and lines[2][-3:] == ["-", "-", "-"]
    rows = [line.split(",") for line in ready("group", "describe", QUEUE, "billing", "-o", "csv").out.splitlines()]
    assert rows[0] == [*COLUMNS, "ENGINE", "APP", "UI", "JVM", "ERROR", "PARKED", "PAUSED"]
    assert [row[-7:-3] for row in rows[1:]] == [
        *[["spark", "local-17", "http://127.0.0.1:4040", "4711"]] * 2, ["threads", "-", "-", "-"], ["-"] * 4
    ]  # fmt: skip


def test_columns_of_spark_stand_in_tables_only_where_there_is_spark(ready: Pxrs) -> None:
    enter("B", [2], engine="threads", ui="")
    for verb in ("members", "describe"):
        assert "JVM" not in ready("group", verb, QUEUE, "billing").out
    [member] = json.loads(ready("group", "members", QUEUE, "billing", "-o", "json").out)
    assert (member["app"], member["ui"], member["jvm"]) == ("-", "-", "-")
    partitions = json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)["partitions"]
    assert [p["engine"] for p in partitions] == [None, None, "threads", None]
    assert {p["app"] for p in partitions} == {None, "-"}


def test_a_paused_partition_is_shown_to_programs(ready: Pxrs) -> None:
    assert ready("group", "pause", QUEUE, "billing", "-p", 2).code == 0
    rows = list(csv.DictReader(io.StringIO(ready("group", "describe", QUEUE, "billing", "-o", "csv").out)))
    assert [row["PAUSED"] for row in rows] == ["no", "no", "yes", "no"]
    partitions = json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)["partitions"]
    assert [line["paused"] for line in partitions] == [False, False, True, False]


def test_parked_partitions_and_passed_over_letters_are_shown(ready: Pxrs) -> None:
    enter("A", [0, 2])
    with library.open(QUEUE, create=False) as queue:
        registry = queue.group("billing").registry
        row = registry.members()[0]
        registry.beat(replace(row, parked=((2, "the disk is full"),), passed_over=3, seen=time.time()), None)
    shown = ready("group", "describe", QUEUE, "billing")
    header = dict(line.split(None, 1) for line in shown.out.split("\n\n")[0].splitlines())
    assert (header["PARKED"], header["PASSED-OVER"]) == ("2", "3")
    assert "pxrs: group 'billing', partition 2 waits: the disk is full\n" in shown.err
    facts = json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)
    assert [p["parked"] for p in facts["partitions"]] == [None, None, "the disk is full", None]
    [member] = json.loads(ready("group", "members", QUEUE, "billing", "-o", "json").out)
    assert member["passed_over"] == 3
    assert "warning: group 'billing', partition 2 waits: the disk is full" in ready("health", QUEUE).err


def test_health_fails_where_all_that_wait_are_parked(ready: Pxrs) -> None:
    behind = tuple((partition, "the disk is full") for partition, end in enumerate(ends()) if end)
    enter("A", [partition for partition, _ in behind])
    for parked, code in ((behind[1:], 0), (behind, 3)):
        with library.open(QUEUE, create=False) as queue:
            registry = queue.group("billing").registry
            registry.beat(replace(registry.members()[0], parked=parked, seen=time.time()), None)
        shown = ready("health", QUEUE)
        assert shown.code == code
        assert ("and every partition that has some is parked" in shown.err) == (code == 3)


def test_seek_is_a_dry_run_without_execute(ready: Pxrs) -> None:
    shown = ready("group", "seek", QUEUE, "billing", "--to-latest")
    rows = [[int(cell) for cell in line.split()] for line in shown.out.splitlines()[1:]]
    assert [row[:3] for row in rows] == [[p, 0, end] for p, end in enumerate(ends())]
    assert "dry run" in shown.err and checkpoints() == [0, 0, 0, 0]
    assert ready("group", "seek", QUEUE, "billing", "--to-latest", "--execute").code == 0
    assert checkpoints() == ends()


def test_seek_to_places(ready: Pxrs) -> None:
    def seek(*options: object) -> list[int]:
        assert ready("group", "seek", QUEUE, "billing", *options, "--execute").code == 0
        return checkpoints()

    assert seek("--to-offset", 3, "-p", 0, "-p", 2) == [3, 0, 3, 0]
    assert seek("--shift-by", 2) == [min(c + 2, e) for c, e in zip([3, 0, 3, 0], ends(), strict=True)]
    assert seek("--shift-by", -1_000) == [0, 0, 0, 0]
    assert seek("--to-datetime", (datetime.now(UTC) + timedelta(hours=1)).isoformat()) == ends()
    assert seek("--by-duration", "1h30m") == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 2, "say once where to"),
        (("--to-earliest", "--to-latest"), 2, "say once where to"),
        (("--to-offset", "1000"), 1, "outside the log"),
        (("--to-earliest", "-p", "9"), 1, "has no partition 9"),
        (("--to-datetime", "2026-01-31T12:00:00"), 2, "no time zone: write 2026-01-31T12:00:00Z"),
        (("--to-datetime", "yesterday"), 2, "is no time"),
        (("--by-duration", "an hour"), 2, "is no duration"),
        (("--by-duration", "1h 30"), 2, "is no duration"),
    ],
)
def test_seek_refuses_nonsense(ready: Pxrs, options: tuple[str, ...], code: int, words: str) -> None:
    shown = ready("group", "seek", QUEUE, "billing", *options, "--execute")
    assert shown.code == code and words in shown.err and checkpoints() == [0, 0, 0, 0]


def test_pause_and_resume(ready: Pxrs) -> None:
    def paused() -> str:
        return str(json.loads(ready("group", "describe", QUEUE, "billing", "-o", "json").out)["paused"])

    assert ready("group", "pause", QUEUE, "billing", "-p", 1, "-p", 2).out.startswith("paused partitions 1-2")
    assert paused() == "1-2"
    assert ready("group", "resume", QUEUE, "billing", "-p", 2).code == 0 and paused() == "1"
    assert ready("group", "resume", QUEUE, "billing").code == 0 and paused() == "-"
    assert ready("group", "pause", QUEUE, "billing", "-p", 7).code == 1


def test_delete_forgets_the_group(ready: Pxrs) -> None:
    assert ready("group", "delete", QUEUE, "billing").out == "deleted group 'billing'\n"
    assert "billing" not in ready("group", "list", QUEUE).out


def test_a_dead_member_does_not_keep_a_group_for_ever(ready: Pxrs) -> None:
    enter("A", [0, 1], lease_ms=200)
    refused = ready("group", "delete", QUEUE, "billing")
    assert refused.code == 1 and "pxrs member evict" in refused.err and "pxrs group delete --force" in refused.err
    assert ready("group", "delete", QUEUE, "billing", "--force").out == "deleted group 'billing'\n"
    assert "billing" not in ready("group", "list", QUEUE).out


def test_a_group_with_a_living_member_is_not_deleted_by_force(ready: Pxrs) -> None:
    with running_member("billing", "A") as consumer:
        refused = ready("group", "delete", QUEUE, "billing", "--force")
        assert refused.code == 1 and "'A' is alive" in refused.err and consumer.state == "live"


def test_an_evicted_member_is_fenced(ready: Pxrs) -> None:
    with library.open(QUEUE, create=False, settings=library.Settings(lease_ms=1_000, poll_ms=100)) as queue:
        consumer = queue.consumer("billing", lambda _: None, "A").start()
        eventually(lambda: consumer.state == "live", "a member at work")
        assert ready("member", "evict", QUEUE, "billing", "A").code == 0
        assert consumer.wait(30) and consumer.state == "fenced"


def test_a_drained_member_leaves_cleanly(ready: Pxrs) -> None:
    with running_member("billing", "A") as consumer:
        assert ready("member", "drain", QUEUE, "billing", "A").code == 0
        assert consumer.wait(30) and consumer.state == "stopped"
    assert checkpoints() == ends()


@pytest.mark.parametrize("verb", ["evict", "drain"])
def test_a_member_that_is_not_there_is_named(ready: Pxrs, verb: str) -> None:
    shown = ready("member", verb, QUEUE, "billing", "Z")
    assert shown.code == 1 and "there is no member 'Z'" in shown.err
