"""A table made to fit a terminal of 80 columns. Programs read CSV and JSON, which always hold everything. Pure.

What is done, step by step, until it fits: times lose their fractions, headings get shorter, columns that other commands
show too are left out, and long texts are cut.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pxrs.views.tables import Table

WIDTH = 80
CUT = "…"

_SHORT = {"CURRENT-OFFSET": "CURRENT", "LOG-END-OFFSET": "LOG-END", "#PARTITIONS": "COUNT"}
_SPARE = ("UI", "OLDEST", "HOST", "NEWEST", "TIME", "ENGINE", "PID", "JVM", "MESSAGES", "MEMBER", "TRIES", "APP")
"""Columns that a table can do without, in the order in which they are left out."""
_LEAST = {"ASSIGNMENT": 12, "CAUSE": 24, "DETAIL": 24, "FILE": 24, "KEY": 12, "VALUE": 12}
"""Columns of long texts, and how much of a text is shown at least."""
_PATHS = ("FILE",)
"""The end of a path says more than its beginning."""
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d+\+00:00")


def above(table: Table) -> tuple[dict[str, Any], Table]:
    """The facts that are the same for all rows, to stand once above them, and the table without their columns."""
    facts = {name: row[table.columns.index(name)] for row in table.rows[:1] for name in table.once}
    return facts, _without(table, *table.once)


def fitted(table: Table, width: int = WIDTH) -> Table:
    """The table as it is if it fits, else a narrower one."""
    if table.width <= width:
        return table
    table = replace(table, columns=[_SHORT.get(name, name) for name in table.columns], rows=_plain_times(table))
    for name in _SPARE:
        if _least_width(table) <= width:
            break
        table = _without(table, name)
    return _cut(table, width)


def _plain_times(table: Table) -> list[list[Any]]:
    return [[_TIME.sub(r"\1Z", cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows]


def _without(table: Table, *names: str) -> Table:
    kept = [place for place, name in enumerate(table.columns) if name not in names]
    rows = [[row[place] for place in kept] for row in table.rows]
    return replace(table, columns=[table.columns[place] for place in kept], rows=rows, once=())


def _least_width(table: Table) -> int:
    """How wide the table is when all its long texts are cut."""
    texts = zip(table.columns, table.widths, strict=True)
    return table.width - sum(max(0, wide - _LEAST[name]) for name, wide in texts if name in _LEAST)


def _cut(table: Table, width: int) -> Table:
    """Long texts, those on the right first, cut by what is too much."""
    for place, name in reversed(list(enumerate(table.columns))):
        if name in _LEAST and table.width > width:
            room = max(_LEAST[name], table.widths[place] - (table.width - width))
            rows = [[*row[:place], _short(row[place], room, name in _PATHS), *row[place + 1 :]] for row in table.rows]
            table = replace(table, rows=rows)
    return table


def _short(value: Any, room: int, from_the_left: bool) -> Any:
    if not isinstance(value, str) or len(value) <= room:
        return value
    return CUT + value[len(value) - room + 1 :] if from_the_left else value[: room - 1] + CUT
