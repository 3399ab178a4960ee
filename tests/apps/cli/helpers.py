"""Helpers of the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

QUEUE = "file:./orders"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Pxrs = Callable[..., Result]


def documents(count: int, keys: int = 7) -> str:
    """JSON lines with a nested key field, numbered from 0."""
    return "".join(json.dumps({"n": n, "account": {"id": f"acct-{n % keys}"}}) + "\n" for n in range(count))


def make_queue(pxrs: Pxrs, messages: int = 0, partitions: int = 4) -> None:
    assert pxrs("init", QUEUE, "--partitions", partitions).code == 0
    if messages:
        text = documents(messages)
        assert pxrs("produce", QUEUE, "-f", "json", "--key-field", "account.id", stdin=text).code == 0


def make_group(pxrs: Pxrs, name: str, at: str = "--to-earliest") -> None:
    """A group without members, with checkpoints."""
    import pxrs as library

    with library.open(QUEUE, create=False) as queue:
        known = queue.log.identity
        queue.group(name).registry.initialize(known.partitions, known.hash, known.reduce)
    assert pxrs("group", "seek", QUEUE, name, at, "--execute").code == 0
