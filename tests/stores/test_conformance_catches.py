"""The conformance suite is only worth something if it catches stores that are broken. It must catch all of these."""

from __future__ import annotations

import pytest

from pxrs.testing.conformance import StoreSuite, promises, run_suite
from tests.stores.broken import BROKEN, BrokenSuite, LosesReplies


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_store_fails_the_test_named_for_its_fault(fault: str) -> None:
    kind, named = BROKEN[fault]
    assert list(run_suite(BrokenSuite(kind), [named])) == [named]


def test_the_sound_store_keeps_every_promise() -> None:
    class SoundSuite(BrokenSuite):
        patience = 20.0

    assert run_suite(SoundSuite(LosesReplies)) == {}


def test_every_named_test_is_one_of_the_suite() -> None:
    assert {named for _, named in BROKEN.values()} <= set(promises(StoreSuite))


def test_every_broken_store_says_what_is_wrong_with_it() -> None:
    assert len(BROKEN) >= 10
    assert all(kind.__doc__ for kind, _ in BROKEN.values())
    assert len({kind for kind, _ in BROKEN.values()}) == len(BROKEN)
