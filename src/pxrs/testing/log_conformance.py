"""The conformance suite of logs. A driver is a log if a subclass of ``LogSuite`` is green:

    class TestMyLog(LogSuite):
        def make_log(self, place, name="q", create=True, settings=None, **options):
            return MyLog.open(f"mine:{place}/{name}", Wish(**options), settings or Settings(), create)

Every test is named for the promise that it checks; one that covers a fault of the catalogue carries its number.
``run_log_suite`` runs them without pytest's machinery, and answers with the promises that were broken; so it is shown
that logs which are broken on purpose are caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pxrs.testing.logs.hooks import OpenLog, opener
from pxrs.testing.logs.messages import MessagePromises
from pxrs.testing.logs.names import NamePromises
from pxrs.testing.logs.retention import RetentionPromises
from pxrs.testing.logs.retries import RetryPromises
from pxrs.testing.logs.sharing import SharingPromises
from pxrs.testing.suites import broken_promises, promises

__all__ = ["LogSuite", "promises", "run_log_suite"]


class LogSuite(MessagePromises, RetryPromises, SharingPromises, RetentionPromises, NamePromises):
    """Tests all promises of a log. A subclass says how its log is made; the hooks are in ``LogPromises``."""

    @pytest.fixture
    def open_log(self, tmp_path: Path) -> Iterator[OpenLog]:
        """A function that opens the logs of this test."""
        with opener(self, tmp_path) as open_log:
            yield open_log


def run_log_suite(suite: LogSuite, names: Sequence[str] = ()) -> dict[str, str]:
    """The promises that the suite's log broke, each with what was seen. Of these names, or of all."""
    return broken_promises(names or promises(type(suite)), lambda name: _run_one(suite, name))


def _run_one(suite: LogSuite, name: str) -> None:
    with TemporaryDirectory() as directory, opener(suite, Path(directory)) as open_log:
        getattr(suite, name)(open_log)
