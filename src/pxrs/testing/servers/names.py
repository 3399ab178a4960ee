"""Turns the name of a test's place into a table name that every database accepts."""

from __future__ import annotations

import hashlib
import re


def table_name(place: str) -> str:
    """Different for different places, the same for the same, and readable as far as that goes."""
    readable = re.sub(r"[^a-z0-9]+", "_", place.lower()).strip("_")[:12]
    return f"t_{readable}_{hashlib.sha256(place.encode()).hexdigest()[:10]}"
