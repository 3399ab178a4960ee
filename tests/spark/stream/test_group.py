"""The contract between Spark and a stream that is a member of a group: plans, hand-overs, restarts. No Spark runs here.

Readers stand in this process, each a member of its own; a crash ends one without a word. The registry is real.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import pxrs
from pxrs.errors import Closed, DuplicateMember, Fenced, Mismatch
from pxrs.model import Cause, Grant, Owner, Partition, Range, Tenure
from pxrs.runtime.registry.registry import CommitRequest
from pxrs.runtime.registry.rows import Held
from pxrs.spark.stream.group_reader import GroupReader
from pxrs.spark.stream.offsets import continues, decode
from pxrs.spark.stream.side_files import SideFiles, SinkReport
from tests.spark.helpers import EACH, PARTITIONS, messages, open_orders
from tests.spark.stream.helpers import Checkpoint, Query, checkpoints, eventually, member_of, owners, reader_of

EVERYTHING = [(p, offset) for p in range(PARTITIONS) for offset in range(EACH)]
Start = Callable[..., Query]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with open_orders(tmp_path) as queue:
        yield queue


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a run of a query; all are stopped at the end."""
    readers = []

    def start(checkpoint: Checkpoint | None = None, member: str = "A", **options: str) -> Query:
        readers.append(member_of(tmp_path, member, **options))
        return Query(readers[-1], checkpoint or Checkpoint())

    yield start
    for reader in reversed(readers):
        reader.stop()


def add(queue: pxrs.Queue, *partitions: int) -> list[tuple[int, int]]:
    """One more message in each of these partitions."""
    found = []
    for partition in partitions:
        end = queue.log.bounds(partition)[1]
        queue.log.append({partition: messages(partition, range(end, end + 1))})
        found.append((partition, end))
    return found


def life_of(query: Query) -> Any:
    assert isinstance(query.reader, GroupReader) and query.reader._life is not None
    return query.reader._life


def commit_at_the_sink(queue: pxrs.Queue, query: Query) -> dict[int, Held[Partition] | Exception]:
    """What ``fenced`` does: report, commit each range under the epochs of the sheet, report again."""
    planned = decode(query.offset(len(query.checkpoint.offsets) - 1))
    files = SideFiles(os.getppid(), planned)
    files.write_sink_report(SinkReport(False))
    sheet = files.sheet()
    assert sheet is not None and sheet.plan == planned.identity
    ends = {Grant(part.partition, sheet.owner(planned), part.epoch): part.end for part in sheet.ranges}
    found: dict[int, Held[Partition] | Exception] = {**queue.group("g").registry.commit(ends)}
    files.write_sink_report(SinkReport(False, planned.identity))
    return found


# ---- a run -----------------------------------------------------------------------------------------------------------


def test_a_query_takes_its_share_and_stores_its_progress(queue: pxrs.Queue, start: Start) -> None:
    query = start(maxOffsetsPerTrigger="60")
    rows = [*query.run(), *query.run()]
    assert sorted(rows) == EVERYTHING and not query.plan()
    assert {part.epoch for part in query.ranges} == {1} and owners(queue) == ["A"] * PARTITIONS
    assert query.reader.reportLatestOffset() == {
        "orders": {str(p): EACH for p in range(PARTITIONS)}, "@member": "A", "@owned": [0, 1, 2, 3], "@lag": 0,
    }  # fmt: skip
    assert checkpoints(queue) == [EACH] * PARTITIONS, "stored as soon as Spark says that the batch is over"
    query.reader.stop()
    assert owners(queue) == [None] * PARTITIONS and queue.group("g").members() == []


def test_progress_counts_when_the_batch_is_over_and_not_before(queue: pxrs.Queue, start: Start) -> None:
    query = start()
    assert query.plan() and query.execute() == EVERYTHING
    query.reader.stop()
    assert checkpoints(queue) == [0] * PARTITIONS, "what was planned is not done"
    assert {row.cause for row in queue.group("g").registry.partitions()} == {Cause.FORCED}


def test_b76_nothing_new_is_the_same_offset_with_any_owners(queue: pxrs.Queue, start: Start) -> None:
    query = start()
    query.run()
    offset = query.offset(0)
    assert query.reader.latestOffset(offset, query.limit) == offset
    other = start(member="B")
    eventually(lambda: _polled(query, other) and sorted(map(str, owners(queue))) == ["A", "A", "B", "B"], "both own")
    assert query.reader.latestOffset(offset, query.limit) == offset, "no empty batch for a hand-over"
    assert other.checkpoint.offsets == []


