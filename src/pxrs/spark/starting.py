"""Ctrl-C while Spark starts: a short text, and no JVM that is left behind."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from pyspark import SparkContext

TEXT = "interrupted while Spark was starting"


class Interrupted(Exception):
    """Somebody has pressed Ctrl-C; Spark, as far as it had started, is stopped."""


class _Listener:
    """Remembers a first Ctrl-C: an exception in the middle of the start would leave a JVM without its Python."""

    def __init__(self) -> None:
        self.heard = False

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as Python calls it
        if self.heard:
            raise KeyboardInterrupt
        self.heard = True
        sys.stderr.write("pxrs: interrupted: Spark is stopped as soon as it has started (Ctrl-C again: at once)\n")


@contextmanager
def start_of_spark() -> Iterator[None]:
    """Ctrl-C in here is obeyed at the end, the second one at once: as ``Interrupted``, without Spark's own stack."""
    listener = _Listener()
    try:
        with _listening(listener):
            yield
    except KeyboardInterrupt:
        raise Interrupted(TEXT) from None
    if listener.heard:
        _stop()
        raise Interrupted(TEXT)


@contextmanager
def _listening(listener: _Listener) -> Iterator[None]:
    """Only in the main thread, and only where nobody else wants to hear of Ctrl-C."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, listener)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is listener:  # else Spark, once started, has set its own
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop() -> None:
    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Exception):
            context.stop()
