"""``pxrs run``: a pipeline that is written down in a file, as a member of its group; and what its cluster needs."""

from __future__ import annotations

import logging
import os
from typing import Annotated

import typer

from pxrs.apps.cli.commands.consume import sum_up
from pxrs.apps.cli.options import OwnName, UntilEnd
from pxrs.apps.cli.output import note


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The pipeline: a .py, .yaml or .yml file.")],
    queue: Annotated[str | None, typer.Option("--queue", metavar="URL", help="The queue, as in file:./orders.")] = None,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="The registry, where it is not beside the log.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="The group to join.")] = None,
    member: OwnName = None,
    master: Annotated[str | None, typer.Option("--master", metavar="MASTER", help="Spark's master: local[2].")] = None,
    ui: Annotated[bool | None, typer.Option("--ui/--no-ui", help="Show Spark's web page.")] = None,
    until_end: UntilEnd = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what happens, batch by batch.")] = False,
) -> None:
    """Run a pipeline on Spark, as a member of its group, until Ctrl-C or SIGTERM (a clean leave).

    A Python file's names and a YAML file's keys are the same: queue, registry, group, member, process, map_arrow,
    columns, schema, sink, start, settings, spark. In YAML a function is module:function, and a sink {parquet: DIR}
    or {queue: URL}. Options win over the file. Start it a second time, and the two share the partitions.
    """
    from pxrs.spark.pipeline.pipeline_file import build, load_spec

    logging.basicConfig(level=logging.WARNING, format="pxrs: %(message)s")
    if verbose:
        logging.getLogger("pxrs").setLevel(logging.INFO)
    spec = load_spec(file).with_(queue=queue, registry=registry, group=group, member=member, master=master, ui=ui)
    spec = spec if spec.queue else spec.with_(queue=os.environ.get("PXRS_URL"))
    # Lines of the log and a line that is rewritten do not go together.
    with build(spec, progress=False if verbose else None) as (spark, opened, pipeline):
        if spark.sparkContext.uiWebUrl:
            note(f"Spark's web page is {spark.sparkContext.uiWebUrl}")
        pipeline.run(until_end)
        sum_up(pipeline.tally, opened.name, spec.group or "")


def pyfiles(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The zip to write.")] = "pxrs.zip",
) -> None:
    """Write this library as a zip for spark-submit --py-files: for executors where it is not installed.

    They still need pyarrow, numpy, xxhash, mmh3 and pandas.
    """
    from pxrs.spark.setup.py_files import py_files

    note(f"wrote {py_files(file)}")
