"""Prints results of commands on stdout, for pipes; notes, errors and progress bars on stderr."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from pxrs.apps.cli.options import Form
from pxrs.runtime.views.tables import Table, as_header

LAG_EXIT_CODE = 3
INTERRUPTED_EXIT_CODE = 130


def note(text: str) -> None:
    """A word to the person at the terminal, out of the way of pipes."""
    print(f"pxrs: {text}", file=sys.stderr)


@contextmanager
def until_asked_to_end() -> Iterator[None]:
    """Goes on until Ctrl-C, SIGTERM or SIGHUP: for a command that has no other end, none of them is an error."""
    from pxrs.runtime.group.membership import signals

    def end() -> None:
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), signals(end):
        yield


def show(table: Table, form: Form, header: dict[str, Any] | None = None, rows_name: str = "rows") -> None:
    """Print a table, with a block of facts above it if there are some."""
    print(rendered(table, form, header, rows_name), flush=True)


def rendered(table: Table, form: Form, header: dict[str, Any] | None = None, rows_name: str = "rows") -> str:
    if form == "csv":
        return table.as_csv()
    if form == "json":
        return _as_json(table, header, rows_name)
    facts, table = above(table)
    facts |= header or {}
    text = fitted(table).as_text()
    return f"{as_header(facts)}\n\n{text}" if facts else text


def _as_json(table: Table, header: dict[str, Any] | None, rows_name: str) -> str:
    if header is None:
        return table.as_json()
    facts = {name.lower().replace("-", "_"): value for name, value in header.items()}
    return json.dumps(facts | {rows_name: table.as_objects()}, indent=2)


@contextmanager
def progress(label: str, total: int | None, unit: str = "messages") -> Iterator[Callable[[int], None]]:
    """Yields a function that moves a bar on. There is a bar only where somebody can see it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


# ---- a table that fits a terminal -----------------------------------------------------------------------------------
# What is done, step by step, until it fits: times lose their fractions, headings get shorter, columns that other
# commands show too are left out, and long texts are cut.


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
    """Take the columns that are the same in all rows out of the table, to print them once above it."""
    facts = {name: row[table.columns.index(name)] for row in table.rows[:1] for name in table.once}
    return facts, _without(table, *table.once)


def fitted(table: Table, width: int = WIDTH) -> Table:
    """The table as it is if it fits, else a narrower one."""
    if table.width <= width:
        return table
    rows = [[_TIME.sub(r"\1Z", cell) if isinstance(cell, str) else cell for cell in row] for row in table.rows]
    table = replace(table, columns=[_SHORT.get(name, name) for name in table.columns], rows=rows)
    for name in _SPARE:
        if _least_width(table) <= width:
            break
        table = _without(table, name)
    return _cut(table, width)


def _without(table: Table, *names: str) -> Table:
    kept = [place for place, name in enumerate(table.columns) if name not in names]
    rows = [[row[place] for place in kept] for row in table.rows]
    return replace(table, columns=[table.columns[place] for place in kept], rows=rows, once=())


def _least_width(table: Table) -> int:
    """The width of the table when all its long texts are cut."""
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
