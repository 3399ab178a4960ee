"""Members over a store while its server is killed, paused or cut off. Driver authors subclass ``FaultSuite``.

    from pxrs.testing.faults import FaultSuite

It is loaded when it is first used: the proxy in this folder needs no pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pxrs.testing.faults.scenario import HASTY, Scenario, eventually, open_store
    from pxrs.testing.faults.suite import FaultSuite

__all__ = ["HASTY", "FaultSuite", "Scenario", "eventually", "open_store"]


def __getattr__(name: str) -> Any:
    if name == "Shop":
        name = "Scenario"  # its name until 0.6
    if name not in __all__:
        raise AttributeError(f"module 'pxrs.testing.faults' has no attribute {name!r}")
    home = "suite" if name == "FaultSuite" else "scenario"
    return getattr(import_module(f"pxrs.testing.faults.{home}"), name)
