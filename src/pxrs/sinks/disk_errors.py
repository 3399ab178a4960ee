"""Errors of a disk, said so that somebody can do something about them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pxrs.errors import Unavailable

_SAID = {
    errno.ENOSPC: "no space is left on {place}: free some, and it goes on by itself",
    errno.EDQUOT: "the disk quota is used up for {place}: free some, and it goes on by itself",
    errno.EROFS: "{place} is on a read-only file system: mount it for writing, and it goes on by itself",
}


@contextmanager
def explained(directory: str) -> Iterator[None]:
    """What the disk refuses in the block becomes Unavailable, with the directory and what is wrong with it."""
    try:
        yield
    except OSError as error:
        said = _SAID.get(error.errno or 0, "{error}").format(place=error.filename or directory, error=error)
        raise Unavailable(f"the sink that stages in {directory}: {said}") from error


def raise_of_disk(error: Exception, directory: str) -> None:
    """Raise the OSError that stands in the text of another error: Java tells it in words only."""
    for number in _SAID:
        if os.strerror(number) in str(error):
            raise OSError(number, os.strerror(number), directory) from error
