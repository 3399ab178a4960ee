"""The connection between a Python worker and its JVM.

Spark leaves both of its ends as the system makes them. The JVM sends a task in two parts, and keeps the second, a small
one, until the first is acknowledged; the worker's system waits with that for 40 ms, in case there was an answer to send
along. Every task of every Python source pays for it.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

_ACKNOWLEDGE_NOW = getattr(socket, "TCP_QUICKACK", None)  # Linux alone has it
_DESCRIPTORS = "/proc/self/fd"


def do_not_wait() -> None:
    """Acknowledge now what came in, so that the rest of the task comes; and send what is ready without waiting either.

    For a worker that has got the first part: the system falls back into its habit after a while.
    """
    if _ACKNOWLEDGE_NOW is None:
        return
    for descriptor in _descriptors():
        with suppress(OSError):  # no connection by TCP; or closed since: the one that the list was read with
            _hasten(descriptor, _ACKNOWLEDGE_NOW)


def _descriptors() -> list[int]:
    try:
        return list(map(int, os.listdir(_DESCRIPTORS)))
    except OSError:  # a container that does not show it
        return []


def _hasten(descriptor: int, acknowledge_now: int) -> None:
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, acknowledge_now, 1)
