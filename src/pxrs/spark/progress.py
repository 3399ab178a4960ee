"""A live line on the terminal: how fast, how far behind, how many partitions, how long a batch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TextIO

from pxrs.clock import Clock
from pxrs.runtime.report import Report


def live_line(wanted: bool | None, clock: Clock, out: TextIO | None = None) -> list[Report]:
    """The listener that draws the line: if it is wanted, and by default wherever somebody can look at it."""
    terminal = out or sys.stderr
    shown = terminal.isatty() if wanted is None else wanted
    return [_LiveLine(terminal, clock)] if shown else []


class _LiveLine:
    """Rewrites one line for each batch; where lines cannot be rewritten, writes one for each."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._began: float | None = None
        self._rows = 0
        self._width = 0

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "batch":
            self._began = self._began or self._clock.monotonic() - facts["seconds"]
            self._rows += facts["rows"] if facts["outcome"] == "committed" else 0
            self._show(line(facts, self._rows))
        elif kind == "left" and self._width:
            self._end()

    def _show(self, text: str) -> None:
        end = "" if self._out.isatty() else "\n"
        begin = "\r" if self._out.isatty() else ""
        self._out.write(begin + text.ljust(self._width if begin else 0) + end)
        self._out.flush()
        self._width = len(text)

    def _end(self) -> None:
        if self._out.isatty():
            self._out.write("\n")
            self._out.flush()
        self._width = 0


def line(facts: Mapping[str, Any], total: int) -> str:
    """One batch as a person wants to see it."""
    seconds = max(facts["seconds"], 1e-6)
    return (
        f"{facts['member']}: batch {facts['batch']} {facts['outcome']}, {facts['rows']:,} rows in {seconds:.2f} s "
        f"({facts['rows'] / seconds:,.0f} rows/s), {facts['owned']} partitions, lag {facts['lag']:,}, {total:,} in all"
    )
