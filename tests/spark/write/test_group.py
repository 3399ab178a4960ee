"""From a group into a queue by ``format("pxrs")``: each message is copied once, over restarts, losses and kills.

But for the last test no Spark runs here: the source is asked and the writer called as Spark does it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pxrs
from pxrs.errors import Fenced, Refused, Unexpected
from pxrs.runtime.registry.registry import Registry
from pxrs.sinks import QueueSink
from pxrs.spark.write import commit as sink_commit
from pxrs.spark.write.commit import planned_in
from pxrs.spark.write.paths import WritePaths
from pxrs.spark.write.writer import stream_writer
from tests.spark.helpers import EACH, PARTITIONS, open_orders, run_fresh
from tests.spark.stream.helpers import begin, checkpoints, eventually, owners
from tests.spark.write.group_lives import EVERYTHING, SCHEMA, Life, add, copied, waiting

Start = Callable[..., Life]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with open_orders(tmp_path) as queue:
        yield queue


@pytest.fixture
def start(queue: pxrs.Queue, tmp_path: Path) -> Iterator[Start]:
    lives: list[Life] = []

    def start(member: str = "A", **options: str) -> Life:
        lives.append(Life(tmp_path, member, **options))
        return lives[-1]

    yield start
    for life in reversed(lives):
        life.query.reader.stop()


# ---- one query -------------------------------------------------------------------------------------------------------


def test_the_checkpoints_move_with_the_rows(queue: pxrs.Queue, start: Start, tmp_path: Path) -> None:
    life = start(maxOffsetsPerTrigger="60")
    assert life.plan()
    reports = life.tasks()
    assert checkpoints(queue) == [0] * PARTITIONS and copied(tmp_path) == []
    life.finish(reports)
    assert checkpoints(queue) == [15] * PARTITIONS, "before Spark asks for more"
    life.run()
    assert copied(tmp_path) == EVERYTHING and checkpoints(queue) == [EACH] * PARTITIONS and waiting(tmp_path) == []


def test_b74_a_batch_that_spark_repeats_is_stored_once(queue: pxrs.Queue, start: Start, tmp_path: Path) -> None:
    life = start()
    life.run()
    life.query.crash()
    life.forget_the_last()
    again = start()
    assert again.plan() and again.tasks() == [], "its ranges are done: they are dropped"
    again.finish([])
    added = add(tmp_path, 0, 1)
    again.run()
    assert copied(tmp_path) == sorted(EVERYTHING + added) and waiting(tmp_path) == []
    assert queue.group("g").describe().total_lag == 0


def test_b74_a_batch_that_failed_before_its_commit_comes_again_with_the_same_rows(start: Start, tmp_path: Path) -> None:
    life = start()
    assert life.plan() and life.tasks()
    life.query.crash()
    again = start()
    assert again.plan() and again.batch == 0
    again.finish(again.tasks())
    assert copied(tmp_path) == EVERYTHING and waiting(tmp_path) == []


def test_b78_files_of_tasks_that_were_tried_again_or_came_second_do_not_count(start: Start, tmp_path: Path) -> None:
    """Speculation runs a task twice: both write aside, and only the one that Spark has taken is told to the commit."""
    life = start()
    assert life.plan()
    first, second = life.tasks(), life.tasks()
    life.finish([first[0], second[1]])
    assert copied(tmp_path) == EVERYTHING and waiting(tmp_path) == []


def test_b74_a_batch_that_was_stored_when_its_plan_was_not_read_is_not_stored_again(
    queue: pxrs.Queue, start: Start, tmp_path: Path
) -> None:
    """As by PXRS 0.4, or while the checkpoint could not be reached: only its checkpoints are left to move."""
    life = start()
    assert life.plan()
    reports = life.tasks()
    target = life.writer._target
    assert target is not None
    sink_commit.commit(target, WritePaths(life.writer.root, "query-4711", 0), reports)
    life.query.crash()
    assert copied(tmp_path) == EVERYTHING and checkpoints(queue) == [0] * PARTITIONS
    start().run()
    assert copied(tmp_path) == EVERYTHING and checkpoints(queue) == [EACH] * PARTITIONS


def test_b74_an_empty_first_batch_that_was_interrupted_is_finished(tmp_path: Path, start: Start) -> None:
    """Spark replays it without asking the source for more than its start, so nobody has joined."""
    life = start()
    reader = life.query.reader
    nothing = reader.initialOffset()
    (life.directory / "offsets" / "0").write_text("\n".join(["v1", "{}", json.dumps(nothing)]))
    assert reader.partitions(nothing, nothing) == []
    life.writer.commit([], 0)
    assert copied(tmp_path) == []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(400)
def test_b74_a_commit_killed_at_any_step_is_stored_once(tmp_path: Path) -> None:
    script = (
        "import sys, json; from tests.spark.write.group_lives import campaign; print(json.dumps(campaign(sys.argv[1])))"
    )
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    assert run_fresh(script, str(tmp_path), env={"PYTHONPATH": path})["kills"] > 15


# ---- a partition that is lost ----------------------------------------------------------------------------------------


def test_b77_a_batch_that_has_lost_a_partition_stores_nothing_and_is_planned_again(
    queue: pxrs.Queue, start: Start, tmp_path: Path
) -> None:
    life = start()
    life.run()
    added = add(tmp_path, *range(PARTITIONS))
    assert life.plan()
    reports = life.tasks()
    queue.group("g").seek({2: EACH})
    eventually(lambda: queue.group("g").registry.partition(2).epoch == 3, "claimed again, under a later epoch")
    life.finish(reports)
    assert copied(tmp_path) == EVERYTHING and checkpoints(queue) == [EACH] * PARTITIONS
    assert waiting(tmp_path) == [], "what was staged is discarded"
    life.run()
    assert copied(tmp_path) == sorted(EVERYTHING + added) and life.batch == 2
    assert checkpoints(queue) == [EACH + 1] * PARTITIONS


def test_b77_a_first_batch_that_is_refused_ends_the_query(queue: pxrs.Queue, start: Start, tmp_path: Path) -> None:
    """Its plan does not say yet that a writer commits; Spark must not take it for done."""
    life = start()
    assert life.plan()
    reports = life.tasks()
    queue.group("g").seek({2: 5})
    with pytest.raises(Fenced):
        life.finish(reports)
    life.writer.abort(reports, 0)  # as Spark does then
    life.query.reader.stop()
    assert copied(tmp_path) == [] == waiting(tmp_path)
    again = start()
    again.run()
    assert copied(tmp_path) == [row for row in EVERYTHING if row[0] != 2 or row[1] >= 5]


def test_another_member_shows_what_was_committed_and_not_stored_yet(
    queue: pxrs.Queue, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = start()
    assert dead.plan()
    reports = dead.tasks()
    with monkeypatch.context() as patched:
        patched.setattr(QueueSink, "_show", _die)
        with pytest.raises(KeyboardInterrupt):
            dead.finish(reports)
    dead.query.crash()
    assert copied(tmp_path) == [] and checkpoints(queue) == [EACH] * PARTITIONS
    other = start(member="B")
    eventually(lambda: _idle(other) and owners(queue) == ["B"] * PARTITIONS, "B has taken over")
    added = add(tmp_path, 3)
    other.run()
    assert copied(tmp_path) == sorted(EVERYTHING + added) and waiting(tmp_path) == []


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def _idle(life: Life) -> bool:
    """Ask as Spark asks an idle query, all the time."""
    return not life.plan()


def test_an_owner_that_was_replaced_in_its_commit_stores_nothing(
    queue: pxrs.Queue, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of a dead driver goes on in a process of its own, and its successor does the same batch."""
    late, real = start(), Registry.store_progress
    assert late.plan()
    reports = late.tasks()

    def overtaken(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(Registry, "store_progress", real)
        late.query.crash()
        start().run()
        return real(*args, **more)

    monkeypatch.setattr(Registry, "store_progress", overtaken)
    with pytest.raises(Fenced):
        late.writer.commit(reports, 0)
    assert copied(tmp_path) == EVERYTHING and checkpoints(queue) == [EACH] * PARTITIONS
    assert waiting(tmp_path) == []


# ---- what the writer is told -----------------------------------------------------------------------------------------


def test_only_this_user_reads_where_the_registry_is_and_only_while_the_query_runs(start: Start) -> None:
    life = start(**{"pxrs.linger.ms": "7"})
    life.run()
    home = Path(tempfile.gettempdir(), f"pxrs-{os.getuid()}")
    mine = [path for path in home.rglob("*.places") if str(life.directory.parent) in path.read_text()]
    assert len(mine) == 1 and stat.S_IMODE(mine[0].stat().st_mode) == 0o600
    assert json.loads(mine[0].read_text())["settings"]["linger_ms"] == 7
    life.query.reader.stop()
    assert not mine[0].exists()


def test_a_source_whose_file_is_missing_is_an_error(start: Start, tmp_path: Path) -> None:
    life = start()
    assert life.plan()
    reports = life.tasks()
    life.query.reader.stop()
    with pytest.raises(Unexpected, match="must run under the same JVM"):
        life.finish(reports)
    assert copied(tmp_path) == []


def test_a_checkpoint_that_cannot_be_read_here_is_warned_of(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the source has a group is not known then: it is stored as from any other stream."""
    life = start()
    assert life.plan()
    options = {"path": f"file:{tmp_path}/copies", "checkpointlocation": "hdfs://far/away"}
    stream_writer(options, SCHEMA, False).commit(life.tasks(), 0)
    assert "the checkpoint hdfs://far/away cannot be read here" in caplog.text
    assert copied(tmp_path) == EVERYTHING


OFFSET = {
    "orders": {"0": [0, 5, 1]},
    "@log": "x",
    "@group": "g",
    "@member": "A",
    "@life": "l",
    "@plan": 1,
    "@fenced": True,
}


def offsets(directory: Path, batch: int, *sources: str, version: str = "v1") -> None:
    (directory / "offsets").mkdir(exist_ok=True)
    (directory / "offsets" / str(batch)).write_text("\n".join([version, "{}", *sources]))


def test_the_plan_of_a_batch_is_in_sparks_offset_log(tmp_path: Path) -> None:
    ours = json.dumps(OFFSET)
    offsets(tmp_path, 0, "-", '{"logOffset":3}')
    offsets(tmp_path, 1, ours)
    offsets(tmp_path, 2, ours)
    assert planned_in(str(tmp_path), 0) is None, "another source"
    planned = planned_in(str(tmp_path), 1)
    assert planned is not None and planned.ranges == ((0, 0, 5, 1),) and planned.fenced
    assert planned_in(str(tmp_path), 2) is None, "nothing new, and yet a batch: state that has grown old"
    offsets(tmp_path, 3, ours, "another source's")
    with pytest.raises(Refused, match="joined with other streams"):
        planned_in(str(tmp_path), 3)
    offsets(tmp_path, 4, ours, version="v2")
    with pytest.raises(Unexpected, match="'v2'"):
        planned_in(str(tmp_path), 4)
    with pytest.raises(Unexpected, match="no entry for batch 5"):
        planned_in(str(tmp_path), 5)


# ---- in a real Spark -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("spark")
def test_a_stream_of_a_group_is_copied_once_also_when_its_last_batch_comes_again(
    spark: SparkSession, queue: pxrs.Queue, tmp_path: Path
) -> None:
    def run() -> None:
        stream = spark.readStream.format("pxrs").option("pxrs.group.id", "g").load(f"file:{tmp_path}/orders")
        keyed = stream.selectExpr("cast(partition AS string) AS key", "value").repartition(2, "key")
        writing = keyed.writeStream.format("pxrs").option("partitions", 3).trigger(availableNow=True)
        begin(writing.option("checkpointLocation", f"{tmp_path}/cp"), f"file:{tmp_path}/copies").awaitTermination()

    run()
    assert copied(tmp_path) == EVERYTHING and checkpoints(queue) == [EACH] * PARTITIONS
    for name in ("0", ".0.crc"):
        (tmp_path / "cp" / "commits" / name).unlink(missing_ok=True)
    added = add(tmp_path, *range(PARTITIONS))
    run()
    assert copied(tmp_path) == sorted(EVERYTHING + added) and waiting(tmp_path) == []
