"""A registry that does not answer: told once, then with a count each minute, and when it answers again."""

from __future__ import annotations

import logging

import pytest

from pxrs.runtime.telemetry.event_log import EventLog
from pxrs.settings import Settings
from tests.runtime.support import Recorder, Site, eventually


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


def test_an_outage_is_one_line_then_one_each_minute_then_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Hand()
    journal = EventLog("orders", "billing", clock)
    with caplog.at_level(logging.INFO, "pxrs"):
        for _ in range(2):
            for _ in range(5 * 130):  # five times a second, for a bit more than two minutes
                journal("troubled", {"member": "A", "error": "no answer"})
                clock.now += 0.2
            journal("answered", {"member": "A", "seconds": 130.0})
    one = [
        "orders/billing: A will try again: no answer",
        "orders/billing: A has tried 301 times in 60 s: no answer",
        "orders/billing: A has tried 601 times in 120 s: no answer",
        "orders/billing: A goes on: the registry answers again, after 130.0 s",
    ]
    assert caplog.messages == one * 2


def test_the_state_of_a_consumer_says_that_the_registry_does_not_answer() -> None:
    with Site(partitions=2, settings=Settings(lease_ms=60_000, beat_ms=20, poll_ms=60_000)) as site:
        consumer = site.member("A", Recorder())
        store = site.stores["A"]
        eventually(lambda: consumer.state == "live", "it is live")
        store.down = True
        eventually(lambda: consumer.state == "troubled", "it says so")
        assert "troubled" in repr(consumer)
        store.down = False
        eventually(lambda: consumer.state == "live", "it is live again")
        assert len(site.diaries["A"].of("answered")) == 1
