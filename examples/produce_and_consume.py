"""Send a hundred orders, then let a consumer process them: the smallest whole program.

python examples/produce_and_consume.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter

import pxrs

ORDERS = 100


def main(directory: str) -> None:
    totals: Counter[str] = Counter()
    handled: list[int] = []
    finished = threading.Event()
    lock = threading.Lock()

    def handle(message: pxrs.Message) -> None:
        # Each partition has a thread of its own; the orders of one customer come one after the other.
        with lock:
            totals[(message.key or b"").decode()] += int(message.text)
            handled.append(message.offset)
            if len(handled) == ORDERS:
                finished.set()

    with pxrs.open(f"file:{directory}/orders", partitions=4) as queue:
        with queue.producer() as producer:
            for number in range(ORDERS):
                producer.send(f"customer-{number % 7}", str(number))

        with queue.consumer(group="billing", handler=handle) as consumer:
            finished.wait(30)
            consumer.check()

        lines = queue.group("billing").describe()
        print(f"checkpoints are at {sum(line.checkpoint for line in lines)} of {ORDERS} orders, lag {lines.total_lag}")
        print(f"customer-0 ordered {totals['customer-0']}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as place:
            main(place)
