"""A stream knows its registry: in a message of its own, which the server compares and sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.errors import Damaged, Mismatch
from pxrs.logs.base import OwnRegistry
from pxrs.testing.servers.nats import NatsServer
from tests.logs.jetstream.helpers import ask, opened
from tests.runtime.queue.old_version import consume_with_0_5

pytestmark = pytest.mark.processes

IDLE: dict[str, Any] = {"housekeeping_ms": 3_600_000, "linger_ms": 0, "segment_bytes": 1, "batch_rows": 10}


def consume(queue: pxrs.Queue) -> None:
    with queue.consumer("billing", lambda _: None):
        pass


def test_another_registry_is_refused_and_deletes_nothing(nats_server: NatsServer, tmp_path: Path) -> None:
    url = nats_server.url("own-registry")
    settings = pxrs.Settings(**IDLE, retention_bytes=1)
    own, other = f"sqlite:{tmp_path}/own.db", f"sqlite:{tmp_path}/other.db"
    with pxrs.open(log=url, registry=own, partitions=1, settings=settings) as queue:
        assert queue.log.registry() == OwnRegistry()
        with queue.producer() as producer:
            for _ in range(50):
                producer.send("k", b"v")
                producer.flush()
        consume(queue)
        recorded = queue.log.registry()
        assert recorded is not None and recorded.where == own
        queue.group("billing").seek({0: 0})
    with pxrs.open(log=url, registry=other, settings=settings) as forgetful:
        with pytest.raises(Mismatch, match=r"belongs to sqlite:.*own\.db"):
            forgetful.consumer("billing", print)
        assert "nothing is deleted" in forgetful.housekeep().troubles["retention"]
        assert forgetful.log.bounds(0) == (0, 50)
        forgetful.adopt_registry()
        consume(forgetful)
        assert forgetful.log.registry() != recorded
    assert not (tmp_path / "registry.db").exists()
    with pxrs.open(log=url, registry=own) as queue, pytest.raises(Mismatch, match=r"other\.db"):
        queue.consumer("billing", print)


def test_the_second_of_two_writers_learns_of_the_first(nats_server: NatsServer) -> None:
    url = nats_server.url("first-wins")
    with opened(url, partitions=2) as one, opened(url) as two:
        assert one.set_registry(OwnRegistry("a", "here")) == OwnRegistry("a", "here")
        assert two.set_registry(OwnRegistry("b", "there")) == OwnRegistry("a", "here")
        assert two.set_registry(OwnRegistry("b", "there", "a"), instead_of="a") == one.registry()
        assert one.set_registry(OwnRegistry("c", "x"), instead_of=None) == OwnRegistry("c", "x") == two.registry()
        assert [log.bounds(p) for log in (one, two) for p in (0, 1)] == [(0, 0)] * 4


def test_a_stream_of_0_5_has_no_record_and_its_dead_letters_show_a_group(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    url = nats_server.url("old.orders")
    with opened(url, partitions=1) as log:
        letters = log.sibling("dead-letters/old.billing", 1, True)
        assert letters is not None
        letters.close()
        assert list(log.groups_seen()) == ["old.billing"]
    address = url.removeprefix("nats://").partition("/")[0]
    config = ask(address, "$JS.API.STREAM.INFO.old~orders")["config"]
    del config["metadata"]["pxrs.registry"]
    assert "error" not in ask(address, "$JS.API.STREAM.UPDATE.old~orders", config)
    settings = pxrs.Settings(**IDLE, retention_ms=1)
    with pxrs.open(log=url, registry=f"sqlite:{tmp_path}/new.db", settings=settings) as queue:
        assert queue.log.registry() is None
        assert "not recorded yet" in queue.housekeep().troubles["retention"]
        with pytest.raises(Mismatch, match=r"by group 'old\.billing'"):
            queue.consumer("billing", print)
        queue.adopt_registry()
        consume(queue)


def test_beside_0_5_1_the_record_harms_nobody(nats_server: NatsServer, tmp_path: Path) -> None:
    """What 0.5.1 has made is taken over; and it sends to and consumes a stream that has a record."""
    url, own = nats_server.url("shared"), f"sqlite:{tmp_path}/own.db"
    assert consume_with_0_5(url, own) == "['old']"
    with pxrs.open(log=url, registry=own) as queue:
        assert queue.log.registry() is None
        consume(queue)
        recorded = queue.log.registry()
        assert recorded is not None and recorded.id
    assert consume_with_0_5(url, own) == "['billing', 'old']"
    with pxrs.open(log=url, registry=own) as queue:
        assert queue.log.registry() == recorded and queue.ends() == {0: 2}
        consume(queue)


def test_a_spoilt_record_is_damaged_and_adopting_writes_it_anew(nats_server: NatsServer, tmp_path: Path) -> None:
    url = nats_server.url("spoilt")
    with pxrs.open(log=url, registry=f"sqlite:{tmp_path}/new.db", partitions=1) as queue:
        address = url.removeprefix("nats://").partition("/")[0]
        for content in (b"{", b"[]", b'{"format": 1, "id": 7, "where": "", "before": ""}'):
            ask(address, "pxrs.spoilt.registry", content)
            with pytest.raises(Damaged, match=r"no record of a registry: .*pxrs registry adopt"):
                queue.consumer("billing", print)
        queue.adopt_registry()
        consume(queue)
