"""The conformance suite is only worth something if it catches logs that are broken. It must catch all of these."""

from __future__ import annotations

import pytest

from pxrs.logs.memory import MemoryLog
from pxrs.testing.log_conformance import LogSuite, promises, run_log_suite
from tests.logs.broken.logs import BROKEN_LOGS, BrokenLogSuite


@pytest.mark.parametrize("fault", BROKEN_LOGS)
def test_a_broken_log_fails_the_test_named_for_its_fault(fault: str) -> None:
    kind, named = BROKEN_LOGS[fault]
    assert list(run_log_suite(BrokenLogSuite(kind), [named])) == [named]


def test_the_sound_log_keeps_every_promise() -> None:
    class SoundSuite(BrokenLogSuite):
        patience = 20.0

    assert run_log_suite(SoundSuite(MemoryLog)) == {}


def test_every_named_test_is_one_of_the_suite() -> None:
    assert {named for _, named in BROKEN_LOGS.values()} <= set(promises(LogSuite))


def test_every_broken_log_says_what_is_wrong_with_it() -> None:
    assert len(BROKEN_LOGS) >= 18
    assert all(kind.__doc__ for kind, _ in BROKEN_LOGS.values())
    assert len({kind for kind, _ in BROKEN_LOGS.values()}) == len(BROKEN_LOGS)
