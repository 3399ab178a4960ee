"""The command line ``pxrs``: one function for each verb, listed in ``pxrs.apps.cli.app``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 3 too much lag, 130 interrupted."""
    try:
        from pxrs.apps.cli.app import run  # here, so that importing this package costs nothing

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # the import takes a moment, and somebody may change their mind
        return 130
