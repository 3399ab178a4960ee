"""A member in a process of its own: it consumes, and writes one JSON line for each thing that happens.

All members of a test write to one file. Each line is one write in append mode, so lines never mix and stand in the
order in which they were written.

    python -m tests.acceptance.member_process '{"url": ..., "group": ..., "member": ..., "out": ...}'
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pxrs
from pxrs.errors import PxrsError


class Writer:
    """Lines of what happened, each with the member and the process."""

    def __init__(self, path: str, member: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._who = {"by": member, "pid": os.getpid()}

    def line(self, what: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"what": what, **self._who, **facts}, default=str) + "\n").encode())

    def report(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.line(kind, **facts)


def main(config: dict[str, Any]) -> None:
    writer = Writer(config["out"], config["member"])
    delay = config.get("delay", 0.0)

    def handle(message: pxrs.Message, context: pxrs.Context) -> None:
        if delay:
            time.sleep(delay)  # the work of this handler
        key = message.key.decode() if message.key else None
        place = {"partition": message.partition, "offset": message.offset, "epoch": context.epoch}
        writer.line("handled", key=key, value=message.text, **place)

    def place(partition: int, position: int, epoch: int) -> dict[str, int]:
        return {"partition": partition, "position": position, "epoch": epoch}

    queue = pxrs.open(config["url"], settings=pxrs.Settings(**config.get("settings", {})))
    consumer = queue.consumer(
        config["group"],
        handle,
        member=config["member"],
        assigned=lambda *facts: writer.line("assigned", **place(*facts)),
        revoked=lambda *facts: writer.line("revoked", **place(*facts)),
        report=writer.report,
    )
    if config.get("measure"):
        threading.Thread(target=measure, args=(consumer, writer, config["measure"]), daemon=True).start()
    try:
        consumer.run()
    except PxrsError as error:
        writer.line("ended", state=consumer.state, error=type(error).__name__)
    else:
        writer.line("ended", state=consumer.state, error=None)
    queue.close()


def measure(consumer: pxrs.Consumer, writer: Writer, seconds: float) -> None:
    """The processor time that this process needs while nothing happens."""
    while consumer.state != "live":
        time.sleep(0.05)
    time.sleep(1)  # the settling of the group is not idleness
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(seconds)  # what is measured
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    writer.line("measured", cpu_seconds=used, seconds=seconds)
    consumer.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
