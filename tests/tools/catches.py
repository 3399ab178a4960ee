"""Lists the tests of the suites that catch each fault planted in a store or a log: ``python -m tests.tools.catches``.

``test_conformance_catches`` runs the one test that is named for each fault; this runs all of them, for every fault.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pxrs.testing.conformance import run_suite
from pxrs.testing.log_conformance import run_log_suite
from tests.logs.broken.logs import BROKEN_LOGS, BrokenLogSuite
from tests.stores.broken import BROKEN, BrokenSuite


def caught(faults: Mapping[str, tuple[Any, str]], run: Callable[[Any], Collection[str]]) -> Iterator[tuple[str, bool]]:
    """A line for each fault, the test that is named for it first; and whether that one has caught it."""
    for fault, (kind, named) in faults.items():
        broken = run(kind)
        names = [name.removeprefix("test_") for name in (named, *sorted({*broken} - {named}))]
        yield f"{fault:<36}{len(names):>3}  {', '.join(names[:2])}", named in broken


def missed() -> list[str]:
    """Print both tables; the lines of faults that the test named for them let pass."""
    found = []
    for what, lines in (
        ("store", caught(BROKEN, lambda kind: run_suite(BrokenSuite(kind)))),
        ("log", caught(BROKEN_LOGS, lambda kind: run_log_suite(BrokenLogSuite(kind)))),
    ):
        print(f"{f'fault planted in the {what}':<38} tests that caught it, the one named for it first")
        for line, is_caught in lines:
            print(line, flush=True)
            found += [] if is_caught else [line]
    return found


if __name__ == "__main__":
    sys.exit(bool(missed()))
