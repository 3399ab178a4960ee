"""Identifies one life of a process: its pid is used again, its pid with its start time is not.

A process counts as dead only where that is proven: its id is gone, or belongs to a process with another start time,
or the machine was started anew since. Age proves nothing, and neither does an id of another PID namespace.
"""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from pxrs.io.process import boot_id, status_of
from pxrs.io.process_exit import Stage, at_exit


class ProcessIdentity(NamedTuple):
    """A process: its id, when it started (clock ticks after boot), which boot, and whose count of ids."""

    pid: int
    started: int
    boot: str
    namespace: str

    def __str__(self) -> str:
        return f"process {self.pid} started {self.started} boot {self.boot} namespace {self.namespace}"


def my_life() -> ProcessIdentity | None:
    """This process; None where the system does not say enough to identify it."""
    return _life_of_this_process(os.getpid())


@lru_cache(maxsize=1)  # a forked child has another id, and asks anew
def _life_of_this_process(pid: int) -> ProcessIdentity | None:
    boot = boot_id()
    try:
        started, namespace = status_of(pid).started, str(os.stat("/proc/self/ns/pid").st_ino)
        return ProcessIdentity(pid, started, boot, namespace) if boot else None
    except OSError:
        return None


def is_dead(life: ProcessIdentity, other_machines: bool = False) -> bool:
    """Whether it is proven that this process runs no more. ``other_machines``: another boot may be another machine."""
    here = my_life()
    if here is None:
        return False
    if life.boot != here.boot:
        return not other_machines
    return life.namespace == here.namespace and _has_ended(life)


def _has_ended(life: ProcessIdentity) -> bool:
    try:
        os.kill(life.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and another user's
    try:
        found = status_of(life.pid)
    except OSError:
        return False  # gone in this moment, or hidden from us: nothing is proven
    return found.started != life.started or (found.state in "ZX" and found.threads <= 1)


# ---- when another process ends: the kernel says so, nobody has to look again and again ------------------------------


class Deaths:
    """The processes that this one knows of, and a sleeping thread that is woken when one of them ends."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._known: set[ProcessIdentity] = set()
        self._watched: dict[int, ProcessIdentity] = {}
        self._wake: tuple[int, int] | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        _all.add(self)

    def know(self, life: ProcessIdentity) -> None:
        """Remember a process that is alive; once ``listen`` was called, its end is reported."""
        with self._lock:
            if life not in self._known and _can_be_watched(life):
                self._known.add(life)
                self._stir()

    def listen(self) -> None:
        """Report ends from now on. A second call does nothing."""
        with self._lock:
            if self._wake is None and not self._closed and hasattr(os, "pidfd_open"):
                self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                arguments = (self._wake[0],)
                self._thread = threading.Thread(target=self._run, args=arguments, name="pxrs-deaths", daemon=True)
                self._thread.start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._stir()

    def end(self) -> list[threading.Thread]:
        """Close, and return the thread that ends by this, if there is one."""
        self.close()
        return [] if self._thread is None else [self._thread]

    def after_fork(self) -> None:
        """In a forked child: the thread is not here, and the descriptors are the parent's."""
        self._lock = threading.Lock()
        self._thread = None
        self._known.clear()
        self._close_descriptors()

    def _stir(self) -> None:
        if self._wake is not None:
            os.write(self._wake[1], b"!")

    def _run(self, wake: int) -> None:
        while self._step(wake):
            pass

    def _step(self, wake: int) -> bool:
        with self._lock:
            if self._closed:
                self._close_descriptors()
                return False
            ended = self._watch_new()
            files = (wake, *self._watched)
        ready = set() if ended else _readable(files)
        with self._lock:
            if wake in ready:
                os.read(wake, 4_096)
            ended |= self._forget(ready - {wake})
        if ended:
            self._notify()
        return True

    def _watch_new(self) -> bool:
        """Watch those that are not watched yet; whether one of them has ended meanwhile."""
        ended = False
        for life in self._known.difference(self._watched.values()):
            try:
                fd = os.pidfd_open(life.pid)
            except ProcessLookupError:
                ended = True
                self._known.discard(life)
            except OSError:
                self._known.discard(life)  # no more descriptors: the poll of the registry must do
            else:
                self._watched[fd] = life
                # Its id may have gone to another process before it could be watched.
                ended |= is_dead(life) and self._forget({fd})
        return ended

    def _forget(self, ended: set[int]) -> bool:
        for fd in ended:
            self._known.discard(self._watched.pop(fd))
            os.close(fd)
        return bool(ended)

    def _close_descriptors(self) -> None:
        for fd in (*self._watched, *(self._wake or ())):
            os.close(fd)
        self._watched, self._wake = {}, None


_all: weakref.WeakSet[Deaths] = weakref.WeakSet()


@at_exit(Stage.LOOPS)
def _end() -> list[threading.Thread]:
    return [thread for deaths in list(_all) for thread in deaths.end()]


def _can_be_watched(life: ProcessIdentity) -> bool:
    here = my_life()
    return here is not None and life != here and (life.boot, life.namespace) == (here.boot, here.namespace)


def _readable(files: tuple[int, ...]) -> set[int]:
    poll = select.poll()
    for fd in files:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll()}
