"""What a Spark task has raised, found in the text of the error that reaches the driver."""

from __future__ import annotations

import re

from pxrs.errors import Damaged, StopConsuming, Unavailable
from pxrs.logs.reading import ReadFailed

_TRACEBACK = "Traceback (most recent call last):\n"
_STOP = re.compile(r"pxrs\.errors\.StopConsuming(?::|$)")
_READ = re.compile(r"pxrs\.logs\.reading\.ReadFailed: partition (\d+|\?): (\w+): (.*)")


def as_raised(error: BaseException) -> BaseException:
    """The error of PXRS that a task has raised; any other error as it is.

    Only errors of Spark are looked into: the text of another one may hold anything, a message too.
    """
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return error
    line = last_line(str(error))
    if _STOP.match(line):
        return StopConsuming(line)
    if found := _READ.match(line):
        kind = Damaged if found[2] in ("Damaged", "WentBack", "NewerFormat") else Unavailable
        return ReadFailed(None if found[1] == "?" else int(found[1]), kind(found[3]))
    return error


def last_line(text: str) -> str:
    """The line that names the error at the end of the last Python traceback: the first one that is not indented."""
    _, found, traceback = text.rpartition(_TRACEBACK)
    lines = traceback.splitlines() if found else []
    return next((line for line in lines if not line.startswith(" ")), "")
