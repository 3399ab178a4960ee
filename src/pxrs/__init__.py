"""PXRS: share one queue between many consumers, safely.

    import pxrs

    queue = pxrs.open("file:./orders", partitions=8)
    with queue.producer() as producer:
        producer.send("acct-42", b"hello")
    queue.consumer(group="billing", handler=print).run()

The names below are loaded when they are first used: a process that only reads a piece of a log, as a Spark task
does, does not pay for the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pxrs import errors
    from pxrs.model import Message
    from pxrs.rules.routing.hashes import register_hash
    from pxrs.rules.routing.partitioner import Partitioner
    from pxrs.runtime.consumer.consumer import Consumer
    from pxrs.runtime.delivery import Context
    from pxrs.runtime.producer.producer import Producer
    from pxrs.runtime.queue.queue import Queue
    from pxrs.runtime.queue.queue import open_queue as open  # noqa: A004 - pxrs.open is the contract's word
    from pxrs.runtime.queue.settings_file import load_settings
    from pxrs.settings import Settings
    from pxrs.stores.base import Guarantee

__version__ = "0.7.0"

__all__ = [
    "Consumer",
    "Context",
    "Guarantee",
    "Message",
    "Partitioner",
    "Producer",
    "Queue",
    "Settings",
    "errors",
    "load_settings",
    "open",
    "register_hash",
]

_HOMES = {
    "Consumer": "pxrs.runtime.consumer.consumer",
    "Context": "pxrs.runtime.delivery",
    "Guarantee": "pxrs.stores.base",
    "Message": "pxrs.model",
    "Partitioner": "pxrs.rules.routing.partitioner",
    "Producer": "pxrs.runtime.producer.producer",
    "Queue": "pxrs.runtime.queue.queue",
    "Settings": "pxrs.settings",
    "load_settings": "pxrs.runtime.queue.settings_file",
    "open": "pxrs.runtime.queue.queue",
    "register_hash": "pxrs.rules.routing.hashes",
}


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("pxrs.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'pxrs' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), "open_queue" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
