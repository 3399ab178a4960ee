"""Planted bugs that chance does not meet: each has a short story of its own that tells it from the sound code."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from pxrs.errors import Damaged, Unavailable, Unknown
from pxrs.logs.base import OpenOptions
from pxrs.logs.file import sealing
from pxrs.logs.file.log import FileLog
from pxrs.logs.formats.sealed_parquet import write_sealed
from pxrs.model import Cause, Grant
from pxrs.rules.rebalance import Mode
from pxrs.runtime.group.commits import Commits
from pxrs.runtime.group.heartbeat import Heartbeat
from pxrs.runtime.group.member import Member
from pxrs.runtime.group.work import Handle
from pxrs.runtime.registry.registry import CommitRequest
from pxrs.settings import Settings
from pxrs.spark.write import append as sink_append
from pxrs.spark.write.append import append_decided
from pxrs.spark.write.decisions import Decision, Ledger
from tests.logs.helpers import entries, numbered, read_all
from tests.simulation.planted.bugs import Bug, plant
from tests.simulation.stories_by_hand import SETTINGS, Hand, HandStore, HandWork, is_claim

THIRD = SETTINGS.lease_ms / 3000


class Planted(NamedTuple):
    """A bug, and the story that it spoils."""

    bug: Bug
    story: Callable[[Path], None]


# ---- a member by itself ---------------------------------------------------------------------------------------------


def one_owner() -> tuple[Hand, Member, HandWork, HandStore, Grant]:
    """A member that owns the only partition, has chosen where to begin, and has stored nothing yet."""
    hand = Hand()
    member, work, store = hand.member("A")
    hand.rounds(member)
    [(grant, checkpoint)] = work.started
    assert checkpoint is None and member.handles[0].committed is None
    return hand, member, work, store, grant


def a_commit_without_an_answer_is_not_overtaken_by_the_start_that_was_chosen(_directory: Path) -> None:
    """It has landed. To store the start behind it would go back, and end the member."""
    hand, member, work, store, grant = one_owner()
    outcome = member.commits.submit(CommitRequest({grant: 5}, "first"))
    work.positions[0], store.loses = 0, lambda swap: "/partition/" in swap.key
    member.round()
    assert isinstance(outcome.exception(0), Unknown) and member.error is None
    store.loses = lambda _: False
    again = member.commits.submit(CommitRequest({grant: 5}, "first"))
    hand.rounds(member)
    assert again.result(0) == {} and member.error is None
    assert hand.registry.partition(0).checkpoint == member.handles[0].committed == 5


def a_member_rests_while_its_output_is_published(_directory: Path) -> None:
    """The work stands behind what is committed until all is shown: that is no news to store."""
    hand, member, work, _store, grant = one_owner()
    work.positions[0] = 0
    member.commits.submit(CommitRequest({grant: 5}, "first"))
    hand.rounds(member)
    assert member.commits.next_due == inf
    hand.clock.now += 2 * SETTINGS.commit_interval_ms / 1000
    assert member.round() > hand.clock.now


def a_member_without_a_beat_works_for_two_thirds_of_its_lease(_directory: Path) -> None:
    """The last third is for what it has begun: others may take over when the lease is over."""
    hand, member, work, store, _grant = one_owner()
    joined = hand.clock.now
    store.before = _cut_off
    for _ in range(8):
        hand.clock.now += THIRD / 4
        member.round()
    assert member.beat_age(hand.clock.now) == 2 * THIRD and work.until == joined + 2 * THIRD


def _cut_off(_: object) -> None:
    raise Unavailable("cut off by the story")


def a_late_claim_is_given_back_by_a_member_that_leaves(_directory: Path) -> None:
    """Its answer was lost, so there is nothing to release. Only the row tells that it was won."""
    hand = Hand()
    member, work, store = hand.member("A")
    store.loses = is_claim
    for _ in range(9):
        member.round()
        if hand.registry.partition(0).owner is not None:
            break
    assert hand.registry.partition(0).owner == member.me and work.started == []
    member.leave()
    hand.rounds(member)
    row = hand.registry.partition(0)
    assert member.gone and row.owner is None and row.cause is Cause.RELEASE


# ---- a log ----------------------------------------------------------------------------------------------------------


def open_log(directory: Path) -> FileLog:
    settings = Settings(segment_bytes=1, durability="flush", delete_delay_ms=0)
    return FileLog.open(f"file:{directory}/orders", OpenOptions(1), settings, True)


def a_sealed_file_that_does_not_come_back_as_it_was_written_replaces_nothing(directory: Path) -> None:
    """The disk has spoilt a byte of it: the segment is still there, and all messages can be read."""
    log = open_log(directory)
    for number in range(5):
        log.append({0: entries(numbered(200, 200 * number))})

    def spoil(batches: Any, path: str, compression: str) -> tuple[int, int]:
        times = write_sealed(batches, path, compression)
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 3)
            found = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([found[0] ^ 0xFF]))
        return times

    with pytest.MonkeyPatch.context() as patch, suppress(Damaged):
        patch.setattr(sealing, "write_sealed", spoil)
        log.seal(0)
    log.close()
    assert [value for _, value in read_all(open_log(directory), 0)] == numbered(1_000)


# ---- the writer of Spark --------------------------------------------------------------------------------------------


def staged(ledger: Ledger, rows: int) -> Decision:
    """One file with a batch for each row, each of which is a shipment of its own."""
    folder = ledger.place(0).staged
    os.makedirs(folder)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    with pa.ipc.new_stream(os.path.join(folder, "a.arrow"), schema) as writer:
        for number in range(rows):
            batch = pa.RecordBatch.from_pylist([{"key": b"k", "value": b"row-%d" % number}], schema=schema)
            writer.write_batch(batch, custom_metadata={"partition": "0"})
    return Decision(("a.arrow",), rows, 1_000_000, {0: 0})


def a_writer_appends_nothing_more_when_another_has_finished(directory: Path) -> None:
    """All that the other has appended is consumed and deleted: nobody could find in the log that it was there."""
    log, other = open_log(directory), open_log(directory)
    ledger = Ledger(str(directory / "spark"), "query-1")
    decision, calls, append = staged(ledger, 4), count(), log.append
    assert ledger.decide(0, decision)

    def asleep(*asked: Any) -> dict[int, int]:
        if next(calls) == 1:
            append_decided(other, Settings(), ledger, 0, decision)
            ledger.finish(0)
            for number in range(4):
                other.append({0: entries([b"other-%d" % number])})
            other.trim(0, other.bounds(0)[1])
        return append(*asked)

    log.append = asleep  # type: ignore[method-assign, assignment]  # this object's alone
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_append, "SHIPMENT_BYTES", 1)
        append_decided(log, Settings(), ledger, 0, decision)
    left = [value for _, value in read_all(other, 0, other.bounds(0)[0])]
    assert next(calls) > 1 and [value for value in left if value.startswith(b"row-")] == []


# ---- the table ------------------------------------------------------------------------------------------------------


def _does_nothing(*_: object) -> None:
    """What was to be done is left out."""


def _anything_else_is_news(self: Commits, number: int, handle: Handle) -> int | None:
    at_rest, position = handle.mode is Mode.RELEASING or handle.in_doubt, self._work.position(number)
    return position if not at_rest and position != handle.committed else None


def _alive_for_the_whole_lease(self: Heartbeat, sent: float) -> None:
    _sound_confirmed(self, sent)
    self.alive_until = sent + self._settings.lease_ms / 1000
    self._work.extend(self.alive_until)


def _always(*_: object) -> bool:
    return True


_sound_confirmed = Heartbeat._confirmed
NAMED: frozenset[str] = frozenset()

PLANTED = (
    Planted(Bug(36, "the member does not rest while output is published", Commits, "_news",
                _anything_else_is_news, NAMED), a_member_rests_while_its_output_is_published),
    Planted(Bug(37, "a commit without an answer leaves no doubt", Commits, "_doubt", _does_nothing, NAMED),
            a_commit_without_an_answer_is_not_overtaken_by_the_start_that_was_chosen),
    Planted(Bug(38, "a member works until its lease is over", Heartbeat, "_confirmed",
                _alive_for_the_whole_lease, NAMED),
            a_member_without_a_beat_works_for_two_thirds_of_its_lease),
    Planted(Bug(39, "a late claim is never given back", Member, "_give_back", _does_nothing, NAMED),
            a_late_claim_is_given_back_by_a_member_that_leaves),
    Planted(Bug(40, "a sealed file is not read back", sealing, "check_sealed", _does_nothing, NAMED),
            a_sealed_file_that_does_not_come_back_as_it_was_written_replaces_nothing),
    Planted(Bug(41, "the Spark writer appends on after another has finished", Ledger, "holds", _always, NAMED),
            a_writer_appends_nothing_more_when_another_has_finished),
)  # fmt: skip


def _name(planted: Planted) -> str:
    return f"{planted.bug.number}-{planted.bug.title.replace(' ', '-')}"


@pytest.mark.parametrize("planted", PLANTED, ids=_name)
def test_the_story_is_true_of_the_sound_code(planted: Planted, tmp_path: Path) -> None:
    planted.story(tmp_path)


@pytest.mark.parametrize("planted", PLANTED, ids=_name)
def test_the_planted_bug_spoils_its_story(planted: Planted, tmp_path: Path) -> None:
    with plant(planted.bug), pytest.raises((AssertionError, Damaged)):
        planted.story(tmp_path)
