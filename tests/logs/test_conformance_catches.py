"""The conformance suite is only worth something if it catches logs that are broken. It must catch all of these."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pxrs.logs.memory import MemoryLog
from pxrs.testing.log_conformance import LogSuite, promises, run_log_suite
from tests.logs.broken.logs import BROKEN_LOGS, BrokenLogSuite


@pytest.mark.parametrize("fault", BROKEN_LOGS)
def test_a_broken_log_fails_the_test_named_for_its_fault(fault: str) -> None:
    kind, named = BROKEN_LOGS[fault]
    assert list(run_log_suite(BrokenLogSuite(kind), [named])) == [named]


@pytest.mark.slow
def test_the_table_of_faults_and_the_tests_that_catch_them(show: Callable[[str], None]) -> None:
    lines = ["fault planted in the log              tests that caught it, the one named for it first"]
    for fault, (kind, named) in BROKEN_LOGS.items():
        broken = run_log_suite(BrokenLogSuite(kind))
        assert named in broken, f"{fault}: only {sorted(broken)} failed"
        names = [name.removeprefix("test_") for name in (named, *sorted(broken.keys() - {named}))]
        lines.append(f"{fault:<36}{len(names):>3}  {', '.join(names[:2])}")
    show("\n".join(lines))


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
