"""Rounds of several contestants in turn, so that a busy moment of the machine hits all of them; and their medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def medians(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """What each one measures, in turns: the median of its rounds."""
    return {name: statistics.median(found) for name, found in in_turns(contestants, rounds).items()}


def in_turns(contestants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, measure in contestants.items():
            seen[name].append(measure())
    return seen


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the rounds' own ratios: both sides of each had the same moment."""
    return statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))


def elsewhere(function: Callable[_Given, _Result], *args: _Given.args, **more: _Given.kwargs) -> _Result:
    """Call a function in a fresh process, which shares no memory, no thread and no cache with this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        result: Any = pool.submit(function, *args, **more).result()
    found: _Result = result
    return found
