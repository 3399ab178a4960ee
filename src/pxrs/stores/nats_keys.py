"""Keys of rows as keys of a NATS bucket: '/' becomes '.', so that the server finds what stands under a prefix.

    /pxrs/orders/billing/partition/00007  is stored as  =.pxrs.orders.billing.partition.00007

What a bucket's key cannot hold is written as its bytes, each as '=' and two digits ('=2E' is a dot); a part without
characters is a single '='. So any key has one form, and the form has one key.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

from pxrs.errors import Refused

MAX_SUBJECT = 2_000
"""The server takes lines of 4,096 bytes, and an answer's subject stands in them as well."""


@lru_cache(maxsize=16_384)  # the same few keys are written all the time
def stored_key(key: str) -> str:
    """The form in which a bucket holds the key; Refused if there is none."""
    try:
        return ".".join(_escaped(part) for part in key.split("/"))
    except UnicodeEncodeError:
        raise Refused(f"key {key!r} has no UTF-8 form") from None


def key_of(stored: str) -> str:
    """The key that a bucket's key stands for."""
    return "/".join(unquote(part.replace("=", "%")) if part != "=" else "" for part in stored.split("."))


def _escaped(part: str) -> str:
    if not part:
        return "="
    return quote(part, safe="").replace(".", "%2E").replace("~", "%7E").replace("%", "=")


class Subjects:
    """Where the keys of one bucket are published."""

    def __init__(self, bucket: str) -> None:
        self._root = f"$KV.{bucket}."

    @property
    def everything(self) -> str:
        return f"{self._root}>"

    def of(self, key: str) -> str:
        subject = self._root + stored_key(key)
        if len(subject) > MAX_SUBJECT:
            raise Refused(f"key {key[:60]!r}… is too long for NATS: {len(subject)} bytes, at most {MAX_SUBJECT}")
        return subject

    def under(self, prefix: str) -> str:
        """A filter for all keys that begin with the prefix, and for some more if it ends inside of a part."""
        parts = prefix.split("/")[:-1]
        return self._root + "".join(f"{stored_key(part)}." for part in parts) + ">"

    def key_of(self, subject: str) -> str:
        return key_of(subject.removeprefix(self._root))
