"""The registry in etcd: ``etcd://h1:2379,h2:2379/place``.

A row's version is its mod_revision. Its key is ``place//key``: no place reaches into another one, also if one is
called ``a`` and the other ``ab`` or ``a/b``. Beside the rows, ``place/format`` holds the version of this format.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from pxrs.errors import Closed, Damaged, NewerFormat, PxrsError, Refused
from pxrs.io.address import Address, parse
from pxrs.io.clock import SystemClock
from pxrs.io.fork import renew_in_child
from pxrs.settings import Settings
from pxrs.stores.base import (
    ABSENT,
    CONFLICT,
    Guarantee,
    Outcome,
    Row,
    Store,
    Swap,
    done,
    encoded_key,
    one_for_each_key,
    unknown,
)
from pxrs.stores.etcd.client import EtcdClient, RevisionWatch, end_of, is_certain
from pxrs.stores.etcd.grpc_channel import Failed, messages

FORMAT = 1
DEFAULT_PORT = 2379
PAGE_ROWS = 10_000
MAX_OPERATIONS = 128
"""The most operations that etcd takes in one transaction, unless --max-txn-ops says otherwise."""
MAX_BYTES = 1_048_576
"""The most bytes of values in one transaction: etcd refuses a request of 1.5 MiB (--max-request-bytes)."""
NONCE_LENGTH = 12
_MOD: int = messages.Compare.MOD


class EtcdStore(Store):
    """A handle on one place; safe to use from several threads, and from a forked child."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee)
    max_atomic: ClassVar[int] = MAX_OPERATIONS

    def __init__(self, address: Address, seconds: float) -> None:
        place = "/".join(part for part in address.place.split("/") if part)
        self.address = address
        self._prefix = f"{place}//".encode()
        self._format = f"{place}/format".encode()
        self._client = EtcdClient(address, seconds, probe=self._format)
        self._leases = Leases(self._client)
        self._watch = RevisionWatch(self._client, self._revision)
        self._clock = SystemClock()
        self._closed = False

    @classmethod
    def open(cls, url: str, settings: Settings) -> EtcdStore:
        address = parse(url, DEFAULT_PORT, known=("watch",))
        store = cls(address, address.timeout(settings))
        try:
            store._prepare()
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self) -> None:
        """Write the version of the format down, or refuse one that is newer."""
        put = messages.PutRequest(key=self._format, value=b"%d" % FORMAT)
        get = messages.RequestOp(request_range=messages.RangeRequest(key=self._format))
        absent = compare(self._format, ABSENT)
        request = messages.TxnRequest(compare=[absent], success=[messages.RequestOp(request_put=put)], failure=[get])
        [answer] = self._client.ask("Txn", [request])  # may be sent twice: it writes only where there is nothing
        if answer.succeeded:
            return
        found = answer.responses[0].response_range.kvs[0].value
        if not found.isdigit():
            raise Damaged(f"{self.address}: {self._format.decode()} holds {found[:40]!r}, which is no format of PXRS")
        if int(found) > FORMAT:
            raise NewerFormat(f"{self.address} has format {int(found)}; this PXRS knows up to {FORMAT}")

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        self._check_open()
        wanted = [self._key(key) for key in keys]
        parts = [wanted[start : start + MAX_OPERATIONS] for start in range(0, len(wanted), MAX_OPERATIONS)]
        if not parts:
            return []
        answers = self._client.ask("Txn", [read_request(part) for part in parts])
        found = [response.response_range.kvs for answer in answers for response in answer.responses]
        return [self._row(rows[0]) if rows else None for rows in found]

    def scan(self, prefix: str) -> list[Row]:
        self._check_open()
        key = self._key(prefix)
        first = self._page(key, end_of(key), 0)
        rows, more, revision = list(first.kvs), first.more, first.header.revision
        while more:  # at the revision of the first page: a scan shows one moment
            page = self._page(rows[-1].key + b"\0", end_of(key), revision)
            rows += page.kvs
            more = page.more
        return [self._row(row) for row in rows]

    def _page(self, key: bytes, end: bytes, revision: int) -> Any:
        request = messages.RangeRequest(key=key, range_end=end, limit=PAGE_ROWS, revision=revision)
        return self._client.ask("Range", [request])[0]

    def _revision(self) -> int:
        request = messages.RangeRequest(key=self._format, keys_only=True)
        return int(self._client.ask("Range", [request])[0].header.revision)

    def _key(self, key: str) -> bytes:
        return self._prefix + encoded_key(key)

    def _row(self, found: Any) -> Row:
        return Row(found.key[len(self._prefix) :].decode(), bare(found.value), found.mod_revision)

    # ---- swapping ------------------------------------------------------------------------------------------------

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        self._check_open()
        writes, wanted, begun = self._writes(swaps)
        batch = _SwapResults(self._client)
        for wave in waves(writes) if writes else ():
            batch.settle(wave)
        self._leases.renew_if_late(wanted, begun)
        return batch.outcomes(len(writes))

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        self._check_open()
        merged = one_for_each_key(swaps)
        if merged is None:
            return CONFLICT
        if len(merged) > self.max_atomic:
            raise Refused(f"{self.address}: {len(merged)} rows in one swap; etcd takes at most {self.max_atomic}")
        if not merged:
            return done(ABSENT)
        writes, wanted, begun = self._writes(merged)
        outcome = _SwapResults(self._client).settle_all(SwapTransaction(writes))
        self._leases.renew_if_late(wanted, begun)
        return outcome

    def _writes(self, swaps: Sequence[Swap]) -> tuple[list[EtcdSwap], dict[bytes, int], float]:
        """Also the times to live that are asked for, by key, and when their leases were renewed."""
        keys = [self._key(swap.key) for swap in swaps]
        wanted = {
            key: swap.ttl_ms
            for key, swap in zip(keys, swaps, strict=True)
            if swap.ttl_ms is not None and swap.value is not None
        }
        begun = self._clock.monotonic()
        leases = self._leases.renew(wanted)
        self._leases.forget(key for key in keys if key not in wanted)
        writes = [
            EtcdSwap(place, keys[place], swap, NONE if swap.ttl_ms is None else leases.get(keys[place], NONE))
            for place, swap in enumerate(swaps)
        ]
        return writes, wanted, begun

    # ---- waiting and the end -------------------------------------------------------------------------------------

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        self._check_open()
        return self._watch.wait(self._key(prefix), after, timeout)

    def close(self) -> None:
        self._closed = True
        self._watch.close()
        self._client.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.address} was closed before this call")


