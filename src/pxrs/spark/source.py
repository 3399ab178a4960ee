"""The data source behind ``spark.read.format("pxrs")``: Kafka's option names and columns.

Spark calls it in processes of its own: one makes the source, one plans, and the tasks read. Planning opens the log,
never a registry; what the tasks get are files and offsets. This module is imported in tasks, so what only planning
needs is loaded when it plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pxrs.spark.plan import Plan
from pxrs.spark.reading import Reading, TaskReader


class DefaultSource(DataSource):
    """The messages of a queue. ``path`` (or ``pxrs.log``) names the log; ``pxrs.spark.options`` lists the rest."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        from pxrs.spark.offsets import check_queue
        from pxrs.spark.options import parse

        check_queue(parse(options))  # what is wrong is said at load(), not when the first job runs

    @classmethod
    def name(cls) -> str:
        return "pxrs"

    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        from pxrs.spark.columns import schema_of
        from pxrs.spark.options import parse

        return from_arrow_schema(schema_of(parse(self.options).columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark.sql.pandas.types import to_arrow_schema

        options, self.options = self.options, {}  # this object travels to the tasks, which have no use for them
        arrow = to_arrow_schema(schema, timezone="UTC")
        return PlannedReader(_planned(options, arrow), arrow)


def _planned(options: Mapping[str, str], schema: pa.Schema) -> Plan:
    from pxrs.spark.offsets import plan_request
    from pxrs.spark.options import check_selection, parse

    return plan_request(parse(options), check_selection(schema))


class PlannedReader(DataSourceReader):
    """A decided plan: each partition that Spark sees is the share of one task. Only the task side is pickled."""

    def __init__(self, plan: Plan, schema: pa.Schema) -> None:
        self.plan = plan
        self.task_side = TaskReader(Reading(plan.topic, plan.columns, schema))

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in self.plan.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.task_side.read(partition)

    def __reduce__(self) -> tuple[type[TaskReader], tuple[Reading]]:
        return TaskReader, (self.task_side.reading,)
