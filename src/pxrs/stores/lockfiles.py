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

import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from pxrs.clients.bell import Bells
from pxrs.clock import SystemClock
from pxrs.errors import Closed, Unavailable
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Guarantee, Outcome, Row, Store, Swap, Verdict, done, unknown
from pxrs.stores.lockfiles_batch import Batch
from pxrs.stores.lockfiles_deaths import Deaths
from pxrs.stores.lockfiles_journal import InDoubt
from pxrs.stores.lockfiles_names import file_of
from pxrs.stores.lockfiles_place import Held, Place
from pxrs.stores.lockfiles_rows import Stored
from pxrs.stores.lockfiles_url import address_of, checked_place, directory_for
from pxrs.stores.marks import mark_of

ROWS_AT_ONCE, LET_IN_SECONDS = 256, 0.02
"""A long list is written in parts: others would take a mutex that is held for seconds for one that hangs."""
LOOK_EVERY_SECONDS = 0.005
"""A waiter looks at most this often, however often it is woken."""


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
        self._place = Place(directory, seconds, other_machines)
        self._bells = Bells(os.path.join(directory, "registry", "bell"))
        mourn = weakref.WeakMethod(self._mourn)  # its thread must not keep a store alive that nobody has any more
        self._deaths = Deaths(lambda: _call(mourn()))
        self._died = 0
        self._closed = False
        self._clock = SystemClock()
        _everywhere.add(self)
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
            except Unavailable as error:  # what is done is done, and must be told
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
        deadline = self._clock.monotonic() + timeout
        self._check_open()
        self._deaths.listen()
        while True:
            bell = self._bells.listening(prefix)
            heard = bell.heard  # before the look: a ring during it ends the wait that follows
            try:
                mark = self._mark(prefix)
            except Closed:
                return after
            looked = self._clock.monotonic()
            if mark != after or not bell.wait(heard, deadline - looked):
                return mark
            bell.pause(looked + LOOK_EVERY_SECONDS - self._clock.monotonic())

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
    def _held(self) -> Iterator[Held]:
        self._check_open()
        before = self._place.caught_up
        with self._place.held() as held:
            yield held
        if self._place.caught_up != before:  # another has died in the middle of a write, before it could ring
            self._bells.ring_all()

    def _row(self, key: str, stored: Stored) -> Row:
        if stored.life is not None:
            self._deaths.know(stored.life)
        return Row(key, stored.value, stored.version)

    def _mark(self, prefix: str) -> int:
        """A number that stands for everything under the prefix, and for the deaths that were told."""
        died = self._died
        return mark_of(((row.key, row.version) for row in self.scan(prefix)), died)

    def _mourn(self) -> None:
        self._died += 1
        self._bells.ring_here()

    # ---- writing ----------------------------------------------------------------------------------------------------

    def _write(self, swaps: Sequence[Swap], together: bool) -> list[Outcome]:
        with self._held() as held:
            batch = Batch(self._place)
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


_everywhere: weakref.WeakSet[LockFileStore] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_everywhere):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)
