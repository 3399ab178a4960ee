"""Metrics as Prometheus reads them: the text, and the page that serves it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from pxrs.runtime.telemetry import metric_names as metrics
from pxrs.runtime.telemetry.metric_names import Metric, Sample

logger = logging.getLogger("pxrs.metrics")


class Sampled(Protocol):
    """Something that has metrics."""

    def samples(self) -> Iterator[Sample]: ...


Meters = Callable[[], Iterable[Sampled]]


def text_of(meters: Meters) -> str:
    """The metrics as they are now, as Prometheus text."""
    from prometheus_client import generate_latest

    return generate_latest(_registry(meters)).decode()


def serve(host: str, port: int, meters: Meters) -> Callable[[], None]:
    """Serve these metrics on this address; returns how to stop. Raises OSError if the address cannot be had."""
    from prometheus_client import start_http_server

    server, thread = start_http_server(port, addr=host, registry=_registry(meters))

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def serve_if_possible(host: str, port: int, meters: Meters) -> Callable[[], None]:
    """Serve as ``serve`` does; a taken address is a warning: nobody stops working for want of a metrics page."""
    try:
        return serve(host, port, meters)
    except OSError as error:
        logger.warning(
            "no metrics page on %s:%d: %s; this process goes on without one. Give each process a metrics_port of its "
            "own, and a metrics_host of this machine",
            host, port, error.strerror or error,
        )  # fmt: skip
        return lambda: None


def _registry(meters: Meters) -> Any:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(_Collector(meters))
    return registry


class _Collector:
    """Turns samples into what prometheus_client writes."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[Metric, Any] = {}
        for metric in metrics.ALL:
            family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            families[metric] = family(metric.name, metric.help, labels=metric.labels)
        for (metric, labels), value in self._values().items():
            families[metric].add_metric(labels, value)
        yield from families.values()

    def _values(self) -> dict[tuple[Metric, tuple[str, ...]], float]:
        """Each series once: while a partition moves two consumers of a process may both report it, and a page with a
        series twice is refused as a whole.
        """
        found = (sample for meter in self._meters() for sample in meter.samples())
        return {(sample.metric, sample.labels): sample.value for sample in found}
