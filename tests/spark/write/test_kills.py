"""A write that is killed, retried or doubled is stored once; what the dead leave is cleared away."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.errors import BadSetting, Damaged, Refused, Unavailable
from pxrs.logs.file.log import FileLog
from pxrs.runtime.producer.retry import patiently
from pxrs.spark.write import append as sink_append
from pxrs.spark.write import decisions as sink_ledger
from pxrs.spark.write.decisions import Decision, Ledger
from pxrs.spark.write.paths import WritePaths
from pxrs.spark.write.spark_writers import StreamWriter
from pxrs.spark.write.writer import batch_writer, stream_writer
from pxrs.testing.servers.nats import NatsServer
from tests.spark.helpers import run_fresh
from tests.spark.write.helpers import left_behind, texts_of
from tests.spark.write.kills import QUERY, ROWS, SCHEMA, messages, rows_of, staged

CAMPAIGN = (
    "import sys; from tests.spark.write.kills import campaign; import json; print(json.dumps(campaign(sys.argv[1])))"
)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(400)
def test_b74_a_commit_killed_at_any_step_is_stored_once_when_spark_repeats_it(tmp_path: Path) -> None:
    """Also with its rows in another order and in other tasks; and killed a second time."""
    root = str(Path(__file__).resolve().parents[3])
    done = run_fresh(CAMPAIGN, str(tmp_path), env={"PYTHONPATH": root})
    assert done["kills"] > 50 and done["twice"] > 10


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=3) as queue:
        yield queue


@pytest.fixture
def writer(queue: pxrs.Queue) -> StreamWriter:
    return stream_writer({"path": f"file:{queue.log.directory}"}, SCHEMA, False)


def wanted(*batches: int) -> list[str]:
    return sorted(value.decode() for batch in batches for _, value in rows_of(batch))


def place_of(writer: StreamWriter, batch: int) -> WritePaths:
    return WritePaths(writer.root, QUERY, batch)


# ---- retries ---------------------------------------------------------------------------------------------------------


def test_b78_files_of_tasks_that_failed_or_came_second_do_not_count(queue: pxrs.Queue, writer: StreamWriter) -> None:
    """A task that is retried, or run twice by speculation, leaves a file that no message names."""
    staged(writer, place_of(writer, 0), 0, rows_of(0)[:30])
    writer.commit(messages(writer, 0, 2, False), 0)
    assert texts_of(queue) == wanted(0) and left_behind(queue) == ["0.done"]


def test_a_batch_that_comes_again_is_not_stored_again(
    queue: pxrs.Queue, writer: StreamWriter, caplog: pytest.LogCaptureFixture
) -> None:
    for splits, is_turned in ((2, False), (3, True), (1, False)):
        writer.commit(messages(writer, 0, splits, is_turned), 0)
        assert texts_of(queue) == wanted(0) and left_behind(queue) == ["0.done"]
    assert "stored before" not in caplog.text
    writer.commit([staged(writer, place_of(writer, 0), 0, rows_of(0)[:10])], 0)
    assert texts_of(queue) == wanted(0) and "stored before with 60 rows and comes again with 10" in caplog.text


def test_an_old_checkpoint_is_refused(queue: pxrs.Queue, writer: StreamWriter) -> None:
    """It would number other rows as stored ones are."""
    for batch in (0, 1):
        writer.commit(messages(writer, batch, 1, False), batch)
    with pytest.raises(Refused, match=r"has stored its write 1 .* comes with 0: .* new checkpoint"):
        writer.commit(messages(writer, 0, 1, False), 0)
    assert texts_of(queue) == wanted(0, 1)


def test_b73_two_commits_at_a_time_store_a_batch_once(
    queue: pxrs.Queue, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The death of a driver does not stop a commit that is under way, and the next driver repeats it."""
    monkeypatch.setattr(sink_append, "SHIPMENT_BYTES", 300)
    tries = [messages(writer, 0, splits, is_turned) for splits, is_turned in ((2, False), (3, True), (4, True))]
    errors: list[BaseException] = []

    def commit(reports: list[Any]) -> None:
        try:
            writer.commit(reports, 0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=commit, args=[reports]) for reports in tries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One that had not looked before the first was done may find its own files cleared away; Spark would repeat it.
    assert all(isinstance(error, Unavailable) for error in errors) and len(errors) < 3
    assert texts_of(queue) == wanted(0) and left_behind(queue) == ["0.done"]


