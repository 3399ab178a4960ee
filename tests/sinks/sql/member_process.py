"""A consumer with an SQL sink in a process of its own. It ends when all messages are committed.

python -m tests.sinks.sql.member_process '{"log": ..., "registry": ..., "database": ..., "table": ..., "member": ...}'
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pyarrow as pa

import pxrs
from pxrs.sinks import SqlSink


def main(config: dict[str, Any]) -> None:
    def handle(batch: pa.RecordBatch) -> pa.Table:
        time.sleep(config["delay"])  # the work of this handler
        return pa.table({"key": batch.column("key"), "value": batch.column("value")})

    settings = pxrs.Settings(**config["settings"])
    sink = SqlSink(config["database"], config["table"])
    with pxrs.open(log=config["log"], registry=config["registry"], settings=settings) as queue:
        consumer = queue.consumer("g", handle, member=config["member"], deliver="arrow", sink=sink)
        with consumer:
            while not consumer.wait(0.05) and queue.group("g").describe().total_lag > 0:
                consumer.check()
            consumer.check()
    sink.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
