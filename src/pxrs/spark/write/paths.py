"""The paths where rows wait between the tasks that wrote them and the commit that appends them.

    ROOT/PRODUCER/NUMBER/       files of tasks; those of attempts that failed or came second are there too
    ROOT/PRODUCER/NUMBER.json   decided: these files are the write of this number, forever
    ROOT/PRODUCER/NUMBER.done   all of it is stored

A producer is a streaming query (the number is Spark's batch), a named write, or one write without a name.
Runs in Spark tasks too.
"""

from __future__ import annotations

import os
from typing import NamedTuple

ONCE = "once-"
"""Begins the name of a write that nobody can repeat: nothing of it is kept."""


def query_producer(query: str) -> str:
    """The producer that a streaming query is, by the id in its checkpoint."""
    return f"query-{query}"


def named_producer(name: str) -> str:
    """The producer that was named by its user."""
    return f"name-{name}"


class WritePaths(NamedTuple):
    """One numbered write of one producer."""

    root: str
    producer: str
    sequence: int

    @property
    def folder(self) -> str:
        return os.path.join(self.root, self.producer)

    @property
    def staged(self) -> str:
        return os.path.join(self.folder, str(self.sequence))

    @property
    def decided(self) -> str:
        return self.staged + ".json"

    @property
    def done(self) -> str:
        return self.staged + ".done"
