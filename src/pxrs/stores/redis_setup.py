"""What happens once, when a registry on Redis is opened: names, the stored format, and whether the server is fit."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import NamedTuple

from pxrs.clients.redis import Client, Lost, Rejected, Script
from pxrs.errors import BadUrl, Damaged, NewerFormat, Refused, Unavailable
from pxrs.stores.redis_script import FORMAT, OPEN

logger = logging.getLogger(__name__)

_OPEN = Script.of(OPEN)


class Names(NamedTuple):
    """The keys of one registry. What stands in braces decides the slot in a cluster: it is the same for all."""

    tag: bytes
    database: bytes

    @classmethod
    def of(cls, prefix: str, database: str) -> Names:
        if not prefix or "{" in prefix or "}" in prefix:
            raise BadUrl(f"prefix = {prefix!r}: a name for the registry, without braces")
        return cls(b"{" + prefix.encode() + b"}:", database.encode())

    @property
    def rows(self) -> bytes:
        """What stands before every key of a row."""
        return self.tag + b"row:"

    @property
    def keys(self) -> bytes:
        return self.tag + b"keys"

    @property
    def gone(self) -> bytes:
        return self.tag + b"gone"

    @property
    def revision(self) -> bytes:
        return self.tag + b"revision"

    @property
    def format(self) -> bytes:
        return self.tag + b"format"

    @property
    def trial(self) -> bytes:
        return self.tag + b"trial"

    @property
    def changes(self) -> bytes:
        """The channel. Channels are the same in all databases of a server, so its number is in the name."""
        return self.tag + b"changes:" + self.database

    def row(self, key: str) -> bytes:
        try:
            return self.rows + key.encode()
        except UnicodeEncodeError:
            raise Refused(f"key {key!r} has no UTF-8 form") from None


def prepare(client: Client, names: Names) -> None:
    """See that the server is one to keep a registry on, and make the place if it is new."""
    _check_eviction(client)
    _check_format(client, names)
    _warn_of_losses(client)


def _check_format(client: Client, names: Names) -> None:
    try:
        stored = client.run(_OPEN, [names.format, names.revision, names.trial], [FORMAT, names.changes])
    except Lost as error:  # nothing is harmed if it was carried out
        raise Unavailable(str(error)) from None
    except Rejected as error:
        raise Refused(f"{client.address} cannot hold a registry: {error}") from None
    if stored == b"%d" % FORMAT:
        return
    if not stored.isdigit():
        raise Damaged(f"{client.address}: {names.format!r} is not the format of a registry: {stored!r}")
    raise NewerFormat(
        f"{client.address}: the registry has format {int(stored)}, this version of PXRS knows {FORMAT}: update it"
    )


def _check_eviction(client: Client) -> None:
    """A full server that deletes rows to make room would hand partitions to two owners."""
    found = _info(client, "memory")
    policy = found.get("maxmemory_policy", "noeviction")
    if found.get("maxmemory", "0") == "0" or policy == "noeviction":
        return
    text = (
        f"{client.address} deletes keys when its memory is full (maxmemory-policy {policy}): "
        "a registry needs maxmemory-policy noeviction"
    )
    if not client.address.flag("allow_eviction"):
        raise Refused(f"{text}, or allow_eviction=true in the URL if no key of it is ever deleted")
    logger.warning("%s; allowed by the URL", text)


def _warn_of_losses(client: Client) -> None:
    if _info(client, "persistence").get("aof_enabled") == "0":
        logger.warning(
            "%s keeps no append-only file: after its restart the registry is empty or old, "
            "and members that have seen newer rows will refuse it",
            client.address,
        )


def _info(client: Client, section: str) -> dict[str, str]:
    """What the server says of itself; nothing if this user may not ask."""
    with suppress(Refused):
        text: bytes = client.ask("INFO", section)
        lines = (line.partition(":") for line in text.decode(errors="replace").splitlines())
        return {name: value for name, _, value in lines}
    return {}
