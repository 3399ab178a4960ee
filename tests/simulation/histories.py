"""Histories: a random campaign of faults against a simulated group, then a quiet end that must converge.

python -m tests.simulation.histories --count 2000          run many, print the totals
python -m tests.simulation.histories --seed 4711           replay one, with everything that happened
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from pxrs.errors import PxrsError
from pxrs.model import EVICTED, Cause
from pxrs.runtime.registry.registry import Registry
from pxrs.testing.faults.checker import Rested, Stored, Violation, check
from tests.simulation.cluster import GROUP, QUEUE, SETTINGS, Cluster, DirectStore, Process
from tests.simulation.timeline import CALM, Faults, SkewedClock, Timeline

LEASE = SETTINGS.lease_ms / 1000
CAMPAIGN_SECONDS = 5 * LEASE
QUIET_SECONDS = 6 * LEASE
REST_SECONDS = 2 * LEASE

LEAST = {"members": 3, "partitions": 8, "steps": 300, "faults": 5}
"""A history that falls below one of these did not test anything: the run fails."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one history came to."""

    seed: int
    violations: tuple[Violation, ...]
    steps: int
    faults: int
    members: int
    partitions: int
    messages: int
    moves: int
    batches: int | None = None
    """How many batches were committed; None: the members do not work in batches."""

    def too_small(self) -> list[str]:
        return [
            f"{what} {getattr(self, what)} < {least}" for what, least in LEAST.items() if getattr(self, what) < least
        ]


class Story:
    """One history."""

    quiet_seconds = QUIET_SECONDS

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.timeline = Timeline(seed)
        self._chance = self.timeline.random
        self.cluster = self._new_cluster()
        self._names = ["A", "B", "C", "D"][: self._chance.randint(3, 4)]
        self._injected = 0

    def _new_cluster(self) -> Cluster:
        return Cluster(self.timeline, partitions=self._chance.randint(8, 10))

    def run(self) -> Outcome:
        """Run it to its end and let the checker speak."""
        self._begin()
        self._campaign()
        self._quiet()
        for process in self.cluster.processes:
            process.end()
        history = self.timeline.history
        return Outcome(
            seed=self.seed,
            violations=(*check(history), *self._misbehaved()),
            steps=self.timeline.steps,
            faults=self._injected + self.cluster.struck,
            members=len(self._names),
            partitions=self.cluster.partitions,
            messages=sum(self.cluster.ends),
            moves=sum(isinstance(e, Stored) and e.row.cause is Cause.CLAIM for e in history),
            batches=self._batches(),
        )

    def _batches(self) -> int | None:
        return None

    def _misbehaved(self) -> list[Violation]:
        """Processes that ended with an error for which nobody gave them a reason, or kept a core busy with nothing."""
        ended = [p for p in self.cluster.processes if p.member.error is not None and not p.excused]
        spun = [p for p in self.cluster.processes if p.spun]
        return [
            *(Violation("convergence", f"{p.owner.id} ended by itself: {p.member.error!r}") for p in ended),
            *(Violation("isolation", f"{p.owner.id} called itself again and again with nothing to do") for p in spun),
        ]

    def _begin(self) -> None:
        self.cluster.send(12)
        for name in self._names:
            self.timeline.at(self.timeline.now + self._chance.uniform(0, 1.5), lambda n=name: self._start(n))  # type: ignore[misc]
        self.timeline.run_until(self.timeline.now + 2)

    def _start(self, name: str) -> None:
        self.cluster.start(name)

    # ---- the campaign ---------------------------------------------------------------------------------------------

    def _campaign(self) -> None:
        self.cluster.faults = self._faults()
        end = self.timeline.now + CAMPAIGN_SECONDS
        while self.timeline.now < end:
            self.timeline.run_until(self.timeline.now + self._chance.uniform(0.2, 1.5))
            self._strike()
            self.cluster.send(self._chance.randint(0, 4))

    def _faults(self) -> Faults:
        return Faults(
            unavailable=self._chance.choice((0, 0.01, 0.03)),
            lost_reply=self._chance.choice((0, 0.01, 0.05)),
            late_write=self._chance.choice((0, 0.01, 0.04)),
            lost_write=self._chance.choice((0, 0.01, 0.04)),
            slow=self._chance.choice((0, 0.02, 0.06)),
            dropped_wake=self._chance.choice((0, 0.3, 1.0)),
        )

    def _strike(self) -> None:
        actions = self._actions()
        action = self._chance.choices([a for _, a in actions], [w for w, _ in actions])[0]
        self._injected += action()

    def _actions(self) -> Sequence[tuple[int, Callable[[], bool]]]:
        """What may strike, each with its weight."""
        return (
            (3, self._crash), (4, self._restart), (3, self._pause), (2, self._leave), (2, self._twin),
            (2, self._jump), (1, self._seek), (1, self._evict), (1, self._drain), (2, self._hold),
        )  # fmt: skip

    def _crash(self) -> bool:
        return self._with_victim(lambda p: p.crash())

    def _pause(self) -> bool:
        return self._with_victim(lambda p: p.pause(self._chance.uniform(0.5, 2.5 * LEASE)))

    def _leave(self) -> bool:
        return self._with_victim(lambda p: p.when_awake(p.leave))

    def _jump(self) -> bool:
        def jump(process: object) -> None:
            process.clock.offset += self._chance.choice((-3600, 3600))  # type: ignore[attr-defined]

        return self._with_victim(jump)

    def _with_victim(self, act: Callable[..., None]) -> bool:
        living = self.cluster.living()
        if living:
            act(self._chance.choice(living))
        return bool(living)

    def _restart(self) -> bool:
        gone = [n for n in self._names if n not in {p.owner.id for p in self.cluster.living()}]
        if gone:
            self._start(self._chance.choice(gone))
        return bool(gone)

    def _twin(self) -> bool:
        """A second process under an id that is in use."""

        def double(process: Process) -> None:
            # Whichever of the two registers last wins, and that need not be the one that was started last.
            process.excused = True
            self.cluster.start(process.owner.id).excused = True

        return self._with_victim(double)

    def _seek(self) -> bool:
        partition = self._chance.randrange(self.cluster.partitions)
        position = self._chance.randint(0, self.cluster.ends[partition])
        return self._operate(lambda registry: registry.seek({partition: position}, {}))

    def _evict(self) -> bool:
        name = self._chance.choice(self._names)
        for process in self.cluster.processes:
            process.excused = process.excused or process.owner.id == name
        return self._operate(lambda registry: registry.evict(name, f"{EVICTED}{self.timeline.steps}"))

    def _drain(self) -> bool:
        name = self._chance.choice(self._names)
        return self._operate(lambda registry: registry.drain(name))

    def _hold(self) -> bool:
        """Pause a partition, or let it go on."""
        partition = self._chance.randrange(self.cluster.partitions)
        return self._operate(lambda registry: registry.pause([partition], self._chance.random() < 0.5))

    def _operate(self, act: Callable[[Registry], object]) -> bool:
        registry = Registry(DirectStore(self.cluster), QUEUE, GROUP, SkewedClock(self.timeline))
        try:
            act(registry)
        except PxrsError:
            return False
        return True

    # ---- the quiet end ---------------------------------------------------------------------------------------------

    def _quiet(self) -> None:
        """Faults stop; every name has one living process again; then nothing may stay wrong."""
        self.cluster.faults = CALM
        self.cluster.continue_all()
        self._operate(lambda registry: registry.pause(range(self.cluster.partitions), False))
        self.timeline.run_until(self.timeline.now + LEASE)
        for name in self._names:
            if name not in {p.owner.id for p in self.cluster.living()}:
                self._start(name)
        self.timeline.run_until(self.timeline.now + self.quiet_seconds)
        seen = len(self.timeline.history)
        self.timeline.run_until(self.timeline.now + REST_SECONDS)
        moves = sum(isinstance(e, Stored) and e.row.cause is Cause.CLAIM for e in self.timeline.history[seen:])
        live = tuple(p.owner for p in self.cluster.living())
        self.timeline.history.append(Rested(live, dict(enumerate(self.cluster.ends)), moves, self._shows()))

    def _shows(self) -> bool:
        """Whether the members have an output that is recorded."""
        return False


