"""The registry in plain files, for the processes of one machine: ``lockfiles:DIR``. ``ls`` and ``cat`` tell the story.

    DIR/consumer_locks/<group>/partition-N.lock        there while the partition is owned: by whom, and which process
    DIR/consumer_offsets/<group>/partition-N.offset    the next offset to process
    DIR/rows/...                                       the rows themselves, one file each
    DIR/registry/                                      mutex, journal, bell, and spare files

Every read and write holds the mutex for its moment. A write is one line in the journal, synced once; then files are
renamed. A member's row is void as soon as the process that registered it is proven dead: nobody waits for its lease.
One directory serves one queue.
"""

from __future__ import annotations

import errno
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import parse_qsl

from pxrs.drivers import split_url
from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable, disk_text, masked_url
from pxrs.io.address import Address
from pxrs.io.file_system import NETWORK_FILE_SYSTEMS, check_home, is_read_only, kind_of_file_system, read_only_error
from pxrs.io.fork import renew_in_child
from pxrs.io.watch.file_bell import Bells
from pxrs.model import MemberRow
from pxrs.rules.row_format import decode_member
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, CONFLICT, Guarantee, Outcome, Row, Store, Swap, Verdict, done, unknown
from pxrs.stores.lockfiles.directory import Directory, HeldMutex
from pxrs.stores.lockfiles.journal import InDoubt, RowChange
from pxrs.stores.lockfiles.process import Deaths, ProcessIdentity, my_life
from pxrs.stores.lockfiles.rows import FileRow, file_of
from pxrs.stores.versions import mark_of, new_version

ROWS_AT_ONCE, LET_IN_SECONDS = 256, 0.02
"""A long list is written in parts: others would take a mutex that is held for seconds for one that hangs."""


class LockFileStore(Store):
    """A handle on the directory; safe to use from several threads, and from a forked child."""

    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(
        {
            Guarantee.DURABLE,
            Guarantee.LINEARIZABLE,
            Guarantee.ACROSS_PROCESSES,
            Guarantee.WATCH,
            Guarantee.ATOMIC_ROWS,
        }
    )

    def __init__(self, directory: str, seconds: float, other_machines: bool = False) -> None:
        self.directory = directory
        self._place = Directory(directory, seconds, other_machines)
        self._bells = Bells(os.path.join(directory, "registry", "bell"))
        mourn = weakref.WeakMethod(self._mourn)  # its thread must not keep a store alive that nobody has any more
        self._deaths = Deaths(lambda: _call(mourn()))
        self._died = 0
        self._closed = False
        renew_in_child(self, LockFileStore.after_fork)
        weakref.finalize(self, _free, self._deaths, self._bells).atexit = False

    @classmethod
    def exists(cls, url: str) -> bool:
        return os.path.isdir(os.path.join(checked_place(address_of(url)), "registry"))

    @classmethod
    def open(cls, url: str, settings: Settings) -> LockFileStore:
        address = address_of(url)
        directory = directory_for(address)
        store = cls(directory, address.timeout(settings), address.flag("allow_network"))
        store._place.prepare()
        return store

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        with self._held():
            found = [(key, self._place.read(key)) for key in keys]
        return [self._row(key, stored) if stored else None for key, stored in found]

    def scan(self, prefix: str) -> list[Row]:
        with self._held():
            found = list(self._place.scan(prefix))
        return sorted(self._row(key, stored) for key, stored in found)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        check_keys(swaps)
        outcomes = self._write(swaps[:ROWS_AT_ONCE], together=False)
        while len(outcomes) < len(swaps):
            time.sleep(LET_IN_SECONDS)
            part = swaps[len(outcomes) : len(outcomes) + ROWS_AT_ONCE]
            try:
                outcomes += self._write(part, together=False)
            except Unavailable as error:  # what is done is done, and must be reported
                outcomes += [unknown(str(error))] * len(part)
        return outcomes

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        check_keys(swaps)
        outcomes = self._write(swaps, together=True)
        for outcome in outcomes:
            if outcome.verdict is not Verdict.DONE:
                return outcome
        return done(max((outcome.version for outcome in outcomes), default=ABSENT))

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        self._check_open()
        self._deaths.listen()
        return self._bells.wait(prefix, after, timeout, lambda: self._mark(prefix))

    def close(self) -> None:
        self._closed = True
        _free(self._deaths, self._bells)

    def after_fork(self) -> None:
        """In a forked child: locks and threads of the parent are not ours."""
        self._place.mutex.after_fork()
        self._bells.after_fork()
        self._deaths.after_fork()

    # ---- reading and waiting ----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.directory} was closed before this call")

    @contextmanager
    def _held(self) -> Iterator[HeldMutex]:
        self._check_open()
        before = self._place.caught_up
        with self._place.held() as held:
            yield held
        if self._place.caught_up != before:  # another has died in the middle of a write, before it could ring
            self._bells.ring_all()

    def _row(self, key: str, stored: FileRow) -> Row:
        if stored.life is not None:
            self._deaths.know(stored.life)
        return Row(key, stored.value, stored.version)

    def _mark(self, prefix: str) -> int:
        """The wait mark of a prefix: a number for all rows under it, and for the deaths that were reported."""
        died = self._died
        return mark_of(((row.key, row.version) for row in self.scan(prefix)), died)

    def _mourn(self) -> None:
        self._died += 1
        self._bells.ring_here()

    # ---- writing ----------------------------------------------------------------------------------------------------

    def _write(self, swaps: Sequence[Swap], together: bool) -> list[Outcome]:
        with self._held() as held:
            batch = FileTransaction(self._place)
            outcomes = [batch.swap(swap) for swap in swaps]
            refused = together and any(outcome.verdict is not Verdict.DONE for outcome in outcomes)
            changes = batch.changes()
            if refused or not changes:
                return outcomes
            try:
                self._place.commit(held, changes, batch.before)
            except InDoubt as doubt:
                return [_doubt(outcome, f"{self.directory}: {doubt}") for outcome in outcomes]
        self._bells.ring(change.key for change in changes)
        return outcomes


