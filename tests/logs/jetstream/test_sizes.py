"""The largest message of a log over NATS JetStream: the server's max_payload says it, and the driver knows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import pxrs
from pxrs.errors import Refused
from pxrs.testing.servers.nats import NatsServer
from tests.logs.jetstream.test_jetstream import url_apart

pytestmark = pytest.mark.processes


def test_a_message_over_max_payload_is_refused_alone_and_one_at_the_limit_has_a_letter(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    url = url_apart(nats_server, tmp_path, "q")
    with pxrs.open(log=url, registry=f"sqlite:{tmp_path}/r.db", partitions=1) as queue:
        most = queue.log.largest_message
        assert most is not None and most > 1_000_000
        with queue.producer() as producer:
            receipts = [producer.send("k", b"before")]
            with pytest.raises(Refused, match="larger than this log takes"):
                producer.send("k", os.urandom(most))
            receipts += [producer.send("", os.urandom(most)), producer.send("k", b"after")]
            assert [receipt.result(30)[1] for receipt in receipts] == [0, 1, 2]
        large = queue.read(0, 1, 1)[0]
        box = queue.make_group("g").dead_letters
        box.keep(large, ValueError("x" * 2_000_000), "s" * 100_000, 1, pxrs.Context("A", 1, 1))
        [letter] = box
        assert letter.by_reference and letter.value == large.value and not letter.missing
        assert box.retry() == [0], "the header of a retry still fits"
        assert queue.read(0, 3, 1)[0].value == large.value
