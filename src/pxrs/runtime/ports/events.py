"""The events of a member, for log lines, metrics, and the history that the checker reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Report(Protocol):
    """Called with the kind of event ("claimed", "committed", "fenced", ...) and its facts. Must be quick."""

    def __call__(self, kind: str, facts: Mapping[str, Any]) -> None: ...


def silent(kind: str, facts: Mapping[str, Any]) -> None:
    """A report to nobody."""


def to_all(*listeners: Report) -> Report:
    def tell(kind: str, facts: Mapping[str, Any]) -> None:
        for listener in listeners:
            listener(kind, facts)

    return tell
