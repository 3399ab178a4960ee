"""What a benchmark is, how it is found, and what it hands back.

A benchmark is a module beside this one, with ``SUMMARY`` (what it compares) and ``run(quick) -> Result``; its
name is its file name, with dashes. It may have ``picture(result, path)``; else its ratios are drawn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")
HERE = Path(__file__).parent
_NOT_BENCHMARKS = {"__init__", "__main__", "harness", "report"}


class PeerFailed(RuntimeError):
    """A peer could not run, so there is nothing to compare with."""


@dataclass(frozen=True)
class Result:
    """Our figures, the peers' figures, and ratios of ours to a peer's, made so that more than 1 is better for us."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)
    peers: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def as_json(self, indent: int | None = None) -> str:
        return json.dumps(asdict(self), indent=indent)

    @classmethod
    def from_json(cls, line: str) -> Result:
        return cls(**json.loads(line))


def names() -> list[str]:
    """Every benchmark that there is."""
    found = (path.stem for path in HERE.glob("*.py") if path.stem not in _NOT_BENCHMARKS)
    return sorted(stem.replace("_", "-") for stem in found)


def load(name: str) -> ModuleType:
    """The module of one benchmark."""
    if name not in names():
        raise SystemExit(f"no benchmark {name!r}; there are: {', '.join(names())}")
    return import_module(f"benchmarks.{name.replace('-', '_')}")


def seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """The best time of some rounds: what the work needs when nothing else disturbs it."""
    return min(_once(work) for _ in range(rounds))


def _once(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def rate(work: Callable[[], object], count: int, rounds: int = 3) -> float:
    """How many things a second, where ``work`` does ``count`` of them."""
    return count / seconds(work, rounds)


def without(module: ModuleType, switch: str, work: Callable[[], T]) -> Callable[[], T]:
    """The same work with one short way turned off: what is left is the general way beside it."""

    def slower() -> T:
        setattr(module, switch, False)
        try:
            return work()
        finally:
            setattr(module, switch, True)

    return slower


def require_equal(what: str, ours: object, theirs: object) -> None:
    """A race between two that do not compute the same is no race."""
    if ours != theirs:
        raise PeerFailed(f"{what}: the peer's answer differs from ours")
