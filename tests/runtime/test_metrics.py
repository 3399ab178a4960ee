"""Metrics as a dashboard would read them: the Prometheus page of a running consumer."""

from __future__ import annotations

import socket
import threading
import urllib.request

import pytest

import pxrs
from pxrs import metrics
from pxrs.errors import BadSetting


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def page(port: int) -> dict[str, float]:
    """Every sample on the page by its name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
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
    where = f'{{group="g",member="A",partition="{partition}",queue="memory"}}'
    assert seen[f"pxrs_lag_messages{where}"] == 3
    assert seen[f"pxrs_lag_seconds{where}"] > 0
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
        "pxrs_lag_messages", "pxrs_lag_seconds", "pxrs_checkpoint", "pxrs_owned_partitions",
        "pxrs_parked_partitions", "pxrs_beat_age_seconds",
        "pxrs_leads", "pxrs_rebalances_total", "pxrs_claims_total", "pxrs_releases_total", "pxrs_losses_total",
        "pxrs_commits_total", "pxrs_fenced_writes_total", "pxrs_registry_troubles_total", "pxrs_batches_total",
        "pxrs_handled_total",
        "pxrs_retried_total", "pxrs_skipped_total", "pxrs_dead_lettered_total", "pxrs_passed_over_total",
        "pxrs_handler_seconds_total",
        "pxrs_expired_messages_total", "pxrs_sealed_segments_total", "pxrs_trimmed_messages_total",
    ]  # fmt: skip


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pxrs.open("memory:", settings=pxrs.Settings(metrics_port=port)) as queue,
            pytest.raises(BadSetting, match=str(port)),
        ):
            queue.consumer(group="g", handler=print).start()