# ---- leases of member rows ------------------------------------------------------------------------------------------
# A lease is kept alive before its row is written, and lasts a second longer than asked: so the row does not vanish
# earlier than its time to live after the write. It is never revoked, since that would delete what is attached to it.


NONE = 0
"""The id that says: no lease."""
_SPARE_SECONDS = 1


class _Lease(NamedTuple):
    id: int
    ttl_ms: int


class Leases:
    """The leases of one store object."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._clock = SystemClock()
        self._begin()
        renew_in_child(self, Leases._begin)

    def _begin(self) -> None:
        """Also in a forked child: the leases are those of its parent's members."""
        self._lock = threading.Lock()
        self._held: dict[bytes, _Lease] = {}

    def renew(self, wanted: Mapping[bytes, int]) -> dict[bytes, int]:
        """Living leases for these keys with these times to live: their ids. Raises when the server does not answer."""
        if not wanted:
            return {}
        with self._lock:
            held = {key: lease for key in wanted if (lease := self._held.get(key)) and lease.ttl_ms == wanted[key]}
        alive = self._keep_alive(held)
        made = self._grant({key: ttl_ms for key, ttl_ms in wanted.items() if key not in alive})
        with self._lock:
            self._held |= made
        return {key: lease.id for key, lease in {**alive, **made}.items()}

    def renew_if_late(self, wanted: Mapping[bytes, int], begun: float) -> None:
        """Renew leases after a write that took longer than they had to spare."""
        if wanted and self._clock.monotonic() - begun > _SPARE_SECONDS:
            with self._lock:
                held = {key: self._held[key] for key in wanted if key in self._held}
            with suppress(PxrsError):
                self._keep_alive(held)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Keep the leases of these rows alive no longer: they are deleted, or shall stay for good."""
        if self._held:
            with self._lock:
                for key in keys:
                    self._held.pop(key, None)

    def _keep_alive(self, held: Mapping[bytes, _Lease]) -> dict[bytes, _Lease]:
        """Those that still live."""
        if not held:
            return {}
        requests = [messages.LeaseKeepAliveRequest(ID=lease.id) for lease in held.values()]
        answers = {answer.ID: answer.TTL for answer in self._client.converse("LeaseKeepAlive", requests)}
        return {key: lease for key, lease in held.items() if answers.get(lease.id, 0) > 0}

    def _grant(self, wanted: Mapping[bytes, int]) -> dict[bytes, _Lease]:
        if not wanted:
            return {}
        requests = [messages.LeaseGrantRequest(TTL=_seconds(ttl_ms)) for ttl_ms in wanted.values()]
        answers = self._client.send("LeaseGrant", requests)
        for answer in answers:
            if isinstance(answer, Failed):  # one that was granted after all runs out by itself
                raise self._client.error(answer)
        return {key: _Lease(answer.ID, wanted[key]) for key, answer in zip(wanted, answers, strict=True)}


def _seconds(ttl_ms: int) -> int:
    """Whole ones, as etcd has them, rounded up."""
    return -(-ttl_ms // 1000) + _SPARE_SECONDS


# ---- swaps as transactions, and what their answers say --------------------------------------------------------------
# A transaction compares the revisions of all its rows. If one differs, nothing is written, and the answer shows the
# revision of each: rows that differ are conflicts, and the others are tried again without them. Each row ends in twelve
# random characters, the same for all rows of a transaction: by them a write is recognised whose answer was lost.


class EtcdSwap(NamedTuple):
    """One swap that is being done: its index in the call, its key in etcd, and the lease of its row."""

    place: int
    key: bytes
    swap: Swap
    lease: int


class SwapTransaction:
    """Swaps that are sent together."""

    def __init__(self, writes: Sequence[EtcdSwap]) -> None:
        self.writes = writes
        self._nonce = os.urandom(NONCE_LENGTH // 2).hex().encode()

    def request(self, ask_revisions: bool) -> Any:
        """The request. With ``ask_revisions`` an answer that refuses one of several rows has their revisions."""
        asked = self.writes if ask_revisions and len(self.writes) > 1 else ()
        return messages.TxnRequest(
            compare=[compare(write.key, write.swap.expect) for write in self.writes],
            success=[operation for write in self.writes if (operation := self._operation(write)) is not None],
            failure=[_get(write.key, keys_only=True) for write in asked],
        )

    def _operation(self, write: EtcdSwap) -> Any:
        if write.swap.value is not None:
            put = messages.PutRequest(key=write.key, value=write.swap.value + self._nonce, lease=write.lease)
            return messages.RequestOp(request_put=put)
        if write.swap.expect == ABSENT:
            return None
        return messages.RequestOp(request_delete_range=messages.DeleteRangeRequest(key=write.key))

    def outcome(self, write: EtcdSwap, revision: int) -> Outcome:
        """The outcome of one row, when the transaction was done at this revision."""
        return done(ABSENT if write.swap.value is None else revision)

    def differing(self, answer: Any) -> set[int]:
        """The indexes of the swaps against which the answer speaks."""
        if len(self.writes) == 1:
            return {self.writes[0].place}
        return {
            write.place
            for write, found in zip(self.writes, answer.responses, strict=True)
            if _revision(found) != write.swap.expect
        }

    def reread(self) -> Any:
        """Ask for the rows that it would have written."""
        return read_request([write.key for write in self.writes])

    def revision_if_mine(self, answer: Any) -> int | None:
        """The revision at which it was done, if one of the stored rows is its own."""
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


def waves(writes: Sequence[EtcdSwap]) -> list[list[SwapTransaction]]:
    """Transactions in the order in which they must be sent: those of one wave together, the waves one by one.

    The last transaction goes alone: it may hold the wake-up row, which must not wake others before the rest is done.
    Where a key comes twice, each transaction goes alone.
    """
    if len(writes) == 1:
        return [[SwapTransaction(writes)]]
    parts = [SwapTransaction(part) for part in _parts(writes)]
    if len({write.key for write in writes}) < len(writes):
        return [[part] for part in parts]
    return [wave for wave in (parts[:-1], parts[-1:]) if wave]


def _parts(writes: Sequence[EtcdSwap]) -> Iterator[list[EtcdSwap]]:
    part: list[EtcdSwap] = []
    keys: set[bytes] = set()
    size = 0
    for write in writes:
        more = len(write.key) + len(write.swap.value or b"")
        if part and (len(part) == MAX_OPERATIONS or size + more > MAX_BYTES or write.key in keys):
            yield part
            part, keys, size = [], set(), 0
        part.append(write)
        keys.add(write.key)
        size += more
    yield part


class _SwapResults:
    """The outcomes of the swaps of one call."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._found: dict[int, Outcome] = {}
        self._error: PxrsError | None = None
        """Why nothing more was sent."""

    def settle(self, wave: list[SwapTransaction]) -> None:
        """Send them until each row has its outcome. Every round that is refused has at least one conflict less."""
        while wave and self._error is None:
            lost: list[tuple[SwapTransaction, Failed]] = []
            again: list[SwapTransaction] = []
            replies = self._client.send("Txn", [one.request(ask_revisions=True) for one in wave])
            for one, reply in zip(wave, replies, strict=True):
                if isinstance(reply, Failed):
                    lost.append((one, reply))
                elif reply.succeeded:
                    self._done(one, reply.header.revision)
                else:
                    again += self._refused(one, reply)
            self._look_for(lost)
            wave = again

    def settle_all(self, one: SwapTransaction) -> Outcome:
        [reply] = self._client.send("Txn", [one.request(ask_revisions=False)])
        if isinstance(reply, Failed):
            self._look_for([(one, reply)])
        elif not reply.succeeded:
            return CONFLICT
        else:
            self._done(one, reply.header.revision)
        return max(self.outcomes(len(one.writes)), key=lambda outcome: outcome.version)

    def outcomes(self, count: int) -> list[Outcome]:
        """In the order of the swaps. Raises if it is sure that none was done or refused by the rows."""
        if self._error is not None:
            if not self._found:
                raise self._error
            rest = unknown(f"not sent: {self._error}")
            return [self._found.get(place, rest) for place in range(count)]
        return [self._found[place] for place in range(count)]

    def _done(self, one: SwapTransaction, revision: int) -> None:
        self._found |= {write.place: one.outcome(write, revision) for write in one.writes}

    def _refused(self, one: SwapTransaction, answer: Any) -> list[SwapTransaction]:
        differing = one.differing(answer)
        self._found |= dict.fromkeys(differing, CONFLICT)
        rest = [write for write in one.writes if write.place not in differing]
        return [SwapTransaction(rest)] if rest else []

    def _look_for(self, lost: list[tuple[SwapTransaction, Failed]]) -> None:
        """Read the rows once: a row of ours proves that its transaction was done."""
        for _, failure in lost:
            if is_certain(failure):
                self._error = self._client.error(failure)
        doubtful = [(one, failure) for one, failure in lost if not is_certain(failure)]
        if not doubtful:
            return
        answers = self._client.send("Txn", [one.reread() for one, _ in doubtful])
        for (one, failure), answer in zip(doubtful, answers, strict=True):
            revision = None if isinstance(answer, Failed) else one.revision_if_mine(answer)
            if revision is not None:
                self._done(one, revision)
            else:
                reason = str(self._client.error(failure))
                self._found |= {write.place: unknown(reason) for write in one.writes}
