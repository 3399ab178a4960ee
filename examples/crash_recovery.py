"""Two consumers share a queue; one is killed; the other takes over at the checkpoints.

python examples/crash_recovery.py

``kill`` ends a consumer as a crash would: nothing is flushed, nothing is released. What it had processed since its last
checkpoint is processed again by the other one, and nothing is lost.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable

import pxrs

MESSAGES = 400
FAST = pxrs.Settings(lease_ms=600, commit_every=10, commit_interval_ms=50)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("this took too long")
        time.sleep(0.01)


def send(queue: pxrs.Queue, first: int, last: int) -> None:
    with queue.producer() as producer:
        for number in range(first, last):
            producer.send(f"key-{number % 40}", str(number))


def main(directory: str) -> None:
    by_a: list[str] = []
    by_b: list[str] = []
    with pxrs.open(f"file:{directory}/events", partitions=8, settings=FAST) as queue:
        a = queue.consumer(group="audit", handler=lambda message: by_a.append(message.text), member="A").start()
        b = queue.consumer(group="audit", handler=lambda message: by_b.append(message.text), member="B").start()
        until(lambda: len(a.partitions) == len(b.partitions) == 4)
        print(f"A has partitions {a.partitions}, B has {b.partitions}")

        send(queue, 0, MESSAGES // 2)
        until(lambda: bool(by_a) and bool(by_b))
        a.kill()
        print("A is dead")

        send(queue, MESSAGES // 2, MESSAGES)
        until(lambda: len({*by_a, *by_b}) == MESSAGES)
        print(f"B has partitions {b.partitions}")
        b.stop()

        lag = queue.group("audit").describe().total_lag
        print(f"all {MESSAGES} messages were handled, lag {lag}")
        print(f"{len(by_a) + len(by_b) - MESSAGES} of them twice: those that A had not yet written down")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(place)
