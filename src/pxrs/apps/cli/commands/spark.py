"""``pxrs spark``: files that a Spark cluster needs of this library."""

from __future__ import annotations

from typing import Annotated

import typer

from pxrs.apps.cli.output import note
from pxrs.spark.setup.py_files import py_files


def pyfiles(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The zip to write.")] = "pxrs.zip",
) -> None:
    """Write this library as a zip for spark-submit --py-files: for executors where it is not installed.

    They still need pyarrow, numpy, xxhash, mmh3 and pandas.
    """
    note(f"wrote {py_files(file)}")
