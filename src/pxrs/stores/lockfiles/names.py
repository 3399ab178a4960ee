"""From a row's key to the name of its file, and back: readable, reversible, and never longer than a name may be.

``/pxrs/orders/billing/partition/00003`` is ``pxrs/orders/billing/partition/00003.row``. What is no plain letter is
percent-encoded; a key that does not begin with a slash stands in the directory ``%``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import quote, unquote

from pxrs.errors import Refused

SUFFIX = ".row"
LONGEST_NAME = 200
"""A longer part of a key is cut into several names, one directory in the other."""
LONGEST_PATH = 3_000
"""Linux takes paths of 4,096 bytes; the rest is for the directory that the user names."""

# A percent sign is followed by two digits wherever it encodes something: these names can mean nothing else.
_WITHOUT_SLASH, _EMPTY, _GOES_ON = "%", "%empty", "%+"


@lru_cache(maxsize=16_384)  # asked several times in each write, and a registry's keys are few
def file_of(key: str) -> str:
    """The path of the key's file, below the directory of rows."""
    above, last = _split(key)
    path = "/".join([*above, *_names(last)]) + SUFFIX
    if len(path) > LONGEST_PATH:
        raise Refused(f"key {key[:60]!r}... is too long for a file name: {len(path)} characters")
    return path


def directory_of(prefix: str) -> str:
    """The directory that holds every key with this prefix, below the directory of rows."""
    return "/".join(_split(prefix)[0]) if prefix else ""


def key_of(names: Sequence[str]) -> str:
    """The key whose file has this path below the directory of rows; the last name without its suffix."""
    without_slash = names[0] == _WITHOUT_SLASH
    parts: list[str] = []
    begun = ""
    for name in names[without_slash:]:
        if name.endswith(_GOES_ON):
            begun += name.removesuffix(_GOES_ON)
        else:
            parts.append("" if name == _EMPTY else unquote(begun + name))
            begun = ""
    return ("" if without_slash else "/") + "/".join(parts)


def _split(key: str) -> tuple[list[str], str]:
    """The names of the directories, and the last part of the key."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise Refused(f"key {key!r} has no UTF-8 form") from None
    *above, last = key.removeprefix("/").split("/")
    names = [name for part in above for name in _directory_names(part)]
    return (names if key.startswith("/") else [_WITHOUT_SLASH, *names]), last


def _directory_names(part: str) -> list[str]:
    *first, last = _names(part)
    if last.endswith(SUFFIX):  # the name of a row's file may be the same
        last = last.removesuffix(SUFFIX) + "%2E" + SUFFIX[1:]
    return [*first, last]


def _names(part: str) -> list[str]:
    text = quote(part, safe="") or _EMPTY
    if text.startswith("."):  # "." and ".." are directories already, and other such files are hidden
        text = "%2E" + text[1:]
    if len(text) <= LONGEST_NAME:
        return [text]
    text = text.replace(".", "%2E")
    pieces = [text[start : start + LONGEST_NAME] for start in range(0, len(text), LONGEST_NAME)]
    return [*(piece + _GOES_ON for piece in pieces[:-1]), pieces[-1]]
