"""Metrics as a dashboard would read them: the Prometheus page of a running consumer."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

import pxrs
from pxrs.apps.cli.group_metrics import Exporter
from pxrs.errors import BadSetting
from pxrs.model import MemberRow
from pxrs.runtime.telemetry import metric_names as metrics
from pxrs.runtime.telemetry.metric_names import Sample
from pxrs.runtime.telemetry.page import serve_if_possible, text_of
from pxrs.stores.base import Swap
from pxrs.stores.memory import MemoryStore
from tests.runtime.support import Site, SwitchedStore, eventually


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def page(port: int, host: str = "127.0.0.1") -> dict[str, float]:
    """Every sample on the page by its name and labels."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_the_page_shows_lag_ownership_and_work_under_stable_names() -> None:
    port, handled, hold = free_port(), threading.Semaphore(0), threading.Event()

    def handle(message: pxrs.Message) -> None:
        handled.release()
        if message.text == "second":
            hold.wait(30)

    settings = pxrs.Settings(metrics_port=port)
    with pxrs.open("memory:", partitions=2, settings=settings) as queue, queue.producer() as producer:
        partition, _ = producer.send("k", "first").result(20)
        for text in ("second", "third", "fourth"):
            producer.send("k", text).result(20)
        queue.consumer(group="g", handler=handle, member="A").start()
        for _ in range(2):
            assert handled.acquire(timeout=20)
        seen = page(port)
        hold.set()
    member = '{group="g",member="A",queue="memory"}'
    where = f'{{group="g",partition="{partition}",queue="memory"}}'
    assert seen[f"pxrs_lag_messages{where}"] == 3
    assert seen[f"pxrs_lag_seconds{where}"] > 0
    assert seen[f'pxrs_owner_epoch{{group="g",member="A",partition="{partition}",queue="memory"}}'] == 1
    assert seen[f"pxrs_owned_partitions{member}"] == 2
    assert seen[f"pxrs_claims_total{member}"] == 2
    assert seen[f"pxrs_handled_total{member}"] == 1
    assert seen[f"pxrs_leads{member}"] == 1
    assert seen[f"pxrs_expired_messages_total{member}"] == 0
    assert seen['pxrs_sealed_segments_total{queue="memory"}'] == 0
    assert seen['pxrs_trimmed_messages_total{queue="memory"}'] == 0
    assert 0 <= seen[f"pxrs_beat_age_seconds{member}"] < 60


def test_every_metric_has_a_stable_name() -> None:
    assert [metric.name for metric in metrics.ALL] == [
        "pxrs_lag_messages", "pxrs_lag_seconds", "pxrs_checkpoint", "pxrs_owner_epoch", "pxrs_owned_partitions",
        "pxrs_parked_partitions", "pxrs_beat_age_seconds",
        "pxrs_leads", "pxrs_rebalances_total", "pxrs_claims_total", "pxrs_releases_total", "pxrs_losses_total",
        "pxrs_commits_total", "pxrs_fenced_writes_total", "pxrs_registry_troubles_total", "pxrs_batches_total",
        "pxrs_handled_total",
        "pxrs_retried_total", "pxrs_skipped_total", "pxrs_dead_lettered_total", "pxrs_passed_over_total",
        "pxrs_handler_seconds_total",
        "pxrs_expired_messages_total", "pxrs_sealed_segments_total", "pxrs_trimmed_messages_total",
        "pxrs_group_dead_letters", "pxrs_group_oldest_dead_letter_seconds", "pxrs_group_lag_messages",
        "pxrs_group_lag_seconds", "pxrs_group_checkpoint", "pxrs_group_members", "pxrs_group_partitions",
        "pxrs_group_up", "pxrs_up",
    ]  # fmt: skip


def test_no_series_of_a_partition_ends_when_the_partition_changes_hands() -> None:
    bears_member = {m.name for m in metrics.ALL if "partition" in m.labels and "member" in m.labels}
    assert bears_member == {"pxrs_owner_epoch"}


def test_a_series_of_two_consumers_is_on_the_page_once() -> None:
    class Told:
        def samples(self) -> Iterator[Sample]:
            yield Sample(metrics.LAG_MESSAGES, ("q", "g", "3"), 7)

    lines = text_of(lambda: [Told(), Told()]).splitlines()
    assert lines.count('pxrs_lag_messages{group="g",partition="3",queue="q"} 7.0') == 1


