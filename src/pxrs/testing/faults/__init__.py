"""Members over a store while its server is killed, paused or cut off. Driver authors subclass ``FaultSuite``.

    from pxrs.testing.faults import FaultSuite

It is loaded when it is first used: the proxy in this folder needs no pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pxrs.testing.faults.racing import open_store
    from pxrs.testing.faults.suite import FaultSuite

__all__ = ["FaultSuite", "open_store"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pxrs.testing.faults' has no attribute {name!r}")
    home = "racing" if name == "open_store" else "suite"
    return getattr(import_module(f"pxrs.testing.faults.{home}"), name)
