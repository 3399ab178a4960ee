"""The port of a registry store: rows of bytes that are compared and set. Nothing here knows what a row means.

A driver is a small file: five verbs over a key-value table in which every write changes the row's version.
The rules of ownership live above (``pxrs.rules``), written once for all stores.

Contract of every driver (``pxrs.testing.conformance`` proves it):

- A *version* is a positive integer that is never used twice for one key, not even after a delete. 0 means
  "the key is absent".
- A swap is done only if the stored version equals ``expect``; then the row has a new version.
- ``swap_each`` judges every swap alone. ``swap_all`` does all of them or none.
- A swap whose reply was lost is ``UNKNOWN``, never a failure: it may have happened, or may still happen.
- Reads are linearizable: they see every swap that was answered before the read began.
- Deleting a key that is absent (``Swap(key, ABSENT, None)``) is done. A key without a UTF-8 form is Refused.
- A scan never shows half of a ``swap_all``. Marks of ``wait`` are never 0.
- Objects may be used from several threads, and from a forked child, which opens its own connection; a store that
  cannot be shared between processes refuses the child. After ``close`` every call raises Closed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from enum import Enum
from typing import ClassVar, NamedTuple

from pxrs.errors import BadSetting, Refused, masked_url

ABSENT = 0
"""The version of a key that holds nothing: as ``expect`` it means "create", in an answer "there is no row"."""


class Guarantee(Enum):
    """A promise of a store. Drivers declare these; ``pxrs.open(require=...)`` can insist on them."""

    DURABLE = "an acknowledged write survives the death of every process"
    LINEARIZABLE = "a read sees every write that was answered before it"
    ACROSS_PROCESSES = "several processes of one machine can share it"
    ACROSS_HOSTS = "several machines can share it"
    NATIVE_EXPIRY = "a member row with a time to live vanishes by itself"
    WATCH = "a wait ends at once when a row changes, without polling"
    ATOMIC_ROWS = "several rows can be swapped all or none"


def check_guarantees(driver: type[Store], required: Guarantee | str | Collection[Guarantee | str], url: str) -> None:
    """Refuse a store that lacks one of these; they may be given by name, in any case, and one alone without a list."""
    wanted = [required] if isinstance(required, Guarantee | str) else required
    if not isinstance(wanted, Collection):
        raise BadSetting(f"require = {wanted!r}: must be a guarantee, its name, or a list of them, as ['durable'] is")
    missing = sorted(one.name for one in map(_guarantee, wanted) if one not in driver.guarantees)
    if missing:
        raise Refused(f"registry {masked_url(url)!r} does not guarantee {', '.join(missing)}")


def _guarantee(wanted: Guarantee | str) -> Guarantee:
    if isinstance(wanted, Guarantee):
        return wanted
    try:
        return Guarantee[str(wanted).upper().replace("-", "_").replace(" ", "_")]
    except KeyError:
        known = ", ".join(guarantee.name.lower() for guarantee in Guarantee)
        raise BadSetting(f"require = {wanted!r}: there is no such guarantee; there are {known}") from None


class Row(NamedTuple):
    """A stored row: its key, its bytes and the version that a swap must name."""

    key: str
    value: bytes
    version: int


class Swap(NamedTuple):
    """One row to write: ``value`` (None deletes) under ``key``, if its version still is ``expect``.

    ``ttl_ms`` asks a store with native expiry to remove the row that long after the write; others ignore it.
    """

    key: str
    expect: int
    value: bytes | None
    ttl_ms: int | None = None


def encoded_key(key: str) -> bytes:
    """The bytes of a key; Refused if it has no UTF-8 form."""
    try:
        return key.encode()
    except UnicodeEncodeError:
        raise Refused(f"key {key[:80]!r} has no UTF-8 form") from None


def one_for_each_key(swaps: Sequence[Swap]) -> list[Swap] | None:
    """Join swaps, with one for each key; None if two of them cannot both be done.

    The version that the first of two would give is not known before: only "delete, then create" goes together.
    """
    found: dict[str, Swap] = {}
    for swap in swaps:
        before = found.get(swap.key)
        if before is None:
            found[swap.key] = swap
        elif before.value is None and swap.expect == ABSENT:
            found[swap.key] = swap._replace(expect=before.expect)
        else:
            return None
    return list(found.values())


class Verdict(Enum):
    """The answer of a store to a swap."""

    DONE = "done"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class Outcome(NamedTuple):
    """The outcome of one swap. ``version`` is the row's new one when done (ABSENT after a delete)."""

    verdict: Verdict
    version: int = ABSENT
    reason: str = ""


CONFLICT = Outcome(Verdict.CONFLICT)


def done(version: int) -> Outcome:
    return Outcome(Verdict.DONE, version)


def unknown(reason: str) -> Outcome:
    return Outcome(Verdict.UNKNOWN, reason=reason)


class Store(ABC):
    """The store of a registry's rows."""

    guarantees: ClassVar[frozenset[Guarantee]]
    max_atomic: ClassVar[int] = 1_000_000
    """The most rows that one ``swap_all`` can take."""

    @classmethod
    def exists(cls, url: str) -> bool:  # noqa: ARG003 - a server makes what it needs when it is opened
        """Whether there is a store at this URL already; False says that ``open`` would make its files.

        Refuses a URL at which none could be made.
        """
        return True

    @abstractmethod
    def read(self, keys: Sequence[str]) -> list[Row | None]:
        """The rows of these keys, in this order; None for a key that holds nothing. May raise Unavailable."""

    @abstractmethod
    def scan(self, prefix: str) -> list[Row]:
        """All rows whose key begins with ``prefix``, sorted by key. May raise Unavailable."""

    @abstractmethod
    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        """Try every swap alone, in this order, in as few round trips as the store allows. Never raises for
        a lost reply: that row's outcome is UNKNOWN."""

    @abstractmethod
    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        """All swaps or none. DONE carries the highest new version."""

    @abstractmethod
    def wait(self, prefix: str, after: int, timeout: float) -> int:
        """Block until a row under ``prefix`` has changed since the mark ``after``, or ``timeout`` seconds.

        Returns the new mark for the next call; start with 0, which returns at once with the present mark.
        A hint, not a promise: it may end early, and one lost wake-up may cost a whole time-out, never more.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what this object holds; waits in other threads end. Closing twice is harmless."""
