"""The address of a stream that goes to other processes, as to the tasks of Spark: without a password."""

from __future__ import annotations

import pytest

import pxrs
from pxrs.errors import Refused
from pxrs.logs.jetstream.names import target_of, url_without_password
from pxrs.logs.pieces import read_range
from pxrs.testing.servers.nats import NatsServer


@pytest.mark.parametrize(
    "url",
    [
        "nats://h1:4222/orders",
        "nats://h1:4222,h2:4333/orders",
        "nats://me%40home@h1:4222/orders",
        "nats://h1:4222/orders?password_file=%2Frun%2Fa+b&user_file=%2Frun%2Fuser",
        "nats://h1:4222/orders?ca=ca.pem&tls=true",
    ],
)
def test_the_address_is_the_same(url: str) -> None:
    assert target_of(url_without_password(target_of(url))) == target_of(url)


def test_a_password_does_not_travel() -> None:
    with pytest.raises(Refused, match=r"'orders'.*password_file=PATH") as refused:
        url_without_password(target_of("nats://me:hunter2@h1/orders"))
    assert "hunter2" not in str(refused.value)


def test_a_piece_is_read_with_nothing_but_its_description(nats_server: NatsServer) -> None:
    with pxrs.open(log=nats_server.url("pieces"), registry="memory:", partitions=2) as queue:
        with queue.producer() as producer:
            for number in range(20):
                producer.send(f"key-{number}", str(number))
        end = queue.ends()[1]
        [piece] = queue.log.pieces(1, 2, end)
        expected = queue.read(partition=1, offset=2, limit=end - 2)
        assert list(queue.log.pieces(1, end, end)) == []
        letters = queue.log.sibling("dead-letters/g", 1, create=True)
        assert letters is not None
        with pytest.raises(Refused, match="dead-letters/g"):
            letters.pieces(0, 0, 0)
        letters.close()
    found = [value for batch in read_range([piece], 2, end) for value in batch.column("value").to_pylist()]
    assert found == [message.value for message in expected] and len(found) > 2
