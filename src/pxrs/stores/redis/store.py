"""The registry on a Redis or Valkey server: ``redis://[user:password@]host[:port][/DB][?prefix=NAME]``.

All compare-and-set goes through one script (``redis_script``), whatever the number of rows. A swap is sent once. If its
answer is lost the rows are read once: one that carries the nonce of this very call was written by it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple

from pxrs.errors import BadUrl, Closed, Damaged, NewerFormat, Refused, Unavailable
from pxrs.io.address import parse
from pxrs.io.fork import renew_in_child
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, done, encoded_key, unknown
from pxrs.stores.redis.client import Listener, Lost, RedisClient, Rejected, Script, Word
from pxrs.stores.redis.scripts import DELETE, FORMAT, HEAD, NONCE_LETTERS, OPEN, SCAN, SWAP, VERSION_DIGITS

DEFAULT_PORT = 6379
DEFAULT_PREFIX = "pxrs"
ROWS_PER_CALL = 5_000
"""A longer ``swap_each`` is split: while a script runs the server does nothing else."""
LONGEST_TTL_MS = 10 * 365 * 24 * 3_600_000

_OPEN, _SWAP, _SCAN = Script.of(OPEN), Script.of(SWAP), Script.of(SCAN)


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

    def __init__(self, client: RedisClient, names: Names) -> None:
        self._client = client
        self._names = names
        self._begin_to_listen()
        renew_in_child(self, RedisStore._begin_to_listen)

    @classmethod
    def open(cls, url: str, settings: Settings) -> RedisStore:
        address = parse(url, DEFAULT_PORT, known=("prefix", "allow_eviction"))
        if len(address.hosts) != 1:
            raise BadUrl(f"{address}: give one server, the primary; Sentinel and clusters are not supported")
        database = address.place or "0"
        if not database.isascii() or not database.isdigit():
            raise BadUrl(f"{address}: {database!r} is no number of a database, as in redis://host:6379/0")
        names = Names.of(address.options.get("prefix", DEFAULT_PREFIX), database)
        client = RedisClient(address, int(database), address.timeout(settings))
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
        found = self._client.look(_SCAN, [self._names.keys], [*_range(encoded_key(prefix)), self._names.rows])
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
        if not after:
            self._client.ask("PING")  # without a server there is nothing to wait for
        return self._listener.wait(encoded_key(prefix), after, timeout)

    def close(self) -> None:
        self._client.close()
        self._listener.close()

    # --- swaps

    def _in_turn(self, calls: Sequence[_ScriptCall]) -> Iterator[list[Outcome]]:
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

    def _each(self, call: _ScriptCall) -> list[Outcome]:
        try:
            answer = self._run("each", call)
        except (Lost, Rejected) as error:
            return self._recognised(call, str(error))
        return [CONFLICT if text == b"-" else done(int(text)) for text in answer.split(b",")]

    def _run(self, mode: str, call: _ScriptCall) -> bytes:
        names = self._names
        head: list[Word] = [mode, call.nonce, names.changes, len(names.rows)]
        answer: bytes = self._client.run(
            _SWAP, [names.revision, names.keys, names.gone, *call.rows], head + call.values
        )
        return answer

    def _call(self, swaps: Sequence[Swap]) -> _ScriptCall:
        rows = [self._names.row(swap.key) for swap in swaps]
        values = [word for swap in swaps for word in _words(swap)]
        return _ScriptCall(swaps, rows, values, secrets.token_hex(NONCE_LETTERS // 2).encode())

    def _recognised(self, call: _ScriptCall, reason: str) -> list[Outcome]:
        """Find out after a lost answer what was done. A key that is twice in the call does not show which was done."""
        written = self._written_by(call)
        once = [call.rows.count(row) == 1 for row in call.rows] if any(written) else []
        return [
            done(version) if version and once[number] else unknown(reason) for number, version in enumerate(written)
        ]

    def _recognised_all(self, call: _ScriptCall, reason: str) -> Outcome:
        """One row of ours shows that all were done. Versions go by index, so that one shows the highest."""
        last = max((number for number, swap in enumerate(call.swaps) if swap.value is not None), default=0)
        for number, version in enumerate(self._written_by(call)):
            if version:
                return done(version + last - number)
        return unknown(reason)

    def _written_by(self, call: _ScriptCall) -> list[int]:
        """The version that this call gave each row; 0 where nothing shows that it did."""
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

    def _begin_to_listen(self) -> None:
        """Also in a forked child: the thread that listens was left behind."""
        self._listener = Listener(self._client, self._names.changes)


class _ScriptCall(NamedTuple):
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


# ---- what a server must be like -------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


class Names(NamedTuple):
    """The keys of one registry. The text in braces decides the slot in a cluster: it is the same for all."""

    rows: bytes
    """The beginning of every key of a row."""
    keys: bytes
    gone: bytes
    revision: bytes
    format: bytes
    trial: bytes
    changes: bytes
    """The channel. Channels are the same in all databases of a server, so its number is in the name."""

    @classmethod
    def of(cls, prefix: str, database: str) -> Names:
        if not prefix or "{" in prefix or "}" in prefix:
            raise BadUrl(f"prefix = {prefix!r}: a name for the registry, without braces")
        names = ("row:", "keys", "gone", "revision", "format", "trial", f"changes:{database}")
        return cls(*(f"{{{prefix}}}:{name}".encode() for name in names))

    def row(self, key: str) -> bytes:
        return self.rows + encoded_key(key)


def prepare(client: RedisClient, names: Names) -> None:
    """Check that a registry can be kept on the server, and make the place if it is new."""
    _check_eviction(client)
    _check_format(client, names)
    _warn_of_losses(client)


def _check_format(client: RedisClient, names: Names) -> None:
    try:
        stored = client.run(_OPEN, [names.format, names.revision, names.trial], [FORMAT, names.changes])
    except Lost as error:  # nothing is harmed if it was carried out
        raise Unavailable(str(error)) from None
    except Rejected as error:
        raise Refused(f"{client.address} cannot hold a registry: {error}") from None
    if stored == b"%d" % FORMAT:
        return
    if not stored.isdigit():
        raise Damaged(f"{client.address}: {names.format!r} is not the format of a registry: {stored!r}")
    raise NewerFormat(
        f"{client.address}: the registry has format {int(stored)}, this version of PXRS knows {FORMAT}: update it"
    )


def _check_eviction(client: RedisClient) -> None:
    """A full server that deletes rows to make room would hand partitions to two owners."""
    found = _info(client, "memory")
    policy = found.get("maxmemory_policy", "noeviction")
    if found.get("maxmemory", "0") == "0" or policy == "noeviction":
        return
    text = (
        f"{client.address} deletes keys when its memory is full (maxmemory-policy {policy}): "
        "a registry needs maxmemory-policy noeviction"
    )
    if not client.address.flag("allow_eviction"):
        raise Refused(f"{text}, or allow_eviction=true in the URL if no key of it is ever deleted")
    logger.warning("%s; allowed by the URL", text)


def _warn_of_losses(client: RedisClient) -> None:
    if _info(client, "persistence").get("aof_enabled") == "0":
        logger.warning(
            "%s keeps no append-only file: after its restart the registry is empty or old, "
            "and members that have seen newer rows will refuse it",
            client.address,
        )


def _info(client: RedisClient, section: str) -> dict[str, str]:
    """The server's own facts; none if this user may not ask."""
    with suppress(Refused):
        text: bytes = client.ask("INFO", section)
        lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
        return {name: value for name, _, value in lines}
    return {}
