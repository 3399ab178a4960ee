"""One consumer of the demo: a process (``python -m pxrs.apps.demo.member``), a thread, or a Spark application.

It writes one JSON line for each message that it handles; a single write to a file that is opened for appending is
whole or not there, also when the process is killed. A Spark application writes into a directory of Parquet files that
all three share: each row says which batch of which application wrote it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pxrs.model import Batch, Message
    from pxrs.runtime.delivery import Context
    from pxrs.settings import Settings

GROUP = "billing"
_COLUMNS = ("key", "value", "partition", "offset", "epoch")
# Many small applications on few cores: compile quickly rather than well, and collect garbage with one thread.
_LEAN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_WORK_SECONDS = 0.002


def demo_settings(engine: str = "processes") -> Settings:
    """A short lease makes a short story; small steps between commits show what a crash may repeat.

    Three JVMs that start at once keep two cores busy: with Spark a beat may come a little late.
    """
    from pxrs.settings import Settings

    lease_ms = 4_000 if engine == "spark" else 2_000
    return Settings(lease_ms=lease_ms, poll_ms=1_000, commit_every=7, commit_interval_ms=1_000)


def recorder(member: str, path: str) -> Callable[[Message, Context], None]:
    """A handler that works a moment and then writes down what it has handled."""
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def handle(message: Message, context: Context) -> None:
        time.sleep(_WORK_SECONDS)
        line = {
            "member": member,
            "pid": os.getpid(),
            "partition": message.partition,
            "offset": message.offset,
            "epoch": context.epoch,
            "key": (message.key or b"").decode(),
            "number": message.json()["number"],
        }
        os.write(out, json.dumps(line).encode() + b"\n")

    return handle


def run_consumer(log: str, registry: str, member: str, path: str) -> None:
    import pxrs

    with pxrs.open(log=log, registry=registry, settings=demo_settings(), create=False) as queue:
        consumer = queue.consumer(GROUP, recorder(member, path), member)
        leave_with_parent(consumer.stop)
        consumer.run()


def leave_with_parent(leave: Callable[[], None]) -> None:
    """Stdin is a pipe from the demo: when it ends, however the demo has ended, nobody needs this process."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: a thread that waits in there holds a lock that Python's end needs
            pass
        leave()

    threading.Thread(target=watch, daemon=True).start()


# ---- as a Spark application ------------------------------------------------------------------------------------------


def _batch_recorder(member: str) -> Callable[[Any, Batch], Any]:
    """The function for each batch: it writes down the messages, and who has processed them."""

    def process(df: Any, batch: Batch) -> Any:
        return df.selectExpr(
            f"'{member}' AS member",
            f"{os.getpid()} AS pid",
            f"{batch.number} AS batch",
            "`partition`",
            "`offset`",
            "epoch",
            "CAST(key AS STRING) AS key",
            "CAST(get_json_object(CAST(value AS STRING), '$.number') AS INT) AS number",
        )

    return process


def run_application(log: str, registry: str, member: str, output: str) -> None:
    leave: list[Callable[[], None]] = [lambda: os._exit(1)]  # nothing to leave yet; the JVM ends with this process
    leave_with_parent(lambda: leave[-1]())
    import pxrs
    from pxrs.sinks import ParquetSink
    from pxrs.spark import Pipeline, session

    spark = session(f"pxrs-demo-{member}", master="local[1]", memory="512m", config=_LEAN)
    with pxrs.open(log=log, registry=registry, settings=demo_settings("spark"), create=False) as queue:
        pipeline = Pipeline(
            spark, queue, GROUP, _batch_recorder(member), sink=ParquetSink(output), member=member, columns=_COLUMNS
        )
        leave.append(pipeline.stop)
        pipeline.run()
    spark.stop()


if __name__ == "__main__":
    {"processes": run_consumer, "spark": run_application}[sys.argv[1]](*sys.argv[2:])
