"""The parts of a plan that reach the executors: files and offsets. No registry, no credential, no heavy import."""

from __future__ import annotations

import io
import pickle
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

import pxrs
from pxrs.spark import frame
from pxrs.spark.read.source import DefaultSource
from tests.spark.helpers import open_orders

pytestmark = pytest.mark.xdist_group("spark")

SECRET = "secret-registry"


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    """A queue whose registry stands at a place that is easy to recognise."""
    open_orders(tmp_path).close()
    with pxrs.open(log=f"file:{tmp_path}/orders", registry=f"sqlite:{tmp_path}/{SECRET}.db") as queue:
        yield queue


def sent_to_tasks(options: dict[str, str], schema: StructType) -> bytes:
    """The very bytes that Spark's planner sends: the read function with all that it holds, and the partitions."""
    source = pickle.loads(pickle.dumps(DefaultSource(options)))
    sent = io.BytesIO()
    write_read_func_and_partitions(
        sent, reader=source.reader(schema), data_source=source, schema=schema,
        max_arrow_batch_size=10_000, binary_as_bytes=True,
    )  # fmt: skip
    return sent.getvalue()


def function_of(df: DataFrame) -> bytes:
    """The pickled function that the tasks of a frame run, as it stands in Spark's plan, with all that it holds."""
    plan: Any = df._jdf.queryExecution().analyzed()
    command = plan.functionExpr().func().command()
    return bytes(command.apply(at) & 0xFF for at in range(command.size()))


def test_no_registry_reaches_the_tasks_of_a_frame(spark: SparkSession, queue: pxrs.Queue) -> None:
    df = frame(spark, queue, {0: (0, 10), 1: (3, 25)}, columns=["key", "id"], map_arrow=lambda batch: batch)
    sent = function_of(df)
    assert b"partition-1" in sent, "the files are named"
    for word in (SECRET, "sqlite"):
        assert word.encode() not in sent


def test_no_registry_is_shown_by_explain(
    spark: SparkSession, queue: pxrs.Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    frame(spark, queue, {0: (0, 10)}).explain(extended=True)
    spark.read.format("pxrs").load(f"file:{queue.log.directory}").explain(extended=True)
    shown = capsys.readouterr().out
    assert shown.count("pxrs") >= 2 and SECRET not in shown and "sqlite" not in shown


def test_the_address_of_the_log_stays_with_the_planner(queue: pxrs.Queue, tmp_path: Path) -> None:
    """Where a log's address holds a password, its tasks must not: they get pieces."""
    url = f"file:{tmp_path}/./orders"
    sent = sent_to_tasks({"path": url, "assign": '{"orders": [2]}'}, DefaultSource({"path": url}).schema())
    assert b"partition-2" in sent and url.encode() not in sent and b"assign" not in sent


def test_a_task_gets_its_own_slices_only(queue: pxrs.Queue, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/orders"
    source = DefaultSource({"path": url})
    reader = source.reader(source.schema())
    for partition in (0, 1):
        sent = pickle.dumps(reader.partitions()[partition])
        assert b"partition-%d" % partition in sent and b"partition-%d" % (1 - partition) not in sent
    assert b"partition-" not in pickle.dumps(reader), "the plan does not travel with the function"


ALLOWED = {
    "pxrs", "pxrs.errors", "pxrs.io", "pxrs.io.signals", "pxrs.model", "pxrs.settings", "pxrs.logs", "pxrs.logs.base",
    "pxrs.logs.pieces", "pxrs.logs.read_errors", "pxrs.logs.batches", "pxrs.logs.formats",
    "pxrs.logs.formats.segment", "pxrs.rules", "pxrs.rules.addressing", "pxrs.rules.texts", "pxrs.spark",
    "pxrs.spark.read", "pxrs.spark.read.columns", "pxrs.spark.read.plan", "pxrs.spark.read.task",
    "pxrs.spark.read.source", "pxrs.spark.spark_internals",
}  # fmt: skip
HEAVY = {"typer", "yaml", "prometheus_client", "sqlite3", "rich", "pydantic", "sqlalchemy"}


@pytest.mark.slow
@pytest.mark.processes
def test_a_task_loads_logs_and_rules_only(fresh_application: Any) -> None:
    loaded = set(fresh_application["modules"])
    ours = {name for name in loaded if name.split(".")[0] in ("pxrs", "pyspark_pxrs")}
    assert "pxrs.spark.read.task" in ours and ours <= ALLOWED, sorted(ours - ALLOWED)
    assert not loaded & HEAVY, sorted(loaded & HEAVY)


def test_a_worker_does_not_wait_before_it_acknowledges_its_task(spark: SparkSession, queue: pxrs.Queue) -> None:
    def connections(batch: pa.RecordBatch) -> pa.RecordBatch:
        found = []
        for descriptor in range(3, 64):
            with suppress(OSError), socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as one:
                found.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)
        return pa.RecordBatch.from_pydict({"hastened": found})

    df = frame(spark, queue, {0: (0, 10)}, columns=["key"], map_arrow=connections, schema="hastened boolean")
    found = [row.hastened for row in df.collect()]
    assert found and all(found)