@pytest.mark.parametrize("asleep_at", [0, 2])
def test_a_commit_that_sleeps_before_an_append_until_the_log_has_forgotten_it_stores_nothing_twice(
    queue: pxrs.Queue, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch, asleep_at: int
) -> None:
    """Its driver is thought to be dead, the next one repeats the commit, and others write a lot."""
    monkeypatch.setattr(sink_append, "SHIPMENT_BYTES", 300)
    reports, again = (messages(writer, 0, splits, False) for splits in (2, 3))
    append, calls = FileLog.append, iter(range(1_000))

    def asleep(self: FileLog, *args: Any) -> dict[int, int]:
        if next(calls) == asleep_at:
            writer.commit(again, 0)
            small = pxrs.Settings(segment_bytes=1_000)
            with pxrs.open(f"file:{queue.log.directory}", settings=small) as other, other.producer() as producer:
                for number in range(30):
                    producer.send(b"%d" % number, b"x" * 1_000).result()
        return append(self, *args)

    monkeypatch.setattr(FileLog, "append", asleep)
    writer.commit(reports, 0)
    assert [text for text in texts_of(queue) if text[0] != "x"] == wanted(0) and left_behind(queue) == ["0.done"]


def test_a_decision_that_came_too_late_is_void(queue: pxrs.Queue, writer: StreamWriter) -> None:
    """Another commit decided and finished between this one's look and its decision."""
    writer.commit(messages(writer, 0, 1, False), 0)
    ledger = Ledger(writer.root, QUERY)
    assert not ledger.decide(0, Decision(("none.arrow",), 1, 0, {}))
    assert not ledger.holds(0) and ledger.pending() == [] and left_behind(queue) == ["0.done"]


def test_what_was_decided_and_is_gone_is_an_error_that_names_it(queue: pxrs.Queue, writer: StreamWriter) -> None:
    reports = messages(writer, 0, 2, False)
    Ledger(writer.root, QUERY).decide(0, Decision(("lost.arrow",), 1, 0, {}))
    with pytest.raises(Damaged, match=r"a file that is to be stored is gone: .*lost\.arrow"):
        writer.commit(reports, 0)
    assert texts_of(queue) == []


def test_a_directory_that_tasks_and_driver_do_not_share_is_noticed(queue: pxrs.Queue, writer: StreamWriter) -> None:
    reports = messages(writer, 0, 2, False)
    shutil.rmtree(place_of(writer, 0).staged)
    with pytest.raises(Unavailable, match=r"task 0 on here wrote .* it is not: set option 'pxrs.staging'"):
        writer.commit(reports, 0)
    writer.commit(messages(writer, 0, 2, False), 0)
    assert texts_of(queue) == wanted(0)


# ---- what is left ----------------------------------------------------------------------------------------------------


def test_an_aborted_batch_leaves_nothing(queue: pxrs.Queue, writer: StreamWriter, tmp_path: Path) -> None:
    writer.abort([*messages(writer, 0, 2, False), None], 0)
    assert left_behind(queue) == []
    messages(writer, 0, 2, False)  # and now no task could say where it wrote
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "metadata").write_text('{"id":"4711"}\n')
    options = {"path": f"file:{queue.log.directory}", "checkpointlocation": f"file://{tmp_path}/checkpoint"}
    stream_writer(options, SCHEMA, False).abort([None, None], 0)
    assert left_behind(queue) == []


