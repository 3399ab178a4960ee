"""The command line ``pxrs``: one function for each verb, listed in ``pxrs.apps.cli.app``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

_STREAMS = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
"""The way in which a closed stream is opened: reading and printing fail, each in its place; complaints go nowhere."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 3 too much lag, 130 interrupted."""
    _open_closed_streams()
    try:
        from pxrs.apps.cli.app import run  # here, so that importing this package costs nothing

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # the import takes a moment, and somebody may change their mind
        return 130


def _open_closed_streams() -> None:
    """Give streams that the caller has closed (``>&-``) a file. Else the next file that is opened, a segment of the log
    perhaps, would get their number, and a command of --exec would write into it."""
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, open(number, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115 - for as long as the process lives
