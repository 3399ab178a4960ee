"""PXRS: share one queue between many consumers, safely.

import pxrs

queue = pxrs.open("file:./orders", partitions=8)
with queue.producer() as producer:
    producer.send("acct-42", b"hello")
queue.consumer(group="billing", handler=print).run()
"""

from __future__ import annotations

from pxrs import errors
from pxrs.model import Message
from pxrs.rules.hashing import register_hash
from pxrs.rules.partitioning import Partitioner
from pxrs.runtime.consumer import Consumer
from pxrs.runtime.delivery import Context
from pxrs.runtime.producer import Producer
from pxrs.runtime.queue import Queue
from pxrs.runtime.queue import open_queue as open  # noqa: A004 - pxrs.open is the contract's word
from pxrs.settings import Settings
from pxrs.stores.base import Guarantee

__version__ = "0.1.0"

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
    "open",
    "register_hash",
]
