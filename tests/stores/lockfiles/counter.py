"""A counter that only the mutex of lock files protects; by itself, so that a process that counts starts quickly."""

from __future__ import annotations

import os
from pathlib import Path

from pxrs.stores.lockfiles.journal import Mutex


def count_up(place: str, times: int) -> None:
    """Add one to the number in a file that only the mutex protects."""
    mutex, counter = Mutex(os.path.join(place, "mutex"), 60.0), Path(place, "counter")
    for _ in range(times):
        with mutex.held():
            counter.write_text(str(int(counter.read_text()) + 1))
