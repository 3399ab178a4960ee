"""A message that the handler cannot process is tried three times, then kept aside with its cause; the rest goes on.

python examples/dead_letters.py
"""

from __future__ import annotations

import tempfile
import threading

import pxrs

ORDERS = [b"12", b"7", b"twelve", b"30"]


def main(directory: str) -> None:
    amounts: list[int] = []
    finished = threading.Event()

    def handle(message: pxrs.Message) -> None:
        amounts.append(int(message.value))
        if len(amounts) == 3:
            finished.set()

    settings = pxrs.Settings(tries=3, backoff_ms=10, on_failure="dead-letter")
    with pxrs.open(f"file:{directory}/orders", partitions=1, settings=settings) as queue:
        with queue.producer() as producer:
            for order in ORDERS:
                producer.send("customer-1", order)

        with queue.consumer(group="billing", handler=handle) as consumer:
            finished.wait(30)
            consumer.check()

        print(f"handled {amounts}")
        for letter in queue.group("billing").dead_letters:
            where = f"offset {letter.offset}, {letter.tries} tries"
            print(f"dead letter {letter.number}: {letter.value.decode()!r} at {where}")
            print(f"  {letter.cause}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
