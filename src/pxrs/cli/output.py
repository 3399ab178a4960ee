"""What commands print: results on stdout, for pipes; notes, errors and progress bars on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pxrs.cli.options import Form
from pxrs.views.fitting import above, fitted
from pxrs.views.tables import Table, as_header

LAG_EXIT_CODE = 3
INTERRUPTED_EXIT_CODE = 130


def note(text: str) -> None:
    """A word to the person at the terminal, out of the way of pipes."""
    print(f"pxrs: {text}", file=sys.stderr)


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
