"""Tools for those who write tests or drivers: ``drain``, conformance and fault suites, servers, a proxy.

    from pxrs.testing import drain

    drain(queue, "billing", handle)

The name is loaded when it is first used: what only drivers need costs nobody else anything.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pxrs.testing.draining import drain

__all__ = ["drain"]


def __getattr__(name: str) -> Any:
    if name != "drain":
        raise AttributeError(f"module 'pxrs.testing' has no attribute {name!r}")
    value = globals()[name] = import_module("pxrs.testing.draining").drain
    return value


def __dir__() -> list[str]:
    return list(__all__)
