"""How a group comes into being: the log and the registry get to know each other, then its rows are made."""

from __future__ import annotations

import secrets

from pxrs.logs.base import Log
from pxrs.model import Group
from pxrs.runtime.belonging import Belonging
from pxrs.runtime.registry import Registry


def group_over(log: Log, assignor: str | None) -> Group:
    """What a group over this log is recorded with; without an assignor, the one that the group has."""
    known = log.identity
    return Group(known.partitions, known.hash, known.reduce, assignor or "", log=known.id)


def make_group(belonging: Belonging, registry: Registry, log: Log, assignor: str | None) -> str | None:
    """Make the group if there is none. Returns what is then to be reported; None if it was there.

    That it was there before, and its registry is lost, is only said where something shows it.
    """
    own, born, known = belonging.record(), secrets.token_hex(16), log.identity
    found = registry.initialize(known.partitions, known.hash, known.reduce, assignor, known.id, born)
    if found.born != born:
        return None
    had_one = bool(own.before) or registry.group_name in log.groups_seen()
    return "created_behind" if had_one and message_count(log) else "created"


def message_count(log: Log) -> int:
    """How many messages the log has had so far."""
    return sum(log.bounds(partition)[1] for partition in range(log.identity.partitions))
