"""Checks for the fields of stored JSON: each returns the value as it is, or raises an error that says what is wrong.

A bad value is refused where it is read. Further on it would be claimed, counted with, and written back.
"""

from __future__ import annotations

import json
from typing import Any

LIMIT = 1 << 63
"""Offsets, epochs and counters are below this; a larger number was never written by us."""
_SHOWN = 60


class BadField(ValueError):
    """A field is not what it should be; the text says which and why."""


def parse(data: bytes | str) -> Any:
    """Parsed JSON. Whatever is wrong with it, deep nesting included, is a BadField."""
    try:
        return json.loads(data)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadField(f"it is no JSON ({type(error).__name__}): {shown(data)}") from None


def whole(name: str, value: Any) -> int:
    """A whole number from 0; True and 1.0 are none."""
    if type(value) is not int or not 0 <= value < LIMIT:
        raise BadField(f"{name} is {shown(value)}, which is no whole number from 0")
    return value


def whole_or_none(name: str, value: Any) -> int | None:
    return None if value is None else whole(name, value)


def text(name: str, value: Any) -> str:
    if type(value) is not str:
        raise BadField(f"{name} is {shown(value)}, which is no text")
    return value


def text_or_none(name: str, value: Any) -> str | None:
    return None if value is None else text(name, value)


def flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BadField(f"{name} is {shown(value)}, which is neither true nor false")
    return value


def moment(name: str, value: Any) -> float:
    """Seconds of a wall clock. They are for people, so any number will do that a clock could show."""
    if type(value) not in (float, int) or not -LIMIT < value < LIMIT:
        raise BadField(f"{name} is {shown(value)}, which is no time in seconds")
    return float(value)


def items(name: str, value: Any, length: int | None = None) -> list[Any]:
    """A list, of this length if one is given."""
    if type(value) is not list or (length is not None and len(value) != length):
        raise BadField(f"{name} is {shown(value)}, which is no list" + ("" if length is None else f" of {length}"))
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise BadField(f"{name} is {shown(value)}, which is no table of names and values")
    return value


def shown(value: Any) -> str:
    """The value for an error text: short, whatever it is."""
    try:
        found = repr(value)
    except (ValueError, RecursionError):  # a number of more than 4,300 digits, or very deep
        found = f"a {type(value).__name__}"
    return found if len(found) <= _SHOWN else found[: _SHOWN - 3] + "..."
