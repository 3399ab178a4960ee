"""Programs that end without stopping their session or their pipeline, and sessions that end before their pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pxrs

pytestmark = [pytest.mark.slow, pytest.mark.processes]

_PROGRAM = """
import atexit, sys, threading

def last():  # registered first, so it comes last
    print(sorted(t.name for t in threading.enumerate() if t.name.startswith("pxrs-")))

atexit.register(last)
import pxrs
from pxrs.errors import HandlerFailed
from pxrs.spark import Pipeline, session

[url] = sys.argv[1:]
spark = session("leaves", master="local[1]")
queue = pxrs.open(url)
first, second = threading.Semaphore(0), threading.Event()
pipeline = Pipeline(spark, queue, "stopped", lambda df: first.release(), progress=False).start()
assert first.acquire(timeout=120)
spark.stop()
with queue.producer() as producer:
    producer.send("a", b"2")
assert pipeline.wait(120) and isinstance(pipeline.error, HandlerFailed)
print(pipeline.error)

spark = session("leaves", master="local[1]")
last_one = Pipeline(spark, queue, "left", lambda df: second.set(), progress=False).start()
assert second.wait(120)
print("done")
"""


def test_a_session_that_is_stopped_under_its_pipeline_and_a_program_that_stops_nothing(tmp_path: Path) -> None:
    with pxrs.open(f"file:{tmp_path}/queue", partitions=2) as queue, queue.producer() as producer:
        producer.send("a", b"1")
    command = [sys.executable, "-c", _PROGRAM, f"file:{tmp_path}/queue"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stderr
    why = "Spark was stopped under the pipeline of group 'stopped', or has died"
    what = "stop the pipeline first (pipeline.stop()), then call spark.stop()"
    assert ended.stdout.splitlines() == [f"{why}: {what}", "done", "[]"], "own text, and no thread is left at the end"
    assert "threw an exception" not in ended.stderr, "nobody complains that the session is gone"
