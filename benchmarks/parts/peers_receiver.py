"""``python -m benchmarks.parts.peers_receiver ours|valkey PLACE``: the process in which messages arrive.

It prints ``ready``, and then for each message how many nanoseconds it was under way. The sender stands on the same
machine and writes its monotonic time into the value, so both read the same clock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pxrs
from benchmarks.parts import peers_valkey


def _say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def _arrived(value: bytes) -> None:
    _say(time.monotonic_ns() - int(value[:20]))


def _ours(url: str) -> None:
    with pxrs.open(url, settings=pxrs.Settings(durability="flush")) as queue:
        consumer = queue.consumer(group="billing", handler=_handle, member="A", start="latest")
        consumer.start()
        while consumer.state != "live":
            time.sleep(0.01)
        _say("ready")
        consumer.wait()
        consumer.check()


def _handle(message: pxrs.Message) -> None:
    if not message.value:
        raise pxrs.errors.StopConsuming
    _arrived(message.value)


def _valkey(port: str) -> None:
    peers_valkey.receive(int(port), _arrived, lambda: _say("ready"))


_KINDS: dict[str, Callable[[str], None]] = {"ours": _ours, "valkey": _valkey}

if __name__ == "__main__":
    _KINDS[sys.argv[1]](sys.argv[2])
