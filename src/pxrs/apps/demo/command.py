"""``pxrs demo``: a queue, three consumers, one of them killed; and the proof that nothing was lost."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pxrs.errors import BadSetting, Refused

if TYPE_CHECKING:
    from pxrs.apps.demo.consumers import Consumers
    from pxrs.runtime.queue.queue import Queue


def demo(
    engine: Annotated[
        Literal["processes", "threads", "spark"], typer.Option("--engine", help="What the consumers are.")
    ] = "processes",
    partitions: Annotated[int, typer.Option("--partitions", min=1, max=1_000, metavar="N")] = 8,
    registry: Annotated[
        str | None, typer.Option("--registry", metavar="URL", help="Default: SQLite, beside the queue.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="DIR", help="Keep the queue and the consumers' files there.")
    ] = None,
) -> None:
    """A story: three consumers share a queue, one is killed, nothing is lost.

    Takes some ten seconds; with Spark under 90, most of it the start of three applications. Ends with a proof,
    computed from what the consumers wrote down. Exit code 1 if it fails.
    """
    if engine == "spark" and find_spec("pyspark") is None:
        raise BadSetting("--engine spark needs pyspark, which is not installed: pip install 'pxrs[spark]'")
    import pxrs
    from pxrs.apps.demo.member import GROUP, demo_settings
    from pxrs.apps.demo.story import Story
    from pxrs.io.clock import SystemClock
    from pxrs.stores.base import Guarantee

    clock = SystemClock()
    began = clock.monotonic()
    needed = [] if engine == "threads" else [Guarantee.ACROSS_PROCESSES]
    with _directory(keep) as directory:
        # A name of its own: a registry that many share keeps the rows of each demo apart.
        place = os.path.join(directory, f"orders-{secrets.token_hex(3)}")
        places = (f"file:{place}", registry or f"sqlite:{os.path.join(directory, 'registry.db')}")
        with pxrs.open(
            log=places[0], registry=places[1], partitions=partitions, settings=demo_settings(engine), require=needed
        ) as queue:
            with _consumers(engine, directory, queue, places) as consumers:
                proof = Story(queue, consumers, engine).tell()
            if registry is not None:
                queue.group(GROUP).delete()
    print(f"\nstory: {clock.monotonic() - began:.1f} s" + (f"; everything is in {keep}" if keep else ""))
    if not proof.holds:
        raise typer.Exit(1)


@contextmanager
def _consumers(engine: str, directory: str, queue: Queue, places: tuple[str, str]) -> Iterator[Consumers]:
    """The consumers of one story; none of them outlives it."""
    from pxrs.apps.demo.consumers import Processes, Threads
    from pxrs.apps.demo.spark_consumers import Applications

    found: Consumers
    if engine == "threads":
        found = Threads(directory, queue)
    else:
        found = (Applications if engine == "spark" else Processes)(directory, *places)
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def _directory(keep: str | None) -> Iterator[str]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="pxrs-demo-") as directory:
            yield directory
        return
    try:
        os.makedirs(keep, exist_ok=True)
    except OSError as error:
        raise Refused(f"cannot make {keep}: {error.strerror}") from error
    if os.listdir(keep):
        raise Refused(f"{keep} is not empty: the demo keeps its files in a directory of their own")
    yield os.path.abspath(keep)
