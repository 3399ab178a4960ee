"""``stream.writeStream.format("pxrs")`` in a real Spark: batches, replays, and drivers that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import pxrs
from tests.spark.write.helpers import left_behind, texts_of

pytestmark = pytest.mark.xdist_group("spark")

EACH = 40
"""Lines in a file; a file is a batch."""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[pxrs.Queue]:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=4) as queue:
        yield queue


def put(directory: Path, *files: int) -> None:
    directory.mkdir(exist_ok=True)
    for file in files:
        lines = "".join(f"{file:02d}/{row:03d}\n" for row in range(EACH))
        (directory / f".{file:02d}.txt").write_text(lines, encoding="utf-8")
        os.utime(directory / f".{file:02d}.txt", (1_700_000_000 + file,) * 2)  # Spark takes the oldest first
        os.rename(directory / f".{file:02d}.txt", directory / f"{file:02d}.txt")


def lines(*files: int) -> list[str]:
    return [f"{file:02d}/{row:03d}" for file in files for row in range(EACH)]


def stream(spark: SparkSession, directory: Path) -> DataFrame:
    found = spark.readStream.option("maxFilesPerTrigger", 1).text(str(directory))
    return found.selectExpr("concat('k', cast(substr(value, 4) AS int) % 7) AS key", "value")


def run(df: DataFrame, queue: pxrs.Queue, checkpoint: Path, mode: str = "append") -> None:
    writing = df.writeStream.format("pxrs").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writing.option("path", f"file:{queue.log.directory}").trigger(availableNow=True).start()
    query.awaitTermination()


@pytest.mark.slow
def test_b74_a_stream_is_stored_once_also_when_its_last_batch_comes_again(
    spark: SparkSession, queue: pxrs.Queue, tmp_path: Path
) -> None:
    """The commit log has lost its last entry, as after a death behind the commit; the rows come in other tasks."""
    checkpoint, files = tmp_path / "checkpoint", tmp_path / "files"
    put(files, 1, 2)
    run(stream(spark, files), queue, checkpoint)
    assert texts_of(queue) == lines(1, 2) and left_behind(queue) == ["1.done"]
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    put(files, 3)
    run(stream(spark, files).repartition(3), queue, checkpoint)
    assert texts_of(queue) == lines(1, 2, 3) and left_behind(queue) == ["2.done"]


def test_other_output_modes_are_refused(spark: SparkSession, queue: pxrs.Queue, tmp_path: Path) -> None:
    put(tmp_path / "files", 1)
    counted = (
        stream(spark, tmp_path / "files").groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")
    )
    for mode, said in (("complete", "a queue only grows"), ("update", "does not support Update mode")):
        with pytest.raises(PySparkException, match=said):
            run(counted, queue, tmp_path / mode, mode)
    assert texts_of(queue) == [] and left_behind(queue) == []


def test_a_batch_that_fails_leaves_nothing(spark: SparkSession, queue: pxrs.Queue, tmp_path: Path) -> None:
    put(tmp_path / "files", 1)
    broken = stream(spark, tmp_path / "files").selectExpr("key", "if(value = '01/030', null, value) AS value")
    with pytest.raises(PySparkException, match="column 'value' holds a null"):
        run(broken, queue, tmp_path / "checkpoint")
    assert texts_of(queue) == [] and left_behind(queue) == []


# ---- drivers that are killed -----------------------------------------------------------------------------------------

HOOKS = """
import os, signal
from pathlib import Path
from pxrs.runtime.producer.append_once import AppendOnce
from pxrs.spark.write import append as appending

appending.SHIPMENT_BYTES = 300
moment = os.environ.get("KILL_AT", "")

def kill_driver():
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)

def append(self, batches, stamp, after):
    batch, shipment = divmod(stamp.sequence, 1 << 20)
    if moment == f"batch {batch}, shipment {shipment}":
        kill_driver()
        os.kill(os.getpid(), signal.SIGKILL)
    return real_append(self, batches, stamp, after)

real_append, AppendOnce.append = AppendOnce.append, append
"""

APPLICATION = """
import sys
from pathlib import Path
from tests.spark.write.test_stream import stream
from pxrs.testing.spark import lean_session

place, tasks = Path(sys.argv[1]), int(sys.argv[2])
spark = lean_session()
rows = stream(spark, place / "files").repartition(tasks, "key")
writing = rows.writeStream.format("pxrs").option("checkpointLocation", str(place / "checkpoint"))
writing.option("path", f"file:{place}/orders").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def drive(place: Path, tasks: int, kill_at: str) -> str:
    """One life of the application. The hooks are in all its Python processes; they only wait for their moment."""
    root = Path(__file__).resolve().parents[3]
    env = os.environ | {"PYTHONPATH": f"{place / 'hooks'}{os.pathsep}{root}", "KILL_AT": kill_at}
    ended = subprocess.run(
        [sys.executable, "-c", APPLICATION, str(place), str(tasks)],
        capture_output=True, text=True, timeout=280, check=False, env=env,
    )  # fmt: skip
    said = ended.stdout + ended.stderr
    assert (ended.returncode != 0) == bool(kill_at), said
    return said


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_b74_a_driver_killed_at_any_moment_of_a_commit_stores_its_batch_once(queue: pxrs.Queue, tmp_path: Path) -> None:
    """In the middle of its appends, and repeated with other tasks. Every other moment, without Spark, is in
    ``test_kills``."""
    put(tmp_path / "files", 1, 2, 3)
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(HOOKS, encoding="utf-8")
    said = drive(tmp_path, 2, "batch 1, shipment 1")
    assert EACH < len(texts_of(queue)) < 2 * EACH, f"batch 1 does not stand there in part: {said}"
    drive(tmp_path, 3, "")
    assert texts_of(queue) == lines(1, 2, 3) and left_behind(queue) == ["2.done"]
    per_key = defaultdict(list)
    for partition, end in queue.ends().items():
        for message in queue.read(partition=partition, offset=0, limit=end + 1):
            per_key[message.key].append(message.text)
    assert len(per_key) == 7 and all(rows == sorted(rows) for rows in per_key.values()), "the order of each key"
