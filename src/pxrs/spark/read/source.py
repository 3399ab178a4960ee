"""The data source behind ``format("pxrs")``, to read and to stream: Kafka's option names and columns.

Spark calls it in processes of its own: one makes the source, one plans, and the tasks read. Planning opens the log,
never a registry; what the tasks get are files and offsets. This module is imported in tasks, so what only planning
needs is loaded when it plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pxrs.spark.read.plan import Plan
from pxrs.spark.read.task import Arrival, ReadSpec, TaskReader


class DefaultSource(DataSource):
    """The messages of a queue. ``path`` (or ``pxrs.log``) names the log; ``pxrs.spark.read.options`` lists the rest."""

    @classmethod
    def name(cls) -> str:
        return "pxrs"

    def schema(self) -> StructType:
        """Asked for at ``load()``: what is wrong is said then, not when the first job runs."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from pxrs.spark.read.columns import declared
        from pxrs.spark.read.options import check_read
        from pxrs.spark.read.ranges import check_queue

        request = check_read(self.options)
        check_queue(request)
        return from_arrow_schema(declared(request.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        options, arrow = self._handed_over(schema)
        return PlannedReader(_planned(options, arrow), arrow)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options, arrow = self._handed_over(schema)
        # Not imported by name: tasks load this module, and must not know a registry.
        found: DataSourceStreamReader = import_module("pxrs.spark.stream.plain_reader").stream_reader(options, arrow)
        return found

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        found: DataSourceWriter = import_module("pxrs.spark.write.writer").batch_writer(self.options, schema, overwrite)
        return found

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        found: DataSourceStreamWriter = import_module("pxrs.spark.write.writer").stream_writer(
            self.options, schema, overwrite
        )
        return found

    def _handed_over(self, schema: StructType) -> tuple[Mapping[str, str], pa.Schema]:
        """The options, for the last time: this object travels to the tasks, which have no use for them."""
        from pyspark.sql.pandas.types import to_arrow_schema

        options, self.options = self.options, {}
        return options, to_arrow_schema(schema, timezone="UTC")


def _planned(options: Mapping[str, str], schema: pa.Schema) -> Plan:
    from pxrs.spark.read.options import check_selection, parse
    from pxrs.spark.read.ranges import plan_request

    return plan_request(parse(options), check_selection(schema))


class PlannedReader(DataSourceReader):
    """A decided plan: each partition that Spark sees is the share of one task. Only the task side is pickled."""

    def __init__(self, plan: Plan, schema: pa.Schema) -> None:
        self.plan = plan
        self.task_side = TaskReader(ReadSpec(plan.topic, plan.columns, schema))

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self.plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.task_side.read(partition)

    def __reduce__(self) -> Arrival:
        return self.task_side.__reduce__()
