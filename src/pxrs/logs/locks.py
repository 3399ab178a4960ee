"""File locks: freed by the kernel when their holder dies, and never kept by a forked child."""

from __future__ import annotations

import fcntl
import os

# The descriptors that are open while something is locked. A child that is forked in that moment must close
# its copies: a lock lives as long as any copy of its descriptor, and would outlive its holder.
_held: set[int] = set()


def _after_fork() -> None:
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)


def open_held(path: str, flags: int) -> int:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o666)
    _held.add(fd)
    return fd


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def close_held(fd: int) -> None:
    _held.discard(fd)
    os.close(fd)
