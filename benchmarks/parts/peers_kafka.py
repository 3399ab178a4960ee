"""The Kafka protocol as a peer: confluent-kafka against librdkafka's own mock cluster.

There is no broker in a package. The mock speaks the protocol over TCP in this process and keeps the messages in
memory: nothing is durable there, so a real broker is slower than this.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import PeerFailed


def send(keys: Sequence[str], value: bytes, count: int, reports: bool = True) -> float:
    """Seconds for so many idempotent messages, one ``produce`` for each; with a report for each, as its docs show."""
    try:
        from confluent_kafka import Producer
    except ImportError as error:
        raise PeerFailed("confluent-kafka is not installed") from error
    producer: Any = Producer({"test.mock.num.brokers": 1, "enable.idempotence": True, "log_level": 0})
    producer.list_topics(timeout=20)
    heard: list[Any] = []
    options = {"on_delivery": lambda error, _message: heard.append(error)} if reports else {}
    began = time.perf_counter()
    for number in range(count):
        if reports:
            producer.poll(0)
        _produce(producer, keys[number % len(keys)], value, options)
    if producer.flush(120) or any(heard):
        raise PeerFailed("the mock cluster has not acknowledged everything")
    return time.perf_counter() - began


def _produce(producer: Any, key: str, value: bytes, options: dict[str, Any]) -> None:
    while True:
        try:
            producer.produce("orders", value, key, **options)
            return
        except BufferError:  # its buffer is full: let it send
            producer.poll(0.05)