def _polled(*queries: Query) -> bool:
    """Ask as Spark asks an idle query, all the time."""
    return not any(query.plan() for query in queries)


def test_partitions_move_between_two_batches_with_nothing_repeated(queue: pxrs.Queue, start: Start) -> None:
    first = start()
    assert first.plan()
    second = start(member="B")
    rows = first.execute()
    assert second.run() == [], "its share is still in the first one's batch"
    assert owners(queue) == ["A"] * PARTITIONS
    first.finish()
    added = add(queue, *range(PARTITIONS))
    found: list[tuple[int, int]] = []

    def shared() -> bool:
        found.extend(first.run() + second.run())
        return sorted(map(str, owners(queue))) == ["A", "A", "B", "B"] and len(found) == len(added)

    eventually(shared, "both own two partitions, and all is done")
    assert sorted(rows + found) == sorted(EVERYTHING + added)


def test_available_now_ends_with_what_the_member_has(queue: pxrs.Queue, start: Start) -> None:
    query = start(maxOffsetsPerTrigger="99")
    query.reader.prepareForTriggerAvailableNow()
    add(queue, 0)
    assert sorted(query.run() + query.run()) == EVERYTHING
    assert query.run() == []


def test_a_silent_jvm_loses_its_partitions_and_gets_them_back(queue: pxrs.Queue, start: Start) -> None:
    silent = start(**{"pxrs.max.batch.ms": "3000"})
    silent.run()
    assert not silent.plan()
    other = start(member="B")
    eventually(lambda: _polled(other) and owners(queue) == ["B"] * PARTITIONS, "B has all, as A is silent")
    assert {line.member: line.state for line in queue.group("g").members()}["A"] == "stalled"
    eventually(lambda: _polled(silent, other) and owners(queue).count("A") == 2, "A speaks again, and has its share")


def test_a_query_ends_when_its_member_was_put_out(queue: pxrs.Queue, start: Start) -> None:
    query = start()
    query.run()
    queue.group("g").drain("A")
    with pytest.raises(Closed, match="member 'A' was asked to leave group 'g'"):
        eventually(lambda: query.plan(), "the query to hear of it")


def test_sigterm_leaves_the_group(queue: pxrs.Queue, start: Start) -> None:
    before = signal.getsignal(signal.SIGTERM)
    query = start()
    query.run()
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    query.reader.stop()
    assert owners(queue) == [None] * PARTITIONS
    assert signal.getsignal(signal.SIGTERM) is before


# ---- restarts --------------------------------------------------------------------------------------------------------


def test_b74_a_batch_that_was_planned_is_replayed_under_new_epochs(queue: pxrs.Queue, start: Start) -> None:
    checkpoint = Checkpoint()
    killed = start(checkpoint, maxOffsetsPerTrigger="50")
    killed.run()
    assert killed.plan()
    assert checkpoints(queue) == [part.start for part in killed.ranges], "the first batch is stored, the second is not"
    rows = killed.execute()
    planned = killed.ranges
    killed.crash()
    add(queue, 0, 1)
    again = start(checkpoint)
    assert again.execute() == rows, "same batch id, same rows"
    sheet = life_of(again).running
    assert [(part.partition, part.start, part.end) for part in sheet.ranges] == [part[:3] for part in planned]
    assert {part.epoch for part in sheet.ranges} == {2} and sheet.dropped == ()
    again.finish()
    assert again.run() == [(0, EACH), (1, EACH)]
    assert sheet.life != decode(killed.offset(0)).life


def test_b74_also_when_the_query_was_stopped_in_the_middle(queue: pxrs.Queue, start: Start) -> None:
    checkpoint = Checkpoint()
    stopped = start(checkpoint)
    assert stopped.plan()
    rows = stopped.execute()
    stopped.reader.stop()
    again = start(checkpoint)
    assert again.run() == rows and {part.epoch for part in life_of(again).running.ranges} == {3}


