"""Local directories and files: which a path names, what readers see below it, and what a disk refuses."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pxrs.errors import BadSetting, Unavailable

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # one letter is no scheme
_STORABLE = re.compile("[^\0\ud800-\udc7f\udd00-\udfff]*")
"""The encoding of file names: surrogates from U+DC80 to U+DCFF take the place of bytes that are not UTF-8."""
_SAID = {
    errno.ENOSPC: "no space is left on {place}: free some, and it goes on by itself",
    errno.EDQUOT: "the disk quota is used up for {place}: free some, and it goes on by itself",
    errno.EROFS: "{place} is on a read-only file system: mount it for writing, and it goes on by itself",
}


def local_directory(place: object, name: str = "directory") -> str:
    """The absolute path that a path or a ``file:`` URL names; ``name`` is that of the argument."""
    text = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(text, str):
        raise BadSetting(f"{name} = {place!r}: must be a local directory, as './bills' is")
    if scheme := _SCHEME.match(text):
        rest = text[scheme.end() :]
        remote = rest.startswith("//") and not rest.startswith("///")
        if scheme[1].lower() != "file" or remote:
            raise BadSetting(f"directory = {text!r}: a sink writes to a local directory; give a path or file:DIR")
        text = rest.removeprefix("//")
    if not text:
        raise BadSetting(f"directory = {place!r} names no directory")
    if not _STORABLE.fullmatch(text):
        raise BadSetting(f"directory = {place!r} holds a NUL character or half of a character: no file can have it")
    path = os.path.abspath(text)
    if os.path.lexists(path) and not os.path.isdir(path):
        raise BadSetting(f"directory = {path!r} is a file; a sink needs a directory of its own")
    above = os.path.dirname(path)
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise BadSetting(f"directory = {path!r} cannot be made: {above} is a file")
    return path


def staging_in(place: str | os.PathLike[str]) -> str:
    """The staging directory where a user names one: a folder in it, since a sweep removes unknown files."""
    return os.path.join(local_directory(place, "staging"), "_staging")


def visible_files(top: str) -> Iterator[str]:
    """The files below, in the order of their names, without what readers skip. What vanishes meanwhile is not there."""
    for folder, folders, files in os.walk(top, onerror=_raise_unless_gone):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        yield from (os.path.join(folder, name) for name in sorted(files) if not name.startswith(("_", ".")))


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # a directory that cannot be read must not pass for an empty one
        raise error


def is_missing(path: str) -> bool:
    """Whether it is surely not there; ``os.path.exists`` also says no when it cannot tell."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    return False


# ---- what a disk refuses -------------------------------------------------------------------------------------------


@contextmanager
def explained(directory: str) -> Iterator[None]:
    """Turn errors of the disk in the block into Unavailable, with the directory and what is wrong with it."""
    try:
        yield
    except OSError as error:
        said = _SAID.get(error.errno or 0, "{error}").format(place=error.filename or directory, error=error)
        raise Unavailable(f"the sink that stages in {directory}: {said}") from error


def raise_of_disk(error: Exception, directory: str) -> None:
    """Raise the OSError that is in the text of another error: Java reports it in words only."""
    for number in _SAID:
        if os.strerror(number) in str(error):
            raise OSError(number, os.strerror(number), directory) from error
