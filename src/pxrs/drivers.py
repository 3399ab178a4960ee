"""Finds the driver of a URL by its scheme: a table of the built-in ones, then the entry points of other packages.

The table (not entry points of our own) makes drivers work from a source zip too, as Spark's executors get it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from pxrs.errors import BadUrl, masked_url

_BUILT_IN = {
    "pxrs.stores": {
        "memory": "pxrs.stores.memory:MemoryStore",
        "sqlite": "pxrs.stores.sqlite.store:SqliteStore",
        "lockfiles": "pxrs.stores.lockfiles.store:LockFileStore",
        "postgresql": "pxrs.stores.sql.store:SqlStore",
        "mysql": "pxrs.stores.sql.store:SqlStore",
        "oracle": "pxrs.stores.sql.store:SqlStore",
        "etcd": "pxrs.stores.etcd.store:EtcdStore",
        "redis": "pxrs.stores.redis.store:RedisStore",
        "rediss": "pxrs.stores.redis.store:RedisStore",
        "nats": "pxrs.stores.nats.store:NatsStore",
    },
    "pxrs.logs": {
        "memory": "pxrs.logs.memory:MemoryLog",
        "file": "pxrs.logs.file.log:FileLog",
        "nats": "pxrs.logs.jetstream.log:JetStreamLog",
    },
}


def check_characters(url: str) -> None:
    """Refuse what neither a file nor a server can be named with."""
    try:
        os.fsencode(url)  # bytes of a path that are no UTF-8 pass: the shell hands them over as surrogates
    except UnicodeEncodeError:
        raise BadUrl(f"{masked_url(url)!r} holds a lone surrogate, half of a character: write the whole one") from None
    if "\0" in url:
        raise BadUrl(f"{masked_url(url)!r} holds a NUL character: leave it out")


def split_url(url: str) -> tuple[str, str]:
    """``"file:./orders"`` → ``("file", "./orders")``."""
    check_characters(url)
    scheme, colon, rest = url.partition(":")
    if not colon or not scheme:
        raise BadUrl(f"{masked_url(url)!r} is no URL: write scheme:place, as in file:./orders or memory:")
    return scheme.lower(), rest


def find_driver(room: str, url: str) -> Any:
    """The class that answers to this URL in the room ``"pxrs.stores"`` or ``"pxrs.logs"``."""
    scheme, _ = split_url(url)
    built_in = _BUILT_IN[room].get(scheme)
    if built_in:
        module, _, name = built_in.partition(":")
        return getattr(_imported(module, scheme), name)
    others = {point.name: point for point in _entry_points(group=room)}
    if scheme in others:
        return others[scheme].load()
    known = ", ".join(sorted({*_BUILT_IN[room], *others}))
    raise BadUrl(f"no driver for {masked_url(scheme)!r} in {room}; there are: {known}")


def _imported(module: str, scheme: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pxrs"):
            raise
        extra = "postgres" if scheme == "postgresql" else scheme
        raise BadUrl(f"{scheme}: needs the package {error.name}: pip install 'pxrs[{extra}]'") from error


def hashes_of_other_packages(name: str) -> list[Any]:
    """The functions that installed packages offer as the hash of this name."""
    return [point.load() for point in _entry_points(group="pxrs.hashes", name=name)]


def _entry_points(**wanted: str) -> Any:
    """Looked for only where they are needed: the import alone takes 10 ms of each Python process of a Spark query."""
    from importlib import metadata

    return metadata.entry_points(**wanted)