def test_b74_what_another_member_has_had_is_dropped(queue: pxrs.Queue, start: Start) -> None:
    checkpoint = Checkpoint()
    killed = start(checkpoint)
    assert killed.plan() and killed.execute() == EVERYTHING
    killed.crash()
    other = start(member="B")
    eventually(lambda: len(other.run()) > 0, "B takes over and does the same messages")
    again = start(checkpoint)
    eventually(lambda: not other.run() and owners(queue).count("B") == 4, "B holds all")
    over = threading.Event()
    asking = threading.Thread(target=lambda: [other.run() for _ in iter(over.is_set, True)])
    asking.start()  # it gives up what A shall have
    try:
        assert again.run() == [], "the batch id is there, and its rows are another's"
        assert life_of(again).running.dropped == tuple(range(PARTITIONS))
        added = add(queue, *range(PARTITIONS))
        found: list[tuple[int, int]] = []

        def has_its_share() -> bool:
            found.extend(again.run())
            return len(found) == 2

        eventually(has_its_share, "A goes on with its share")
        assert set(found) < set(added)
    finally:
        over.set()
        asking.join()


def test_a_batch_that_spark_has_finished_is_not_done_again(queue: pxrs.Queue, start: Start) -> None:
    """Killed after Spark's commit log, before the registry knew."""
    checkpoint = Checkpoint()
    killed = start(checkpoint)
    assert killed.run() == EVERYTHING
    killed.crash()
    assert checkpoints(queue) == [0] * PARTITIONS
    again = start(checkpoint)
    assert again.run() == []
    assert checkpoints(queue) == [EACH] * PARTITIONS, "what Spark knows is stored now"


