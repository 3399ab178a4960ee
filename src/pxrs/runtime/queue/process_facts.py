"""What a member says about the process that it runs in."""

from __future__ import annotations

import os
import secrets
import socket


def random_member() -> str:
    """A name for a member that was given none: unique, and people see where it runs."""
    return f"{short_host()}-{os.getpid()}-{secrets.token_hex(3)}"


def short_host() -> str:
    """The name of this machine up to its first dot, with what no member name may hold replaced."""
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname().split(".")[0])
    return host.strip("-")[:60] or "host"


def about_this_process() -> dict[str, str]:
    """What a member's row tells of its process."""
    return {"host": short_host(), "pid": str(os.getpid())}
