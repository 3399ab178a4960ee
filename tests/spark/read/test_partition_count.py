"""A queue that was removed and made anew with another number of partitions: what was remembered of the old one is
refused, by a stream and by a Pipeline, before a single message is taken."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pxrs
from pxrs.errors import Mismatch
from pxrs.spark import Pipeline, fenced
from tests.spark.helpers import EACH, PARTITIONS, messages, open_orders
from tests.spark.stream.helpers import begin

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def make_anew(tmp_path: Path) -> None:
    """The same name in the same place, with half as many partitions. Its registry is elsewhere, and stays."""
    shutil.rmtree(tmp_path / "orders")
    with pxrs.open(f"file:{tmp_path}/orders", partitions=PARTITIONS // 2) as queue:
        queue.log.append({0: messages(0, range(EACH))})


def test_b79_a_stream_and_a_pipeline_refuse_a_queue_that_was_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    registry, counted = f"sqlite:{tmp_path}/registry.db", [0]
    group = {"pxrs.group.id": "g", "pxrs.registry": registry}

    def count(df: DataFrame, _: Any) -> None:
        counted[0] += df.count()

    def stream(checkpoint: str) -> None:
        read = spark.readStream.format("pxrs").options(**group).load(f"file:{tmp_path}/orders")
        writing = read.writeStream.foreachBatch(fenced(count)).option("checkpointLocation", f"{tmp_path}/{checkpoint}")
        begin(writing.trigger(availableNow=True)).awaitTermination()

    def pipeline() -> None:
        with pxrs.open(log=f"file:{tmp_path}/orders", registry=registry) as queue:
            Pipeline(spark, queue, group="p", process=count).run(until_end=True)

    open_orders(tmp_path).close()
    stream("old")
    pipeline()
    assert counted == [2 * PARTITIONS * EACH]
    make_anew(tmp_path)
    with pytest.raises(StreamingQueryException, match="created anew, with another number of partitions perhaps"):
        stream("old")
    with pytest.raises(StreamingQueryException, match="created with partitions = 4, and is opened with 2"):
        stream("new")
    with pytest.raises(Mismatch, match="group 'p' was created with partitions = 4, and is opened with 2"):
        pipeline()
    assert counted == [2 * PARTITIONS * EACH], "nothing was taken"
