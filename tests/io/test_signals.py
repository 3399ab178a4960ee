"""Signals between threads: one that is given once and heard by all, one that is given and taken again and again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pxrs.io.signals import Latch, Nudge


def test_nobody_passes_before_it_is_set_and_all_do_after() -> None:
    latch = Latch()
    assert not latch.is_set() and not latch.wait(0) and not latch.wait(0.001) and not latch.wait(-1)
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(latch.wait, timeout) for timeout in (None, 30, 30)]
        latch.set()
        latch.set()
        assert all(one.result(30) for one in waiting)
    assert latch.is_set() and latch.wait() and latch.wait(0)


def test_a_nudge_is_taken_once_however_often_it_was_given() -> None:
    nudge = Nudge()
    assert not nudge.wait(0) and not nudge.wait(-1)
    nudge.set()
    nudge.set()
    assert nudge.wait(0) and not nudge.wait(0)
    nudge.set()
    nudge.clear()
    nudge.clear()
    assert not nudge.wait(0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(nudge.wait, 30)
        nudge.set()
        assert waiting.result(30)
    assert not nudge.wait(0)
