"""The long forms, for as many seconds as you give them: ``make soak SECONDS=600``.

All tests of the suites against every planted fault, fresh simulated histories (never the seeds that CI has run), every
other time of members that work in batches, claim races on both embedded stores, and processes that renew on one SQLite
file. Prints what it did, and ends with 1 at the first broken promise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle

from pxrs.testing.faults.racing import race_processes
from tests.simulation.batch_histories import BatchStory
from tests.simulation.histories import Story, run_many, totals
from tests.tools import catches
from tests.tools.races import claim_and_renew, race_threads

RACE_ROUNDS = 1_000
HISTORIES_AT_ONCE = 500
FIRST_SEED = 1_000_000


def races() -> list[str]:
    """Eight threads, then eight processes, race for 256 partitions, 1,000 rounds each."""
    with tempfile.TemporaryDirectory() as place:
        return race_threads(RACE_ROUNDS) + race_processes(f"sqlite:{place}/race.db", RACE_ROUNDS)


def renewals() -> list[str]:
    """Eight processes claim and renew on one SQLite file for a minute: nothing of its locking may surface."""
    with tempfile.TemporaryDirectory() as place:
        return [tally.error for tally in claim_and_renew(f"sqlite:{place}/renew.db", 8, 60) if tally.error]


def histories(deadline: float) -> list[str]:
    """Simulated histories until the time is over: members with threads and members with batches take turns."""
    seed = FIRST_SEED
    kinds: Iterator[type[Story]] = cycle((Story, BatchStory))
    while time.monotonic() < deadline:
        kind = next(kinds)
        outcomes = run_many(range(seed, seed + HISTORIES_AT_ONCE), kind=kind)
        print(f"{kind.__name__}, seeds from {seed}: {totals(outcomes)}", flush=True)
        broken = [f"{kind.__name__}, seed {o.seed}: {o.violations[0]}" for o in outcomes if o.violations]
        if broken:
            return broken
        seed += HISTORIES_AT_ONCE
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    deadline = time.monotonic() + parser.parse_args().seconds
    parts: dict[str, Callable[[], list[str]]] = {
        "faults of stores and logs": catches.missed,
        "races": races,
        "renewals": renewals,
        "histories": lambda: histories(deadline),
    }
    for name, part in parts.items():
        began = time.monotonic()
        broken = part()
        print(f"{name}: {'BROKEN' if broken else 'held'} ({time.monotonic() - began:.0f} s)", flush=True)
        for line in broken[:10]:
            print(f"  {line}")
        if broken:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
