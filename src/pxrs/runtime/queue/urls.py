"""Finds the two URLs of a queue, log and registry, from what the caller names and from the environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from pxrs.drivers import find_driver, split_url
from pxrs.errors import BadUrl, Closed, masked, masked_url
from pxrs.settings import Settings
from pxrs.stores.base import Outcome, Row, Store, Swap

VARIABLE = "PXRS_REGISTRY"
_FILES = ("sqlite", "lockfiles")
"""Registries in a directory of this machine."""
_BESIDE = "registry.db beside the log"


class QueueUrls(NamedTuple):
    """The URLs of log and registry. ``where`` is how the registry is named to people, ``is_beside`` whether it is
    in the directory of the log, which may have to be made first."""

    log: str
    registry: str
    where: str
    is_beside: bool

    def __repr__(self) -> str:
        return f"Places({masked_url(self.log)!r}, {masked_url(self.registry)!r})"  # never a password


def places_of(url: str | None, log: str | None, registry: str | None) -> QueueUrls:
    """The URLs that ``pxrs.open`` got. One without a driver is refused with a list of those that exist."""
    if (url is None) == (log is None):
        raise BadUrl("name the queue once: pxrs.open('file:./orders'), or pxrs.open(log=..., registry=...)")
    log_url = url if url is not None else log
    if not isinstance(log_url, str):
        raise BadUrl(f"{masked(repr(log_url))} is no URL: write scheme:place, as in file:./orders or memory:")
    find_driver("pxrs.logs", log_url)
    scheme, rest = split_url(log_url)
    if registry is None and scheme != "memory":
        registry = os.environ.get(VARIABLE) or None
    if registry is not None:
        return _named(log_url, registry)
    if scheme == "file":
        return QueueUrls(log_url, f"sqlite:{os.path.join(rest, 'registry.db')}", _BESIDE, True)
    if scheme == "memory":
        return QueueUrls(log_url, log_url, log_url, False)
    raise BadUrl(
        f"a log at {masked_url(log_url)!r} has no registry beside it: name one, as registry='sqlite:PATH' in Python, "
        f"--registry sqlite:PATH in the shell, or {VARIABLE}"
    )


def _named(log: str, registry: str) -> QueueUrls:
    if not isinstance(registry, str):
        raise BadUrl(f"registry = {masked(repr(registry))} is no URL: write scheme:place, as in sqlite:./registry.db")
    scheme, rest = split_url(registry)
    if scheme not in _FILES:
        return QueueUrls(log, registry, masked_url(registry), False)
    path, beside = os.path.abspath(rest), _directory_of(log)
    if scheme == "sqlite" and path == os.path.join(beside, "registry.db"):
        return QueueUrls(log, registry, _BESIDE, True)
    return QueueUrls(log, registry, f"{scheme}:{path}", bool(beside) and path.startswith(beside + os.sep))


def _directory_of(log: str) -> str:
    scheme, rest = split_url(log)
    return os.path.abspath(rest) if scheme == "file" else ""


def open_store(url: str, settings: Settings) -> Store:
    """The registry at this URL. One that would have to be made is made by the first write to it."""
    driver: type[Store] = find_driver("pxrs.stores", url)
    if driver.exists(url):
        return _opened(driver, url, settings)
    later = _absolute(url)  # the process may change its directory before the first write, as daemons do
    return LateStore(driver, partial(driver.exists, later), partial(_opened, driver, later, settings))


def _absolute(url: str) -> str:
    scheme, rest = split_url(url)
    return f"{scheme}:{os.path.abspath(rest)}" if scheme in _FILES else url


def _opened(driver: type[Store], url: str, settings: Settings) -> Store:
    opened: Store = driver.open(url, settings)  # type: ignore[attr-defined]  # each driver has it, with a type of its own
    return opened


# ---- a registry that is made by its first write ---------------------------------------------------------------------


_LOOK_SECONDS = 0.5
"""The interval at which a wait checks whether another process has made the registry."""


class LateStore(Store):
    """Takes the place of a store whose file or directory does not exist. Another process may make it at any time."""

    def __init__(self, driver: type[Store], exists: Callable[[], bool], make: Callable[[], Store]) -> None:
        # Of the instance: they are those of the store that this one stands for.
        self.__dict__.update(guarantees=driver.guarantees, max_atomic=driver.max_atomic)
        self._exists = exists
        self._make = make
        self._made: Store | None = None
        self._closed = False

    def read(self, keys: Sequence[str]) -> list[Row | None]:
        found = self._found()
        return [None] * len(keys) if found is None else found.read(keys)

    def scan(self, prefix: str) -> list[Row]:
        found = self._found()
        return [] if found is None else found.scan(prefix)

    def swap_each(self, swaps: Sequence[Swap]) -> list[Outcome]:
        return self._opened().swap_each(swaps)

    def swap_all(self, swaps: Sequence[Swap]) -> Outcome:
        return self._opened().swap_all(swaps)

    def wait(self, prefix: str, after: int, timeout: float) -> int:
        found = self._found()
        if found is not None:
            return found.wait(prefix, after, timeout)
        threading.Event().wait(min(timeout, _LOOK_SECONDS) if after else 0)
        return 1

    def close(self) -> None:
        self._closed = True
        if self._made is not None:
            self._made.close()

    def _found(self) -> Store | None:
        """The store, if there is one by now."""
        self._check_open()
        return self._opened() if self._made is not None or self._exists() else None

    def _opened(self) -> Store:
        if self._made is not None:
            return self._made
        self._check_open()
        made = self._make()
        # Without a lock, which a fork could leave locked: of two threads the later one closes its own.
        kept: Store = self.__dict__.setdefault("_kept", made)
        if kept is not made:
            made.close()
        self._made = kept
        # From now on calls go straight to the store that there is.
        self.__dict__.update(read=kept.read, scan=kept.scan, swap_each=kept.swap_each, swap_all=kept.swap_all)
        return kept

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the registry was closed before this call")