def test_a_port_in_use_is_one_warning_and_the_consumer_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    handled = threading.Semaphore(0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pxrs.open("memory:", settings=pxrs.Settings(metrics_port=port)) as queue, queue.producer() as producer:
            for member in ("A", "B"):
                queue.consumer("g", lambda _: handled.release(), member).start()
            producer.send("k", "v").result(20)
            assert handled.acquire(timeout=20)
    [warning] = [record.getMessage() for record in caplog.records if record.name == "pxrs.metrics"]
    assert f"127.0.0.1:{port}: Address already in use" in warning and "metrics_port of its own" in warning


def test_a_host_that_is_none_is_a_warning_too(caplog: pytest.LogCaptureFixture) -> None:
    stop = serve_if_possible("256.0.0.1", 9, list)
    stop()
    assert "no metrics page on 256.0.0.1:9" in caplog.text


def test_the_page_is_served_on_the_host_of_the_settings() -> None:
    port = free_port()
    settings = pxrs.Settings(metrics_port=port, metrics_host="127.0.0.2")
    with pxrs.open("memory:", settings=settings) as queue:
        queue.consumer("g", print, "A").start()
        assert page(port, "127.0.0.2")
        with pytest.raises(OSError):
            page(port)
    with pytest.raises(BadSetting, match="metrics_host"):
        pxrs.Settings(metrics_host=" ")


def test_the_leader_tells_of_the_dead_letters_that_wait() -> None:
    port = free_port()
    settings = pxrs.Settings(metrics_port=port, tries=1)

    def fail(message: pxrs.Message) -> None:
        raise ValueError(message.text)

    with pxrs.open("memory:", partitions=1, settings=settings) as queue, queue.producer() as producer:
        for text in ("first", "second"):
            producer.send("k", text).result(20)
        consumer = queue.consumer("g", fail, "A").start()
        eventually(lambda: consumer.tally.dead_lettered == 2, "two dead letters")
        seen = page(port)
        assert seen['pxrs_group_dead_letters{group="g",queue="memory"}'] == 2
        assert 0 <= seen['pxrs_group_oldest_dead_letter_seconds{group="g",queue="memory"}'] < 600


# ---- all groups, from outside ----------------------------------------------------------------------------------------


def exported(exporter: Exporter) -> dict[str, float]:
    lines = text_of(lambda: [exporter]).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_lag_is_shown_for_partitions_that_nobody_owns() -> None:
    with Site(partitions=3) as site:
        site.send(6)
        site.queue.make_group("g")
        seen = exported(Exporter(site.queue, patient=True))
        name = site.queue.name
        lags = [seen[f'pxrs_group_lag_messages{{group="g",partition="{p}",queue="{name}"}}'] for p in range(3)]
        assert sum(lags) == 6
        assert seen[f'pxrs_group_lag_seconds{{group="g",partition="0",queue="{name}"}}'] >= 0
        assert seen[f'pxrs_group_checkpoint{{group="g",partition="0",queue="{name}"}}'] == 0
        assert seen[f'pxrs_group_partitions{{group="g",queue="{name}",state="free"}}'] == 3
        assert seen[f'pxrs_group_members{{group="g",queue="{name}",state="alive"}}'] == 0
        assert seen[f'pxrs_group_up{{group="g",queue="{name}"}}'] == seen[f'pxrs_up{{queue="{name}"}}'] == 1


def test_a_later_look_distinguishes_dead_members_from_living_ones() -> None:
    with Site(partitions=2) as site:
        registry = site.queue.make_group("g").registry
        registry.register(MemberRow("A", "life-of-A", lease_ms=300, seen=time.time() - 3600))
        registry.register(MemberRow("B", "life-of-B", lease_ms=60_000, seen=time.time()))
        exporter = Exporter(site.queue, patient=False)
        alive, dead = (
            f'pxrs_group_members{{group="g",queue="{site.queue.name}",state="{s}"}}' for s in ("alive", "dead")
        )
        first = exported(exporter)
        assert first[alive] + first[dead] == 2
        eventually(lambda: (seen := exported(exporter))[alive] == seen[dead] == 1, "one of them counts as dead")


def test_a_group_that_cannot_be_read_hides_no_other() -> None:
    with Site(partitions=1) as site:
        for group in ("good", "spoilt"):
            site.queue.make_group(group)
        key = site.queue.group("spoilt").registry.keys.group
        [row] = [row for row in site.queue.store.scan(key) if row.key == key]
        site.queue.store.swap_each([Swap(key, row.version, b"{")])
        seen = exported(Exporter(site.queue, patient=True))
        name = site.queue.name
        assert seen[f'pxrs_group_up{{group="good",queue="{name}"}}'] == 1
        assert seen[f'pxrs_group_up{{group="spoilt",queue="{name}"}}'] == 0


def test_a_registry_that_does_not_answer_is_shown() -> None:
    with Site(partitions=1) as site:
        store = SwitchedStore(MemoryStore(site.table))
        queue = site.open(store)
        exporter = Exporter(queue, patient=False)
        exported(exporter)
        store.down = True
        assert exported(exporter) == {f'pxrs_up{{queue="{queue.name}"}}': 0}
        store.down = False
