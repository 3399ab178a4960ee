"""Setting the scene of the demo: the lead of the group is held until all consumers are there.

The first member would otherwise take all partitions and give them up again one by one. With all three present at
the first plan, it is the picture that everybody draws: A 0-2, B 3-5, C 6-7.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pxrs.errors import Fenced
from pxrs.model import MemberRow

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

_NAME = "stage"
_LEASE_MS = 60_000


@contextmanager
def curtain(queue: Queue, group: str) -> Iterator[None]:
    """Hold the lead of a new group without planning anything; at the end, leave it to its members."""
    registry = queue.make_group(group).registry
    created = registry.group()
    holder = MemberRow(_NAME, secrets.token_hex(16), lease_ms=_LEASE_MS)
    registry.register(holder)
    lead = registry.elect(holder.owner, created)
    try:
        yield
    finally:
        registry.deregister(holder.owner)
        with suppress(Fenced):  # a quick member leads already: it saw that the holder is gone
            registry.resign(lead)
