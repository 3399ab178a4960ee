"""``pxrs metrics``: the state of all groups for Prometheus, whether somebody consumes or not."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from pxrs.apps.cli.options import RegistryUrl, Url, WrongUsage, opened
from pxrs.apps.cli.output import note
from pxrs.errors import Refused

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

_PORTS = 65_535
_LOOK_SECONDS = 1.0


def metrics(
    url: Url,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="[HOST:]PORT", help="Serve them until Ctrl-C. HOST is 127.0.0.1 if not named."
        ),
    ] = None,
    registry: RegistryUrl = None,
) -> None:
    """Lag of every partition, members, parked partitions and dead letters of all groups, as Prometheus text.

    They are read from the registry and the log: also those of free partitions, and of groups whose members are
    all dead.
    """
    from pxrs.apps.cli.group_metrics import Exporter
    from pxrs.runtime.telemetry.page import text_of

    address = None if listen is None else _address(listen)
    with opened(url, registry) as queue:
        if address is not None:
            _serve(queue, *address)
            return
        exporter = Exporter(queue, patient=True)
        sys.stdout.write(text_of(lambda: [exporter]))


def _address(text: str) -> tuple[str, int]:
    """``9100``, ``0.0.0.0:9100`` or ``[::1]:9100``."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= _PORTS:
        raise WrongUsage(f"--listen {text!r}: write a port, as 9100, or an address and a port, as 0.0.0.0:9100")
    return host.strip("[]") or "127.0.0.1", int(port)


def _serve(queue: Queue, host: str, port: int) -> None:
    from pxrs.apps.cli.group_metrics import Exporter
    from pxrs.runtime.group.membership import signals
    from pxrs.runtime.telemetry.page import serve

    exporter, over = Exporter(queue, patient=False), threading.Event()
    try:
        stop = serve(host, port, lambda: [exporter])
    except OSError as error:
        raise Refused(f"--listen {host}:{port}: {error.strerror or error}; name another port or address") from error
    try:
        note(f"metrics of {queue.name!r} are on http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
        with signals(over.set):
            while not over.wait(_LOOK_SECONDS):  # without a limit a signal to a stopped process would be lost
                pass
    finally:
        stop()