def _free(deaths: Deaths, bells: Bells) -> None:
    deaths.close()
    bells.close()


def _call(mourn: Callable[[], None] | None) -> None:
    if mourn is not None:
        mourn()


def check_keys(swaps: Sequence[Swap]) -> None:
    """Refuse what cannot be the name of a file, before anything is written."""
    for swap in swaps:
        file_of(swap.key)


def _doubt(outcome: Outcome, reason: str) -> Outcome:
    return unknown(reason) if outcome.verdict is Verdict.DONE else outcome


# ---- the URL --------------------------------------------------------------------------------------------------------


OPTIONS = ("allow_network", "timeout_ms")


def address_of(url: str) -> Address:
    """The URL taken apart: its place is the absolute path."""
    _, rest = split_url(url)
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    strange = sorted(name for name in options if name not in OPTIONS)
    if strange:
        raise BadUrl(f"{masked_url(url)!r}: no option {strange[0]!r}; there are {', '.join(OPTIONS)}")
    if not place or "\0" in place:
        raise BadUrl(f"{masked_url(url)!r} names no directory: write lockfiles:DIR")
    return Address("lockfiles", (), os.path.abspath(place), options)


def directory_for(address: Address) -> str:
    """The directory, made if need be."""
    path = checked_place(address)
    _make(path)
    if not os.access(path, os.W_OK | os.X_OK):
        if is_read_only(path):
            raise Unavailable(disk_text(read_only_error(path), path))
        raise Refused(disk_text(PermissionError(errno.EACCES, "", path), path))
    return path


def checked_place(address: Address) -> str:
    """The directory, which need not be there; refused if it cannot be, or should not."""
    path, parent = address.place, os.path.dirname(address.place)
    check_home(parent, f"lockfiles:{path}")
    if os.path.exists(path) and not os.path.isdir(path):
        raise Refused(f"{path} is a file; a registry of lock files is a directory")
    network = NETWORK_FILE_SYSTEMS.get(kind_of_file_system(path if os.path.exists(path) else parent))
    if network is not None and not address.flag("allow_network"):
        raise Refused(
            f"{path} is on a network file system ({network}), where locks cannot be trusted between machines: use a "
            "local directory or a registry server, or write lockfiles:DIR?allow_network=true for one machine alone"
        )
    return path


def _make(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except PermissionError as error:
        raise Refused(f"{path} cannot be made: {disk_text(error, path)}") from error
    except OSError as error:
        raise Unavailable(f"{path} cannot be made: {disk_text(error, path)}") from error


# ---- swaps that become one record of the journal --------------------------------------------------------------------


class FileTransaction:
    """Swaps that are judged against the rows, one after the other, and become one record."""

    def __init__(self, place: Directory) -> None:
        self._place = place
        self._now: dict[str, FileRow | None] = {}
        self.before: dict[str, bytes | None] = {}
        self._changed: dict[str, None] = {}

    def swap(self, swap: Swap) -> Outcome:
        stored = self._stored(swap.key)
        if (stored.version if stored else ABSENT) != swap.expect:
            return CONFLICT
        if swap.value is None and stored is None:
            return done(ABSENT)
        version = ABSENT
        if swap.value is None:
            self._now[swap.key] = None
        else:
            version = new_version()
            self._now[swap.key] = FileRow(version, bytes(swap.value), _life_for(swap, stored))
        self._changed[swap.key] = None
        return done(version)

    def changes(self) -> list[RowChange]:
        """The files to write, if all swaps that were judged done shall happen."""
        me = my_life()
        return [RowChange(key, self._now[key], me) for key in self._changed]

    def _stored(self, key: str) -> FileRow | None:
        if key not in self._now:
            self._now[key] = stored = self._place.read(key)
            self.before[key] = stored.value if stored else None
        return self._now[key]


def _life_for(swap: Swap, before: FileRow | None) -> ProcessIdentity | None:
    """The process that a row depends on: that of the member which registers. Operators write into its row, too."""
    member = _member_of(swap) if swap.ttl_ms is not None else None
    # One that has asked for time to come back gets it; a mark of eviction outlives the operator that made it.
    if member is None or member.is_evicted or member.grace_ms:
        return None
    earlier = _member_of(swap._replace(value=before.value)) if before else None
    return before.life if before and earlier and earlier.inc == member.inc else my_life()


def _member_of(swap: Swap) -> MemberRow | None:
    try:
        return decode_member(swap.key.rpartition("/")[2], bytes(swap.value or b""))
    except PxrsError:
        return None
