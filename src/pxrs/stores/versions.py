"""Versions that do not depend on what is stored, and wait marks for all rows under a prefix (ADR 0017)."""

from __future__ import annotations

import os
from collections.abc import Iterable

import xxhash


def new_version() -> int:
    """Never used again, not even if everything is wiped or restored from a copy.

    Positive, and of 62 bits: every database and every language has room for it.
    """
    return int.from_bytes(os.urandom(8)) >> 2 or 1


def mark_of(rows: Iterable[tuple[str, int]], more: object = "") -> int:
    """The wait mark of these keys and versions, in their order; never 0. It differs when one of them does."""
    text = "\n".join([str(more), *(f"{version} {key}" for key, version in rows)])
    return xxhash.xxh3_64_intdigest(text.encode(errors="surrogatepass")) >> 1 or 1