def run_one(seed: int, kind: type[Story] = Story) -> Outcome:
    return kind(seed).run()


def run_many(seeds: Iterable[int], workers: int = 2, kind: type[Story] = Story) -> list[Outcome]:
    """Run these histories on several cores."""
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(partial(run_one, kind=kind), seeds, chunksize=20))


def totals(outcomes: Sequence[Outcome]) -> str:
    def total(what: str) -> int:
        return sum(getattr(o, what) or 0 for o in outcomes)

    counted = ["steps", "faults", "messages", "moves"] + ["batches"] * any(o.batches is not None for o in outcomes)
    words = ", ".join(f"{total(what):,} {what}" for what in counted)
    broken = sum(bool(o.violations) for o in outcomes)
    return f"{len(outcomes):,} histories: {words}; {broken} with a broken promise"


def main(arguments: Sequence[str] | None = None, name: str = "stories", kind: type[Story] = Story) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.simulation.{name}", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--seed", type=int, help="replay this one history and print everything that happened")
    parser.add_argument("--count", type=int, default=200, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    chosen = parser.parse_args(arguments)
    if chosen.seed is not None:
        return replay(chosen.seed, kind)
    outcomes = run_many(range(chosen.first, chosen.first + chosen.count), kind=kind)
    for outcome in outcomes:
        for violation in outcome.violations[:1]:
            print(f"seed {outcome.seed}: {violation.promise}: {violation.evidence}")
    print(totals(outcomes))
    return int(any(o.violations or o.too_small() for o in outcomes))


def replay(seed: int, kind: type[Story] = Story) -> int:
    """Run one history and print everything that happened in it."""
    story = kind(seed)
    outcome = story.run()
    for time, what, facts in story.cluster.events:
        print(f"{time - 1000:9.4f} {what:10} {dict(facts)}")
    for violation in outcome.violations:
        print(f"BROKEN {violation.promise}: {violation.evidence}")
    print(totals([outcome]))
    return int(bool(outcome.violations))


if __name__ == "__main__":
    sys.exit(main())
