"""A Spark session with good local defaults: Java found, workers with this Python, a terminal that stays readable."""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import FrameType

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from pxrs.spark.setup.java import caches, find_java
from pxrs.spark.setup.register import needs_registering, register
from pxrs.spark.spark_internals import quick_home

logger = logging.getLogger(__name__)

MEMORY = "1g"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SUBMIT_WORDS = {"--master": "spark.master", "--driver-memory": "spark.driver.memory", "--name": "spark.app.name"}


def session(
    name: str = "pxrs",
    master: str | None = None,
    ui: bool = False,
    memory: str = MEMORY,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """A Spark session; the running one if there is one.

    Finds Java (``JAVA_HOME``, the path, or the runtime that pxrs[spark] brings), starts workers with this Python, and
    sets what suits one machine: ``local[*]``, a heap of ``memory``, no web page unless ``ui``, times in UTC, errors
    only on the terminal. ``config`` holds more of Spark's settings. What spark-submit or spark-defaults.conf say goes
    before the defaults here, and after what is asked for in the call. Ctrl-C while Spark starts stops it as soon as it
    runs, and raises KeyboardInterrupt; the second one at once.
    """
    asked = _asked(master, ui, memory, config or {})
    if SparkContext._active_spark_context is not None:
        return _running(asked)
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    try:
        return _started(_settings(name, asked, _preset()))
    except Interrupted as stop:  # raised here, so that its stack is the caller's line and this one
        raise KeyboardInterrupt(str(stop)) from None


def _started(settings: Mapping[str, str]) -> SparkSession:
    with start_of_spark(), _launching(settings):
        spark: SparkSession = SparkSession.builder.config(map={**settings}).getOrCreate()
        if needs_registering(spark):
            register(spark)
    return spark


def _asked(master: str | None, ui: bool, memory: str, config: Mapping[str, object]) -> dict[str, str]:
    """The settings that the caller has named, by Spark's names."""
    said: dict[str, object] = {"spark.master": master} if master else {}
    said |= {"spark.ui.enabled": True} if ui else {}
    said |= {"spark.driver.memory": memory} if memory != MEMORY else {}
    return {key: _text(value) for key, value in {**said, **config}.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _running(asked: Mapping[str, str]) -> SparkSession:
    """The session that runs already, with those settings that can change; a warning names the others."""
    spark = SparkSession.builder.getOrCreate()
    fixed = []
    for key, value in asked.items():
        present = spark.conf.get(key, None)
        if present != value and spark.conf.isModifiable(key):
            spark.conf.set(key, value)
        elif present != value:
            fixed.append(f"{key} = {present}, not {value}")
    if fixed:
        logger.warning("a Spark session runs already, and stays as it is: %s", "; ".join(fixed))
    return spark


# ---- settings --------------------------------------------------------------------------------------------------------


def _preset() -> dict[str, str | None]:
    """The settings made outside of this program: by spark-submit, by its arguments, or by spark-defaults.conf."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM, and this program in it
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    preset: dict[str, str | None] = dict.fromkeys(_keys_of_file())
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for word, value in pairwise(words):
        if word in _SUBMIT_WORDS:
            preset[_SUBMIT_WORDS[word]] = value
        elif word in ("--conf", "-c"):
            key, _, preset[key] = value.partition("=")
    return preset


def _keys_of_file() -> Iterator[str]:
    directory = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    try:
        lines = Path(directory, "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.split("=")[0].split()[0]


def _settings(name: str, asked: Mapping[str, str], preset: Mapping[str, str | None]) -> dict[str, str]:
    master = asked.get("spark.master") or preset.get("spark.master", "local[*]")
    defaults = {
        "spark.app.name": name,
        "spark.master": "local[*]",
        "spark.driver.memory": MEMORY,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # as the driver's own files have them
    }
    if (master or "").startswith("local"):
        defaults |= _for_one_machine(master or "")
    found = {key: value for key, value in defaults.items() if key not in preset} | dict(asked)
    if _JAVA_OPTIONS not in preset:
        found[_JAVA_OPTIONS] = f"{_quiet()} {asked.get(_JAVA_OPTIONS, '')}".strip()
    return {key: value for key, value in found.items() if value}


def _for_one_machine(master: str) -> dict[str, str]:
    cores = master.removeprefix("local[").rstrip("]").partition(",")[0]
    parallel = int(cores) if cores.isdecimal() else (os.cpu_count() or 1) if cores == "*" else 1
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(parallel),
    }


def _quiet() -> str:
    """Errors only: Spark's own greeting and warnings would hide what a program has to say."""
    quiet = Path(__file__).with_name("log4j2.properties")
    return f"-Dlog4j2.configurationFile=file:{quiet}" if quiet.exists() and " " not in str(quiet) else ""


# ---- the start of the JVM --------------------------------------------------------------------------------------------


@contextmanager
def _launching(settings: Mapping[str, str]) -> Iterator[None]:
    """The environment for the start of a JVM, taken back afterwards: it is nobody else's business."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    needed = {"JAVA_HOME": find_java()}
    if "spark.driver.bindAddress" in settings:
        needed["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
    home = quick_home(caches()) if re.match(r"local($|\[)", settings.get("spark.master", "")) else None
    if home is not None:
        needed["SPARK_HOME"] = home
    before = {variable: os.environ.get(variable) for variable in needed}
    os.environ.update(needed)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


# ---- Ctrl-C while Spark starts --------------------------------------------------------------------------------------


TEXT = "interrupted while Spark was starting"


class Interrupted(Exception):
    """The user has pressed Ctrl-C; Spark, as far as it had started, is stopped."""


class _CtrlC:
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
    listener = _CtrlC()
    try:
        with _listening(listener):
            yield
    except KeyboardInterrupt:
        raise Interrupted(TEXT) from None
    if listener.heard:
        _stop()
        raise Interrupted(TEXT)


@contextmanager
def _listening(listener: _CtrlC) -> Iterator[None]:
    """Listen for Ctrl-C: only in the main thread, and only if no other code does."""
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
