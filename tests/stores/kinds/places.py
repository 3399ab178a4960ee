"""Places where tests open their stores: each has its own, so that all of them can share one server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pxrs.drivers import find_driver
from pxrs.settings import Settings

SOON = 30.0
"""Seconds within which something must happen."""
LONG = 3_600.0


def new_place() -> str:
    """A name that no other test has."""
    return f"test-{secrets.token_hex(6)}"


def opened(url: str, **settings: Any) -> Any:
    """The store at this URL, of the class that the test names."""
    return find_driver("pxrs.stores", url).open(url, Settings(**settings))


@contextmanager
def store_at(url: str, **settings: Any) -> Iterator[Any]:
    """An open store, closed at the end."""
    store = opened(url, **settings)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def store_on(server: Any, place: str = "", options: str = "timeout_ms=3000") -> Iterator[Any]:
    """A store on this server."""
    with store_at(server.url(place or new_place(), options=options)) as store:
        yield store
