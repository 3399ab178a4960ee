"""Helpers of the tests of logs: how each kind of log is opened, and the small batches of the shipped suite."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pxrs.drivers import find_driver
from pxrs.logs.base import Log, OpenOptions
from pxrs.settings import Settings
from pxrs.testing.log_conformance import LogSuite
from pxrs.testing.logs.hooks import OpenLog, entries, numbered, pairs, read_all

__all__ = ["KindSuite", "LogKind", "OpenLog", "entries", "numbered", "open_url", "pairs", "read_all"]


def open_url(url: str, create: bool = True, settings: Settings | None = None, driver: Any = None, **wish: Any) -> Log:
    """The log at a URL; by this driver instead of the one that the URL names."""
    log: Log = (driver or find_driver("pxrs.logs", url)).open(url, OpenOptions(**wish), settings or Settings(), create)
    return log


class LogKind(NamedTuple):
    """A kind of log: its URL for a place and a name, and the settings that it always has."""

    url: Callable[[Path, str], str]
    always: Mapping[str, Any] = {}
    usual: Settings = Settings()
    """Where a test asks for no settings."""
    driver: Any = None


class KindSuite(LogSuite):
    """The promises of one kind of log."""

    kind: LogKind

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        kind = self.kind
        chosen = (settings or kind.usual).with_(**kind.always)
        return open_url(kind.url(place, name), create, chosen, kind.driver, **wish)
