"""A process of version 0.5.1, from its wheel: it sends one message, and consumes as group "old"."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WHEEL = Path(__file__).parents[2] / "data" / "pxrs-0.5.1-py3-none-any.whl"
_PROGRAM = """
import sys, threading, pxrs
assert pxrs.__version__ == "0.5.1"
with pxrs.open(log=sys.argv[1], registry=sys.argv[2], partitions=1) as queue:
    with queue.producer() as producer:
        sent = producer.send("k", b"v").result()
    seen = threading.Event()
    with queue.consumer("old", lambda message: message.offset == sent[1] and seen.set()):
        assert seen.wait(60), "what was sent is consumed"
    queue.housekeep()
    print(queue.groups())
"""


def consume_with_0_5(log: str, registry: str) -> str:
    """What it prints: the groups of the queue."""
    environment = {**os.environ, "PYTHONPATH": str(WHEEL)}
    command = [sys.executable, "-c", _PROGRAM, log, registry]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()
