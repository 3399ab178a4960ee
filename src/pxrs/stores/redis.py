"""The registry on a Redis or Valkey server: ``redis://[user:password@]host[:port][/DB][?prefix=NAME]``.

All compare-and-set goes through one script (``redis_script``), whatever the number of rows. A swap is sent once. If its
answer is lost the rows are read once: one that carries the nonce of this very call was written by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from pxrs.clients.address import parse
from pxrs.clients.redis import Client, Lost, Rejected, Script, Word
from pxrs.clients.redis_listener import Listener
from pxrs.errors import BadUrl, Closed, Damaged, Refused, Unavailable
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, done, unknown
from pxrs.stores.redis_script import DELETE, HEAD, LOOK, NONCE_LETTERS, SCAN, SWAP, VERSION_DIGITS
from pxrs.stores.redis_setup import Names, prepare

DEFAULT_PORT = 6379
DEFAULT_PREFIX = "pxrs"
ROWS_PER_CALL = 5_000
"""A longer ``swap_each`` is split: while a script runs the server does nothing else."""
LONGEST_TTL_MS = 10 * 365 * 24 * 3_600_000
EMPTY = 1
"""The mark of a server that has nothing; never 0."""

_SWAP, _SCAN, _LOOK = Script.of(SWAP), Script.of(SCAN), Script.of(LOOK)


class RedisStore(Store):
    """A handle on one registry of the server. Safe to use from several threads, and from a forked child.

    DURABLE is not promised: whether an answered write survives is the server's setting, and a failover forgets some.
    """

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(
        {
            Guarantee.LINEARIZABLE,
            Guarantee.ACROSS_PROCESSES,
            Guarantee.ACROSS_HOSTS,
            Guarantee.NATIVE_EXPIRY,
            Guarantee.WATCH,
            Guarantee.ATOMIC_ROWS,
        }
    )
    max_atomic: ClassVar[int] = 65_536

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._names = names
        self._listener = self._new_listener()
        client.on_fork = self._after_fork

    @classmethod
    def open(cls, url: str, settings: Settings) -> RedisStore:
        address = parse(url, DEFAULT_PORT, known=("prefix", "allow_eviction"))
        if len(address.hosts) != 1:
            raise BadUrl(f"{address}: give one server, the primary; Sentinel and clusters are not supported")
        database = address.place or "0"
        if not database.isascii() or not database.isdigit():
            raise BadUrl(f"{address}: {database!r} is no number of a database, as in redis://host:6379/0")
        names = Names.of(address.options.get("prefix", DEFAULT_PREFIX), database)
        client = Client(address, int(database), address.timeout(settings))
        try:
            prepare(client, names)
        except BaseException:
            client.close()
            raise
        return cls(client, names)

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        self._client.check_open()
        rows = [self._names.row(key) for key in keys]
        found = self._client.ask("MGET", *rows) if rows else []
        return [None if raw is None else self._row(key, raw) for key, raw in zip(keys, found, strict=True)]

    def scan(self, prefix: str) -> list[Row]:
        found = self._client.look(_SCAN, [self._names.keys], [*_range(_encoded(prefix)), self._names.rows])
        pairs = zip(found[::2], found[1::2], strict=True)
        return [self._row(key.decode(), raw) for key, raw in pairs]

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        calls = [self._call(swaps[at : at + ROWS_PER_CALL]) for at in range(0, len(swaps), ROWS_PER_CALL)]
        self._client.check_open()
        return [outcome for call in self._in_turn(calls) for outcome in call]

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        if len(swaps) > self.max_atomic:
            raise Refused(f"{len(swaps)} rows cannot be swapped at once on {self._client.address}: {self.max_atomic}")
        self._client.check_open()
        call = self._call(swaps)
        if not swaps:
            return done(ABSENT)
        try:
            answer = self._run("all", call)
        except (Lost, Rejected) as error:
            return self._recognised_all(call, str(error))
        return CONFLICT if answer == b"-" else done(max(map(int, answer.split(b","))))

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        self._client.check_open()
        encoded = _encoded(prefix)
        try:
            return self._listener.wait(encoded, after, timeout) if after else self._revision()
        except Closed:  # closed while waiting: the wait ends, with the mark it has
            return after or EMPTY

    def close(self) -> None:
        self._client.close()
        self._listener.close()

    # --- swaps

    def _in_turn(self, calls: Sequence[_Call]) -> Iterator[list[Outcome]]:
        """The outcomes of one call after the other. After a failure of a later one nothing more is sent."""
        reason = ""
        for number, call in enumerate(calls):
            if reason:
                yield [unknown(reason)] * len(call.swaps)
                continue
            try:
                yield self._each(call)
            except (Unavailable, Refused, Closed) as error:
                if number == 0:
                    raise
                reason = f"not sent, after rows before it were swapped: {error}"
                yield [unknown(reason)] * len(call.swaps)

    def _each(self, call: _Call) -> list[Outcome]:
        try:
            answer = self._run("each", call)
        except (Lost, Rejected) as error:
            return self._recognised(call, str(error))
        return [CONFLICT if text == b"-" else done(int(text)) for text in answer.split(b",")]

    def _run(self, mode: str, call: _Call) -> bytes:
        names = self._names
        head: list[Word] = [mode, call.nonce, names.changes, len(names.rows)]
        answer: bytes = self._client.run(
            _SWAP, [names.revision, names.keys, names.gone, *call.rows], head + call.values
        )
        return answer

    def _call(self, swaps: Sequence[Swap]) -> _Call:
        rows = [self._names.row(swap.key) for swap in swaps]
        values = [word for swap in swaps for word in _words(swap)]
        return _Call(swaps, rows, values, secrets.token_hex(NONCE_LETTERS // 2).encode())

    def _recognised(self, call: _Call, reason: str) -> list[Outcome]:
        """What can be known after a lost answer. A key that is twice in the call tells nothing about which was done."""
        written = self._written_by(call)
        once = [call.rows.count(row) == 1 for row in call.rows] if any(written) else []
        return [
            done(version) if version and once[number] else unknown(reason) for number, version in enumerate(written)
        ]

    def _recognised_all(self, call: _Call, reason: str) -> Outcome:
        """One row of ours shows that all were done. Versions go by place, so that one tells the highest."""
        last = max((number for number, swap in enumerate(call.swaps) if swap.value is not None), default=0)
        for number, version in enumerate(self._written_by(call)):
            if version:
                return done(version + last - number)
        return unknown(reason)

    def _written_by(self, call: _Call) -> list[int]:
        """For each row the version that this call gave it; 0 where nothing shows that it did."""
        try:
            found = self._client.ask("MGET", *call.rows)
        except (Unavailable, Refused, Closed):
            return [ABSENT] * len(call.rows)
        return [
            int(raw[:VERSION_DIGITS])
            if raw is not None and raw[VERSION_DIGITS + 1 : HEAD - 1] == call.nonce
            else ABSENT
            for raw in found
        ]

    # --- reading

    def _row(self, key: str, raw: bytes) -> Row:
        if len(raw) < HEAD or not raw[:VERSION_DIGITS].isdigit():
            raise Damaged(f"{self._client.address}: {self._names.row(key)!r} is no row of a registry")
        return Row(key, raw[HEAD:], int(raw[:VERSION_DIGITS]))

    def _revision(self) -> int:
        return int(self._client.ask("GET", self._names.revision) or EMPTY)

    def _look(self, prefix: bytes, mark: int) -> tuple[bool, int]:
        names = self._names
        changed, revision = self._client.look(
            _LOOK, [names.revision, names.keys, names.gone], [mark, prefix, *_range(prefix), names.rows]
        )
        return bool(changed), int(revision)

    def _new_listener(self) -> Listener:
        return Listener(self._client, self._names.changes, self._revision, self._look, VERSION_DIGITS)

    def _after_fork(self) -> None:
        """In a forked child: the thread that listens was left behind."""
        self._listener = self._new_listener()


class _Call(NamedTuple):
    """Swaps that travel together, as the script takes them."""

    swaps: Sequence[Swap]
    rows: list[bytes]
    values: list[Word]
    nonce: bytes


def _words(swap: Swap) -> tuple[Word, Word, Word]:
    expect = f"{swap.expect:0{VERSION_DIGITS}d}" if swap.expect else ""
    if swap.value is None:
        return expect, DELETE, b""
    if swap.ttl_ms is None:
        return expect, "", swap.value
    if swap.ttl_ms < 1:
        raise Refused(f"key {swap.key!r}: a row cannot live for {swap.ttl_ms} ms")
    return expect, min(swap.ttl_ms, LONGEST_TTL_MS), swap.value


def _range(prefix: bytes) -> tuple[bytes, bytes]:
    """The keys that begin with the prefix, for ZRANGEBYLEX. No UTF-8 byte is 255: the last can be counted up."""
    if not prefix:
        return b"-", b"+"
    return b"[" + prefix, b"(" + prefix[:-1] + bytes([prefix[-1] + 1])


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Refused(f"key {text!r} has no UTF-8 form") from None
