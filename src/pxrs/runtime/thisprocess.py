"""What a member says about the process that it runs in."""

from __future__ import annotations

import os
import secrets
import socket


def random_member() -> str:
    """A name for a member that was given none: unique, and people see where it runs."""
    return f"{_short_host()}-{os.getpid()}-{secrets.token_hex(3)}"


def _short_host() -> str:
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname().split(".")[0])
    return host.strip("-")[:60] or "host"


def about_this_process() -> dict[str, str]:
    """What a member's row tells of its process."""
    return {"host": _short_host(), "pid": str(os.getpid())}
