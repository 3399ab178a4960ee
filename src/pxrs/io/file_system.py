"""Asks a file system for drivers of plain files: its kind, what it refuses; and swaps two files."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from functools import cache
from typing import Any

from pxrs.errors import NotFound, Unavailable, disk_text, masked, masked_url
from pxrs.io.durable import write_all

NETWORK_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x6B414653: "kAFS",
    0x73757245: "Coda",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x786F4256: "VirtualBox shared folder",
}
"""Network file systems, by the number in ``statfs``: locks and renames may mean something else to the next machine."""

_SYNC_AS_A_WHOLE = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
"""ext, xfs, btrfs, f2fs and tmpfs: others may do nothing, or hide what failed below."""

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
_STATFS_BYTES = 512  # more than the structure has anywhere


def kind_of_file_system(path: str) -> int:
    """The kernel's number for the kind of file system, the first word that ``statfs`` tells; 0 if it does not."""
    told = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        failed = ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), told)
    except AttributeError:
        return 0
    return 0 if failed else ctypes.c_ulong.from_buffer(told).value & 0xFFFFFFFF


def network_file_system(path: str) -> str | None:
    """The name of the network file system that holds this path; None: a disk of this machine, as far as is known."""
    return NETWORK_FILE_SYSTEMS.get(kind_of_file_system(path))


def is_read_only(path: str) -> bool:
    """Whether the file system that holds this file, or would hold it, is mounted read-only."""
    try:
        return bool(os.statvfs(path if os.path.exists(path) else os.path.dirname(path)).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def read_only_error(path: str) -> OSError:
    """The error that the system gives for a write there."""
    return OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def denied_error(path: str) -> OSError | None:
    """The error that the system gives when this user writes or makes this file; None: no error."""
    for place, rights in ((path, os.R_OK | os.W_OK), (os.path.dirname(path), os.W_OK | os.X_OK)):
        if os.path.exists(place) and not os.access(place, rights):
            return PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
    return None


def check_home(directory: str, url: str) -> None:
    """Refuse a directory for a registry that is not there, or into which this user may not look: its content
    would seem to be absent."""
    try:
        os.stat(os.path.join(directory, "."))
    except PermissionError as error:
        raise Unavailable(disk_text(PermissionError(error.errno, error.strerror, directory), directory)) from error
    except OSError:
        raise NotFound(f"{masked(directory)}: no such directory, to hold the registry of {masked_url(url)!r}") from None


def overwrite(path: str, content: bytes) -> None:
    """Give a file this content, in the blocks that it has: much cheaper than a new file. Nobody may read meanwhile."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        write_all(fd, content)
        if os.lseek(fd, 0, os.SEEK_CUR) != len(content):
            raise OSError(errno.EIO, "the file did not take what was written")
        os.ftruncate(fd, len(content))
    finally:
        os.close(fd)


def put_in_place(path: str, target: str) -> None:
    """Let ``target`` be this file, at once; where both exist they change places, so that none has to be deleted."""
    done = _renameat2()(_HERE, os.fsencode(path), _HERE, os.fsencode(target), _EXCHANGE) if _renameat2() else -1
    if done != 0:  # the target is new, or the file system cannot exchange
        os.rename(path, target)


@cache
def _renameat2() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def sync_file_system(path: str) -> bool:
    """Make everything durable that was written to this file system. False: not possible here, sync each file alone."""
    if kind_of_file_system(path) not in _SYNC_AS_A_WHOLE or not _tells_of_failed_syncs(os.uname().release):
        return False
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return bool(ctypes.CDLL(None, use_errno=True).syncfs(fd) == 0)
    finally:
        os.close(fd)


def _tells_of_failed_syncs(release: str) -> bool:
    """Whether ``syncfs`` reports data that could not be written: it does so from Linux 5.8 on."""
    version = re.match(r"(\d+)\.(\d+)", release)
    return version is not None and (int(version[1]), int(version[2])) >= (5, 8)
