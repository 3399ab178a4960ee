"""Swaps as transactions of etcd, and what their answers say.

A transaction compares the revisions of all its rows. If one differs, nothing is written, and the answer shows the
revision of each: rows that differ are conflicts, and the others are tried again without them. Each row ends in twelve
random characters, the same for all rows of a transaction: by them a write is recognised whose answer was lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pxrs.stores.base import ABSENT, Outcome, Swap, done
from pxrs.stores.etcd.grpc_channel import messages

MAX_OPERATIONS = 128
"""What etcd takes in one transaction, unless it is told otherwise (--max-txn-ops)."""
MAX_BYTES = 1_048_576
"""How large the values of one transaction may get: etcd refuses a request of 1.5 MiB (--max-request-bytes)."""
NONCE_LENGTH = 12
_MOD: int = messages.Compare.MOD


class EtcdSwap(NamedTuple):
    """One swap on its way: where it stands in the call, its key in etcd, and the lease that its row gets."""

    place: int
    key: bytes
    swap: Swap
    lease: int


class SwapTransaction:
    """Swaps that are sent together."""

    def __init__(self, wishes: Sequence[EtcdSwap]) -> None:
        self.wishes = wishes
        self._nonce = os.urandom(NONCE_LENGTH // 2).hex().encode()

    def request(self, ask_revisions: bool) -> Any:
        """With ``ask_revisions`` an answer that refuses one of several rows says what stands there."""
        asked = self.wishes if ask_revisions and len(self.wishes) > 1 else ()
        return messages.TxnRequest(
            compare=[compare(wish.key, wish.swap.expect) for wish in self.wishes],
            success=[operation for wish in self.wishes if (operation := self._operation(wish)) is not None],
            failure=[_get(wish.key, keys_only=True) for wish in asked],
        )

    def _operation(self, wish: EtcdSwap) -> Any:
        if wish.swap.value is not None:
            put = messages.PutRequest(key=wish.key, value=wish.swap.value + self._nonce, lease=wish.lease)
            return messages.RequestOp(request_put=put)
        if wish.swap.expect == ABSENT:
            return None
        return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=wish.key))

    def outcome(self, wish: EtcdSwap, revision: int) -> Outcome:
        """Of one row, when the transaction was done at this revision."""
        return done(ABSENT if wish.swap.value is None else revision)

    def differing(self, answer: Any) -> set[int]:
        """The places of the wishes against which the answer speaks."""
        if len(self.wishes) == 1:
            return {self.wishes[0].place}
        return {
            wish.place
            for wish, found in zip(self.wishes, answer.responses, strict=True)
            if _revision(found) != wish.swap.expect
        }

    def reread(self) -> Any:
        """Ask for the rows that it would have written."""
        return read_request([wish.key for wish in self.wishes])

    def revision_if_mine(self, answer: Any) -> int | None:
        """The revision at which it was done, if one of the rows that now stand there is its own."""
        rows = [row for found in answer.responses for row in found.response_range.kvs]
        return next((int(row.mod_revision) for row in rows if row.value.endswith(self._nonce)), None)


def read_request(keys: Sequence[bytes]) -> Any:
    """A transaction that only reads."""
    return messages.TxnRequest(success=[_get(key) for key in keys])


def bare(value: bytes) -> bytes:
    """A stored value as the caller wrote it."""
    return value[:-NONCE_LENGTH]


def compare(key: bytes, expect: int) -> Any:
    return messages.Compare(key=key, target=_MOD, mod_revision=expect)  # equal, if nothing else is said


def _get(key: bytes, keys_only: bool = False) -> Any:
    return messages.RequestOp(request_range=messages.RangeRequest(key=key, keys_only=keys_only))


def _revision(found: Any) -> int:
    rows = found.response_range.kvs
    return int(rows[0].mod_revision) if rows else ABSENT


def waves(wishes: Sequence[EtcdSwap]) -> list[list[SwapTransaction]]:
    """Transactions in the order in which they must be sent: those of one wave together, the waves one by one.

    The last transaction goes alone: it may hold a ring of the bell, which must not be heard before the rest is done.
    Where a key comes twice, each transaction goes alone.
    """
    if len(wishes) == 1:
        return [[SwapTransaction(wishes)]]
    parts = [SwapTransaction(part) for part in _parts(wishes)]
    if len({wish.key for wish in wishes}) < len(wishes):
        return [[part] for part in parts]
    return [wave for wave in (parts[:-1], parts[-1:]) if wave]


def _parts(wishes: Sequence[EtcdSwap]) -> Iterator[list[EtcdSwap]]:
    part: list[EtcdSwap] = []
    keys: set[bytes] = set()
    size = 0
    for wish in wishes:
        more = len(wish.key) + len(wish.swap.value or b"")
        if part and (len(part) == MAX_OPERATIONS or size + more > MAX_BYTES or wish.key in keys):
            yield part
            part, keys, size = [], set(), 0
        part.append(wish)
        keys.add(wish.key)
        size += more
    yield part
