"""One consumer of the demo that is a Spark application: ``python -m pxrs.apps.demo.spark_member``.

Its output is a directory of Parquet files that all three share. Each row says which batch of which application wrote
it, so that the proof can be read from the files alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pxrs.apps.demo.member import GROUP, demo_settings, leave_with_parent

if TYPE_CHECKING:
    from pxrs.model import Batch

_COLUMNS = ("key", "value", "partition", "offset", "epoch")
# Many small applications on few cores: compile quickly rather than well, and collect garbage with one thread.
_LEAN = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def recorder(member: str) -> Callable[[Any, Batch], Any]:
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


def main(log: str, registry: str, member: str, output: str) -> None:
    leave: list[Callable[[], None]] = [lambda: os._exit(1)]  # nothing to leave yet; the JVM ends with this process
    leave_with_parent(lambda: leave[-1]())
    import pxrs
    from pxrs.sinks import ParquetSink
    from pxrs.spark import Pipeline, session

    spark = session(f"pxrs-demo-{member}", master="local[1]", memory="512m", config=_LEAN)
    with pxrs.open(log=log, registry=registry, settings=demo_settings("spark"), create=False) as queue:
        pipeline = Pipeline(
            spark, queue, GROUP, recorder(member), sink=ParquetSink(output), member=member, columns=_COLUMNS
        )
        leave.append(pipeline.stop)
        pipeline.run()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