def test_a_new_life_has_the_name_in_the_offset(queue: pxrs.Queue, tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    for _ in range(2):
        query = Query(reader_of(tmp_path, **{"pxrs.group.id": "g"}), checkpoint)
        add(queue, 0)
        assert query.run()
        query.reader.stop()
    names = {decode(query.offset(batch)).member for batch in range(2)}
    assert len(names) == 1 and names.pop().startswith("spark-")


def test_b73_two_queries_on_one_checkpoint_and_the_older_one_is_fenced(queue: pxrs.Queue, start: Start) -> None:
    checkpoint = Checkpoint()
    older = start(checkpoint)
    assert older.plan()
    newer = start(checkpoint)
    assert newer.execute() == EVERYTHING, "it has the same batch, under new epochs"
    grants = [Grant(part.partition, life_of(older).member.me, part.epoch) for part in older.ranges]
    late = queue.group("g").registry.commit(dict.fromkeys(grants, EACH))
    assert all(isinstance(result, Fenced) for result in late.values())
    with pytest.raises(DuplicateMember, match="member 'A' was replaced by a newer process"):
        eventually(lambda: older.reader.latestOffset(older.offset(0), ReadAllAvailable()) is None, "the older to hear")
    newer.finish()
    assert newer.run() == [] and owners(queue) == ["A"] * PARTITIONS


def test_b79_a_checkpoint_of_another_log_or_group_is_refused(queue: pxrs.Queue, start: Start, tmp_path: Path) -> None:
    query = start()
    query.run()
    with pytest.raises(Mismatch, match="belongs to group 'g', not 'h'"):
        start(query.checkpoint, **{"pxrs.group.id": "h"}).plan()
    with pytest.raises(Mismatch, match="was written by a member of a group"):
        Query(reader_of(tmp_path), query.checkpoint).plan()
    (tmp_path / "other").mkdir()
    with pxrs.open(f"file:{tmp_path}/other/orders", partitions=2):
        other = Query(member_of(tmp_path / "other"), query.checkpoint)
        with pytest.raises(Mismatch, match="created anew, with another number of partitions"):
            other.plan()
        other.reader.stop()


# ---- commits at the sink ---------------------------------------------------------------------------------------------


def test_b77_a_partition_lost_after_planning_is_refused_alone(queue: pxrs.Queue, start: Start) -> None:
    query = start()
    assert query.plan() and query.execute() == EVERYTHING
    queue.group("g").seek({2: 5})
    eventually(lambda: queue.group("g").registry.partition(2).epoch == 3, "claimed again, under a later epoch")
    results = commit_at_the_sink(queue, query)
    assert [p for p, result in results.items() if isinstance(result, Fenced)] == [2]
    query.finish()
    assert checkpoints(queue) == [EACH, EACH, 5, EACH]
    assert query.run() == [(2, offset) for offset in range(5, EACH)], "from where the seek has put it"
    assert {part.epoch for part in query.ranges} == {3}


def test_a_batch_that_the_sink_has_refused_is_planned_again(queue: pxrs.Queue, start: Start) -> None:
    """The offset must differ all the same: Spark would else see nothing new, for ever."""
    query = start()
    query.run()
    added = add(queue, 0)
    assert query.plan() and query.execute() == added
    commit_at_the_sink(queue, query)
    query.finish()
    added = add(queue, 1)
    assert query.plan() and query.execute() == added
    refused = query.ranges
    files = SideFiles(os.getppid(), decode(query.offset(2)))
    assert files.sink_report() is not None
    query.finish()  # Spark takes it for done; the row says that it is not
    assert query.plan() and query.ranges == refused and query.execute() == added
    assert decode(query.offset(3)).fenced
    commit_at_the_sink(queue, query)
    query.finish()
    assert query.run() == [] and checkpoints(queue)[:2] == [EACH + 1, EACH + 1]


def test_a_hand_over_need_not_wait_for_spark_once_the_sink_has_committed(queue: pxrs.Queue, start: Start) -> None:
    query = start()
    assert query.plan()
    query.execute()
    other = start(member="B")
    assert other.run() == [] and owners(queue).count("A") == PARTITIONS
    commit_at_the_sink(queue, query)
    eventually(
        lambda: _polled(other) and owners(queue).count("B") == 2, "B has its share, without a word from A's Spark"
    )
    assert checkpoints(queue) == [EACH] * PARTITIONS


def test_a_partition_with_a_note_gets_an_empty_batch_for_a_sink_with_output(queue: pxrs.Queue, start: Start) -> None:
    """Its last owner may have died between commit and publish, and no message may ever come there again."""
    query = start()
    query.run()
    grant = life_of(query).member.shares.grant(3)
    queue.group("g").registry.store_progress(CommitRequest({grant: EACH}, '{"sink": "x"}'))
    planned = decode(query.offset(0))
    assert not query.plan()
    query.crash()
    again = start(query.checkpoint)
    assert not again.plan(), "whether the sink has output is not known yet"
    SideFiles(os.getppid(), planned).write_sink_report(SinkReport(True))
    assert again.plan() and [part[:3] for part in again.ranges] == [(3, EACH, EACH)]
    assert again.execute() == []
    again.finish()
    assert not again.plan(), "once is enough"


# ---- the rule --------------------------------------------------------------------------------------------------------

ME = Owner("A", "2")


@pytest.mark.parametrize(
    ("wanted", "checkpoint", "history"),
    [
        (True, 7, [("A", 4, "claim"), ("A", 5, "claim")]),
        (True, 7, [("A", 4, "claim"), (None, 5, "release"), ("A", 6, "claim")]),
        (True, 7, [("A", 4, "claim"), (None, 5, "forced"), ("A", 6, "claim")]),
        (False, 8, [("A", 4, "claim"), ("A", 5, "claim")]),
        (False, None, [("A", 4, "claim"), ("A", 5, "claim")]),
        (
            False,
            7,
            [("A", 4, "claim"), (None, 5, "forced"), ("B", 6, "claim"), (None, 7, "release"), ("A", 8, "claim")],
        ),
        (False, 7, [("A", 4, "claim"), (None, 5, "seek"), ("A", 6, "claim")]),
        (False, 7, [("A", 5, "claim"), ("A", 6, "claim")]),
        (False, 7, [("B", 4, "claim"), (None, 5, "release"), ("A", 6, "claim")]),
    ],
)
def test_b74_a_range_goes_on_only_if_nothing_has_happened_to_its_partition(
    wanted: bool, checkpoint: int | None, history: list[tuple[str | None, int, str]]
) -> None:
    lines = tuple(Tenure(owner, epoch, 0.0, cause) for owner, epoch, cause in history)
    row = Partition(0, ME, lines[-1].epoch, checkpoint, Cause.CLAIM, history=lines)
    grant = Grant(0, ME, lines[-1].epoch)
    assert continues(row, grant, Range(0, 7, 9, 4)) is wanted
    assert not continues(row, grant._replace(epoch=grant.epoch - 1), Range(0, 7, 9, 4)), "a claim of another time"
