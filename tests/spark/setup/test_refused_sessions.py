"""Sessions that cannot do what is asked, and a start that is interrupted: short texts of our own."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import pxrs
from pxrs.errors import BadSetting
from pxrs.spark import Pipeline, frame, session

Remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})


@pytest.mark.parametrize(
    ("spark", "said"), [(Remote(), "over Spark Connect"), (None, "needs a SparkSession, not None")]
)
def test_a_session_of_spark_connect_is_refused_by_its_name(spark: Any, said: str) -> None:
    with pxrs.open("memory:", partitions=1) as queue:
        with pytest.raises(BadSetting, match=f"Pipeline .*{said}.*pxrs.spark.session"):
            Pipeline(spark, queue, "g", print)
        with pytest.raises(BadSetting, match=f"frame .*{said}.*pxrs.spark.session"):
            frame(spark, queue, {0: (0, 0)})


class Context:
    """Stands for the context that Spark has made."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    return Context()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_while_spark_starts_is_one_line_and_leaves_nothing_behind(
    context: Context, presses: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    came_up = False

    def start(_: object) -> None:
        nonlocal came_up
        for _ in range(presses):
            signal.raise_signal(signal.SIGINT)
        came_up = True
        SparkContext._active_spark_context = context  # type: ignore[assignment]

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    module = sys.modules[session.__module__]
    monkeypatch.setattr(module, "needs_registering", lambda _: False)
    try:
        with pytest.raises(KeyboardInterrupt, match="interrupted while Spark was starting") as stopped:
            session(master="local[1]")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(stopped.traceback) == 2 and stopped.value.__suppress_context__, "the caller's line and ours"
    assert (came_up, context.stopped) == ((True, True) if presses == 1 else (False, False))
    assert "pxrs: interrupted: Spark is stopped as soon as it has started" in capsys.readouterr().err
