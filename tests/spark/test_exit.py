"""A program that ends without stopping its session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pxrs

pytestmark = [pytest.mark.slow, pytest.mark.processes]

_PROGRAM = """
import sys
from pxrs.spark import session

spark = session("leaves", master="local[1]")
stream = spark.readStream.format("pxrs").option("startingOffsets", "earliest").load(sys.argv[1])
writer = stream.writeStream.format("noop").option("checkpointLocation", sys.argv[2])
writer.trigger(availableNow=True).start().awaitTermination()
print("done")
"""


def test_nobody_complains_that_the_listener_of_the_session_is_gone(tmp_path: Path) -> None:
    with pxrs.open(f"file:{tmp_path}/queue", partitions=2) as queue, queue.producer() as producer:
        producer.send("a", b"1")
    command = [sys.executable, "-c", _PROGRAM, f"file:{tmp_path}/queue", str(tmp_path / "checkpoint")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert "threw an exception" not in ended.stderr
