"""Which directory a staging directory is. A random id in it tells two directories of the same path apart.

    ROOT/plans/place.json   {"id": "3f9a…@host"}; "formerly" may list ids of places that are gone for good

It stands among the plans, in the form of one that has no partitions: versions that know no ids leave it alone.
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress

from pxrs.errors import Damaged
from pxrs.logs.durable import make_directories, sync_directory, write_all

FILE = "place.json"
_UNFINISHED = ("place-", ".tmp")


def ids_in(plans: str) -> tuple[str, ...]:
    """The id of this place, and those for which it stands in; empty if it has none yet."""
    path = os.path.join(plans, FILE)
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
        ids = (found["id"], *found.get("formerly", ()))
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} does not say which staging directory this is: {error!r}") from error
    if not all(isinstance(one, str) and one for one in ids):
        raise Damaged(f"{path} does not say which staging directory this is: its ids must be texts")
    return ids


def new_id() -> str:
    """A random id. The name of this machine is for people only: they read it in refusals."""
    return f"{secrets.token_hex(8)}@{os.uname().nodename}"


def make_place(plans: str, place: str) -> tuple[str, ...]:
    """Give this place an id, durably, unless it has one. Returns what it has then."""
    make_directories(plans)
    begin, end = _UNFINISHED
    aside = os.path.join(plans, f"{begin}{secrets.token_hex(8)}{end}")
    content = json.dumps({"format": 1, "epochs": {}, "id": place}).encode()
    try:
        with open(aside, "xb", buffering=0) as file:
            write_all(file.fileno(), content)
            os.fsync(file.fileno())
        with suppress(FileExistsError, FileNotFoundError):  # another was first, and a sweep may have removed this one
            os.link(aside, os.path.join(plans, FILE))
    finally:
        with suppress(OSError):
            os.unlink(aside)
    sync_directory(plans)
    return ids_in(plans)


def is_unfinished(name: str) -> bool:
    """Whether a file among the plans is an id on its way: of no use to anybody, once the place has one."""
    return name.startswith(_UNFINISHED[0]) and name.endswith(_UNFINISHED[1])
