"""Where a queue's log and registry are: from what the caller names, and from the environment, to two URLs."""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

from pxrs.errors import BadUrl, masked, masked_url
from pxrs.plugins import find_driver, split_url
from pxrs.runtime.latestore import LateStore
from pxrs.settings import Settings
from pxrs.stores.base import Store

VARIABLE = "PXRS_REGISTRY"
_FILES = ("sqlite", "lockfiles")
"""Registries that stand in a directory of this machine."""
_BESIDE = "registry.db beside the log"


class Places(NamedTuple):
    """The URLs of log and registry. ``where`` is how the registry is named to people, ``is_beside`` whether it stands
    in the directory of the log, which may have to be made first."""

    log: str
    registry: str
    where: str
    is_beside: bool

    def __repr__(self) -> str:
        return f"Places({masked_url(self.log)!r}, {masked_url(self.registry)!r})"  # never a password


def places_of(url: str | None, log: str | None, registry: str | None) -> Places:
    """The places that ``pxrs.open`` was told. What names no driver is refused with those that there are."""
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
        return Places(log_url, f"sqlite:{os.path.join(rest, 'registry.db')}", _BESIDE, True)
    if scheme == "memory":
        return Places(log_url, log_url, log_url, False)
    raise BadUrl(
        f"a log at {masked_url(log_url)!r} has no registry beside it: name one, as registry='sqlite:PATH' in Python, "
        f"--registry sqlite:PATH in the shell, or {VARIABLE}"
    )


def _named(log: str, registry: str) -> Places:
    if not isinstance(registry, str):
        raise BadUrl(f"registry = {masked(repr(registry))} is no URL: write scheme:place, as in sqlite:./registry.db")
    scheme, rest = split_url(registry)
    if scheme not in _FILES:
        return Places(log, registry, masked_url(registry), False)
    path, beside = os.path.abspath(rest), _directory_of(log)
    if scheme == "sqlite" and path == os.path.join(beside, "registry.db"):
        return Places(log, registry, _BESIDE, True)
    return Places(log, registry, f"{scheme}:{path}", bool(beside) and path.startswith(beside + os.sep))


def _directory_of(log: str) -> str:
    scheme, rest = split_url(log)
    return os.path.abspath(rest) if scheme == "file" else ""


def open_store(url: str, settings: Settings) -> Store:
    """The registry at this URL. One that would have to be made is made by the first write to it."""
    driver: type[Store] = find_driver("pxrs.stores", url)
    make = partial(_opened, driver, url, settings)
    return make() if driver.exists(url) else LateStore(driver, partial(driver.exists, url), make)


def _opened(driver: type[Store], url: str, settings: Settings) -> Store:
    opened: Store = driver.open(url, settings)  # type: ignore[attr-defined]  # each driver has it, with a type of its own
    return opened
