"""The conformance suite is only worth something if it catches stores that are broken. It must catch all of these."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from pxrs.testing.broken_stores import BROKEN, BrokenSuite, LosesReplies
from pxrs.testing.conformance import StoreSuite, promises, run_suite

# All in one worker of pytest-xdist, so that the table is whole.
pytestmark = pytest.mark.xdist_group("conformance")

_caught: dict[str, list[str]] = {}


@pytest.fixture(scope="module", autouse=True)
def print_the_table(request: pytest.FixtureRequest) -> Iterator[None]:
    """At the end of the module, past pytest's capture: which tests caught which fault."""
    yield
    lines = ["", "fault planted in the store            tests that caught it, the one named for it first"]
    for fault, names in _caught.items():
        lines.append(f"{fault:<36}{len(names):>3}  {', '.join(name.removeprefix('test_') for name in names[:2])}")
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        # A worker's standard output belongs to pytest-xdist; its standard error is shown.
        print("\n".join(lines), file=sys.stderr, flush=True)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_store_is_caught_by_the_test_named_for_its_fault(fault: str) -> None:
    kind, named = BROKEN[fault]
    broken = run_suite(BrokenSuite(kind))
    assert named in broken, f"{fault}: only {sorted(broken)} failed"
    _caught[fault] = [named, *sorted(broken.keys() - {named})]


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
