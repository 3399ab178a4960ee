"""Tables for people and for programs: the same rows as aligned text, as JSON, or as CSV. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

MISSING = "-"
"""The sign for nothing in text and CSV, as in Kafka's tools."""
UNKNOWN = "?"
"""The sign in text and CSV for a number that exists, but is not known."""
_BETWEEN = "  "


@dataclass(frozen=True)
class Table:
    """Column names as they are printed (``LOG-END-OFFSET``), and rows of plain values.

    ``once`` names columns whose value is the same in all rows: people see it once, above the table.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]] = field(default_factory=list)
    once: Sequence[str] = ()

    @property
    def widths(self) -> list[int]:
        """The width of each column in the text."""
        lines = [list(self.columns), *([_cell(value) for value in row] for row in self.rows)]
        return [max(len(line[place]) for line in lines) for place in range(len(self.columns))]

    @property
    def width(self) -> int:
        """The width of the text."""
        return sum(self.widths) + len(_BETWEEN) * (len(self.columns) - 1)

    def as_text(self) -> str:
        """Aligned columns, numbers to the right. One line for each row, so that scripts can grep."""
        cells = [[_cell(value) for value in row] for row in self.rows]
        lines = [list(self.columns), *cells]
        widths = self.widths
        to_the_right = [_is_numeric([row[place] for row in self.rows]) for place in range(len(self.columns))]
        return "\n".join(_aligned(line, widths, to_the_right) for line in lines)

    def as_csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return out.getvalue().rstrip("\n")

    def as_objects(self) -> list[dict[str, Any]]:
        """Each row with the column names as programs like them: ``log_end_offset``."""
        names = [name.lower().lstrip("#").replace("-", "_").replace(" ", "_") for name in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    def as_json(self) -> str:
        return json.dumps(self.as_objects(), indent=2)


def as_header(facts: dict[str, Any]) -> str:
    """A block of ``NAME  value`` lines above a table."""
    width = max(map(len, facts), default=0)
    return "\n".join(f"{name:<{width}}  {_cell(value)}" for name, value in facts.items())


def as_html(table: Table) -> str:
    """The table for notebooks; all cells are shown as text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_cell(value))}</td>' for value in row)}</tr>" for row in table.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def span(seconds: float | None) -> str:
    """A duration as people say it: ``42s``, ``5m``, ``3h``, ``12d``; "?" if it is not known."""
    if seconds is None:
        return UNKNOWN
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def counted(number: int, noun: str) -> str:
    """``1 group``, ``2 groups``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers, short: ``0-2,5``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found) or MISSING


def _cell(value: Any) -> str:
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or MISSING
    # A line break inside a cell would tear the row apart.
    return str(value).replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def _is_numeric(values: list[Any]) -> bool:
    kinds = {type(value) for value in values if value not in (None, UNKNOWN)}
    return bool(kinds) and kinds <= {int, float}


def _aligned(cells: Sequence[str], widths: list[int], to_the_right: list[bool]) -> str:
    placed = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(cells, widths, to_the_right, strict=True)
    )
    return _BETWEEN.join(placed).rstrip()