def test_a_commit_that_fails_half_way_is_not_thrown_away_by_its_abort(
    queue: pxrs.Queue, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_append, "SHIPMENT_BYTES", 300)
    reports, calls = messages(writer, 0, 2, False), 0

    def fail_later(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Unavailable("the disk is full")
        return patiently(*args)

    with monkeypatch.context() as patched:
        patched.setattr(sink_append, "patiently", fail_later)
        with pytest.raises(Unavailable):
            writer.commit(reports, 0)
    writer.abort(reports, 0)  # as Spark does then
    assert 0 < len(texts_of(queue)) < ROWS
    writer.commit(messages(writer, 0, 3, True), 0)
    assert texts_of(queue) == wanted(0) and left_behind(queue) == ["0.done"]


def test_what_the_dead_have_staged_is_cleared_away_and_what_counts_stays(
    queue: pxrs.Queue, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.commit(messages(writer, 0, 1, False), 0)
    for name in ("once-dead", "query-dead"):
        staged(writer, WritePaths(writer.root, name, 5), 0, rows_of(5))
    staged(writer, WritePaths(writer.root, "query-decided", 5), 0, rows_of(5))
    Ledger(writer.root, "query-decided").decide(5, Decision((), 1, 0, {}))
    Ledger(writer.root, "query-done").decide(3, Decision((), 1, 0, {}))
    Ledger(writer.root, "query-done").finish(3)
    before = left_behind(queue)
    writer.commit(messages(writer, 1, 1, False), 1)
    assert len(left_behind(queue)) == len(before), "what is young may be alive"
    monkeypatch.setattr(sink_ledger, "KEEP_SECONDS", -10)
    writer.commit(messages(writer, 2, 1, False), 2)
    assert sorted(os.listdir(writer.root)) == [QUERY, "query-decided", "query-done"]
    [kept] = [name for name in left_behind(queue) if name.endswith(".arrow")]
    assert kept in os.listdir(Path(writer.root, "query-decided", "5"))


# ---- what reaches the tasks ------------------------------------------------------------------------------------------


def test_no_address_reaches_the_tasks_of_a_stream(queue: pxrs.Queue) -> None:
    url = f"file:{queue.log.directory}/../orders"
    assert url.encode() not in pickle.dumps(stream_writer({"path": url}, SCHEMA, False))


def test_no_password_reaches_the_tasks_of_a_write(queue: pxrs.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark sends a batch writer to tasks and commit alike; what is secret stays in a file of the driver's user."""
    url = "nats://bob:secret-word@127.0.0.1:4222/orders"
    monkeypatch.setattr("pxrs.spark.write.writer.open_log", lambda *_: queue.log)
    writer = batch_writer({"path": url, "pxrs.staging": str(queue.log.directory)}, SCHEMA, False)
    assert b"secret-word" not in pickle.dumps(writer) and isinstance(writer.target, str)
    assert os.stat(writer.target).st_mode & 0o077 == 0
    writer.abort([])
    assert not os.path.exists(writer.target)


LOADED = "import json, sys; import pxrs.spark.write.spark_writers; print(json.dumps(sorted(sys.modules)))"
HEAVY = ("pxrs.runtime", "pxrs.stores", "pxrs.sinks", "pxrs.io.watch", "yaml", "sqlite3", "typer", "prometheus_client")


@pytest.mark.processes
def test_a_task_that_writes_loads_logs_and_rules_only() -> None:
    loaded = run_fresh(LOADED)
    assert "pxrs.spark.write.task" in loaded
    assert [name for name in loaded if name.startswith(HEAVY)] == []


# ---- a log that is not in files --------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_log_elsewhere_needs_a_directory_to_wait_in(nats_server: NatsServer, tmp_path: Path) -> None:
    url = f"nats://{nats_server.address}/sink-orders"
    options = {"path": url, "partitions": "3"}
    with pytest.raises(BadSetting, match=r"has no directory: set option 'pxrs.staging'"):
        stream_writer(options, SCHEMA, False)
    writer = stream_writer({**options, "pxrs.staging": str(tmp_path)}, SCHEMA, False)
    for splits, is_turned in ((2, False), (3, True)):
        writer.commit(messages(writer, 0, splits, is_turned), 0)
    with pxrs.open(log=url, registry=f"sqlite:{tmp_path}/registry.db") as queue:
        assert texts_of(queue) == wanted(0)
