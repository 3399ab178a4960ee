"""Waiting for what must happen: the one way in which tests do it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

DEADLINE = 60.0
"""How long a condition may take before a test fails. Never a statement about speed."""


def eventually(
    condition: Callable[[], object], what: str, deadline: float = DEADLINE, said: Callable[[], str] = lambda: ""
) -> None:
    """Wait until the condition holds; fail with ``what`` was awaited, and with what was ``said`` meanwhile."""
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"waited {deadline:.0f} s in vain: {what}\n{said()}")
        time.sleep(0.01)
