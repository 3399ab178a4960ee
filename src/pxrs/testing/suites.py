"""The base of the conformance suites of stores and of logs: their promises, and a run without pytest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import pytest


def promises(suite: type) -> list[str]:
    """The names of the tests of a suite."""
    return [name for name, _ in inspect.getmembers(suite, inspect.isfunction) if name.startswith("test_")]


def broken_promises(names: Sequence[str], run_one: Callable[[str], None]) -> dict[str, str]:
    """The tests of these names that fail when they are run, each with what was seen."""
    broken: dict[str, str] = {}
    for name in names:
        try:
            run_one(name)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception) as error:  # what is broken may fail in any way
            broken[name] = f"{type(error).__name__}: {error}"
    return broken
