"""A pipeline as a file: what ``pxrs run`` reads. A Python file's names and a YAML file's keys are the same.

queue: file:./orders
group: billing
process: bill:process          # in a Python file: the function itself
sink: {parquet: ./bills}
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pxrs import sinks
from pxrs.errors import BadSetting, masked
from pxrs.runtime.ports.sink import Sink
from pxrs.runtime.queue.queue import Queue, open_queue
from pxrs.runtime.queue.settings_file import load_settings, read_yaml
from pxrs.settings import Settings, check_names, from_environment
from pxrs.sinks import ParquetSink, QueueSink
from pxrs.spark.read.columns import check_columns, nearest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pxrs.spark.pipeline.pipeline import Pipeline

_SPARK = ("master", "memory", "ui", "config")
_SINKS = {
    "parquet": ("partition_by", "compression", "staging", "instead_of"),
    "queue": ("registry", "staging", "instead_of"),
    "sql": ("table", "create", "patience", "instead_of"),
}
_SINK_CALLS = ("stage", "publish", "discard", "recover")
_TEXTS = ("queue", "registry", "group", "member")
_FUNCTIONS = ("process", "map_arrow")
_EXTRA = {"pyspark", "py4j", "pandas"}
_MISTYPED = 0.8
"""The least likeness of a name in a Python file and a known one to be taken for a slip; 1 is equal."""


@dataclass(frozen=True)
class PipelineSpec:
    """The parts of a pipeline. ``source`` is the file, for errors; ``spark`` holds arguments of ``session``."""

    source: str
    queue: str | None = field(default=None, repr=False)  # this, registry and sink may hold a password
    registry: str | None = field(default=None, repr=False)
    group: str | None = None
    member: str | None = None
    process: Any = None
    map_arrow: Any = None
    columns: Any = None
    schema: Any = None
    sink: Any = field(default=None, repr=False)
    start: Any = "earliest"
    settings: Mapping[str, Any] = field(default_factory=dict)
    spark: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _TEXTS:
            self._check(name, isinstance(getattr(self, name), str | None), "a text is needed")
        for name in _FUNCTIONS:
            value = getattr(self, name)
            self._check(name, value is None or callable(value), "a function is needed")
        for name in ("settings", "spark"):
            self._check(name, isinstance(getattr(self, name), Mapping), "names with values are needed")
        if self.columns is not None:
            self._check("columns", isinstance(self.columns, list | tuple), "a list of names is needed")
            check_columns(self.columns)
        check_names(self.settings, f"{self.source}: settings")
        _check_known(self.spark, _SPARK, f"{self.source}: spark")
        _check_sink(self.sink, self.source)

    def _check(self, name: str, is_good: bool, needed: str) -> None:
        if not is_good:
            raise BadSetting(f"{self.source}: {name} = {getattr(self, name)!r}: {needed}")

    def with_(self, **changes: Any) -> PipelineSpec:
        """Override parts by other arguments; None changes nothing. ``master`` and ``ui`` are Spark's."""
        said = {name: value for name, value in changes.items() if value is not None}
        spark = {name: said.pop(name) for name in _SPARK if name in said}
        return replace(self, spark={**self.spark, **spark}, **said)

    def check_complete(self) -> None:
        """Refuse a pipeline that has nothing to read, nothing to join, or nothing to do."""
        if self.queue is None:
            raise BadSetting(f"{self.source} names no queue: set queue in it, or --queue, as in file:./orders")
        if self.group is None:
            raise BadSetting(f"{self.source} names no group to join: set group in it, or --group")
        if self.process is None and self.map_arrow is None and self.sink is None:
            raise BadSetting(f"{self.source} has nothing to do: set process, map_arrow or sink in it")


_KEYS = tuple(one.name for one in fields(PipelineSpec) if one.name != "source")


# ---- reading ---------------------------------------------------------------------------------------------------------


def load_spec(path: str) -> PipelineSpec:
    """Read a pipeline from a file that ends in .py, .yaml or .yml."""
    ending = os.path.splitext(path)[1].lower()
    if ending == ".py":
        values = _names_of(module_of(path), path)
    elif ending in (".yaml", ".yml"):
        values = _keys_of(read_yaml(path), path)
    else:
        raise BadSetting(f"{path}: a pipeline is a file that ends in .py, .yaml or .yml")
    if "start" in values:
        values["start"] = _places(values["start"], path)
    return PipelineSpec(path, **values)


def _keys_of(found: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Read the keys of a YAML file. Empty values count as missing."""
    _check_known(found, _KEYS, path)
    values = {name: value for name, value in found.items() if value is not None}
    for name in _FUNCTIONS:
        if isinstance(values.get(name), str):
            values[name] = function_of(values[name], os.path.dirname(path), f"{path}: {name}")
    return values


def _names_of(module: ModuleType, path: str) -> dict[str, Any]:
    """Read the names of a Python file. It may have other names; those that look mistyped are refused."""
    values = {name: value for name, value in vars(module).items() if name in _KEYS and value is not None}
    unset = [name for name in _KEYS if name not in values]
    for name, value in vars(module).items():
        meant = difflib.get_close_matches(name, unset, n=1, cutoff=_MISTYPED)
        if meant and _is_own(name, value, module):
            raise BadSetting(
                f"{path}: unknown name {name!r} (did you mean {meant[0]!r}?); if it is your own, begin it with '_'"
            )
    return values


def _is_own(name: str, value: object, module: ModuleType) -> bool:
    """Whether a name of a file was made there to be seen: not hidden, and not imported."""
    home = getattr(value, "__module__", module.__name__)
    return not name.startswith("_") and not isinstance(value, ModuleType) and home == module.__name__


def _check_known(found: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in found:
        if name not in known:
            raise BadSetting(f"{where}: unknown name {name!r}{nearest(name, known)}; known are {', '.join(known)}")


def _check_sink(sink: Any, source: str) -> None:
    if isinstance(sink, Mapping):
        kinds = [kind for kind in _SINKS if kind in sink]
        if len(kinds) != 1:
            raise BadSetting(
                f"{source}: sink = {masked(repr(dict(sink)))}: write parquet: DIRECTORY, queue: URL or sql: URL"
            )
        _check_known(sink, (kinds[0], *_SINKS[kinds[0]]), f"{source}: sink")
        if "sql" in sink and "table" not in sink:
            raise BadSetting(f"{source}: sink: sql needs the name of a table: write table: NAME beside it")
        _check_sink(sink.get("instead_of"), source)
    elif sink is not None and not all(hasattr(sink, call) for call in _SINK_CALLS):
        raise BadSetting(
            f"{source}: sink = {masked(repr(sink))}: a sink of pxrs.sinks is needed, or a mapping that names one"
        )


def _places(start: Any, path: str) -> Any:
    """The start of a new group: times may be written as text."""
    if isinstance(start, Mapping):
        return {partition: _places(place, path) for partition, place in start.items()}
    if not isinstance(start, str) or start in ("earliest", "latest"):
        return start
    try:
        return datetime.fromisoformat(start)
    except ValueError:
        raise BadSetting(f"{path}: start = {start!r}: earliest, latest or a time, as 2026-01-31T12:00:00Z") from None


# ---- building --------------------------------------------------------------------------------------------------------


@contextmanager
def build(spec: PipelineSpec, progress: bool | None = None) -> Iterator[tuple[SparkSession, Queue, Pipeline]]:
    """The session, the queue and the pipeline of a file, not started yet; all is stopped and closed at the end.

    What can be refused is refused before Spark starts.
    """
    import pxrs.spark as on_spark

    spec.check_complete()
    settings = _settings(spec)
    with ExitStack() as closing:
        queue = _opened(closing, spec.queue, spec.registry, settings)
        sink = _sink(closing, spec.sink, settings) if isinstance(spec.sink, Mapping) else spec.sink
        new_pipeline, new_session = on_spark.Pipeline, on_spark.session  # an error here says what to install
        spark = new_session(f"pxrs-{spec.group}", **spec.spark)
        closing.callback(spark.stop)
        pipeline = new_pipeline(
            spark, queue, spec.group, spec.process, spec.map_arrow, sink,
            member=spec.member, columns=spec.columns, schema=spec.schema, start=spec.start, progress=progress,
        )  # fmt: skip
        closing.callback(pipeline.stop)
        yield spark, queue, pipeline


def _settings(spec: PipelineSpec) -> Settings:
    """The environment goes before a file, as everywhere."""
    outside = from_environment(os.environ)
    try:
        return load_settings(**{name: value for name, value in spec.settings.items() if name not in outside})
    except BadSetting as error:
        raise BadSetting(f"{spec.source}: {error}") from None


def _opened(closing: ExitStack, url: str | None, registry: str | None, settings: Settings) -> Queue:
    places: dict[str, Any] = {"url": url} if registry is None else {"log": url, "registry": registry}
    return closing.enter_context(open_queue(**places, settings=settings, create=False))


def _sink(closing: ExitStack, wanted: Mapping[str, Any], settings: Settings) -> Sink:
    options = dict(wanted)
    if isinstance(options.get("instead_of"), Mapping):
        options["instead_of"] = _sink(closing, options["instead_of"], settings)
    if "parquet" in options:
        return ParquetSink(options.pop("parquet"), **options)
    if "sql" in options:
        sink = sinks.SqlSink(options.pop("sql"), **options)  # an error here says what to install
        closing.callback(sink.close)
        return sink
    target = _opened(closing, options.pop("queue"), options.pop("registry", None), settings)
    return QueueSink(target, **options)


# Spark's workers do not know the directory of a user's code. So its functions travel by value, as those of a program
# do; what is installed travels by name.


def module_of(path: str) -> ModuleType:
    """Run a Python file, once, as a module that is not ``__main__``."""
    name = f"pxrs_run_{os.path.splitext(os.path.basename(path))[0]}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None or not os.path.isfile(path):
        raise BadSetting(f"{path}: there is no such file")
    module = importlib.util.module_from_spec(found)
    with _beside(os.path.dirname(os.path.abspath(path)), path):
        sys.modules[name] = module
        found.loader.exec_module(module)
    return module


def function_of(words: str, directory: str, where: str) -> Callable[..., Any]:
    """Find the function that ``module:function`` names; the module may be in ``directory``. ``where`` is for errors."""
    module, colon, name = words.partition(":")
    if not (module and colon and name):
        raise BadSetting(f"{where} = {words!r}: write module:function")
    with _beside(os.path.abspath(directory), where):
        found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadSetting(f"{where} = {words!r}: there is no {name!r} in {module}")
        found = getattr(found, part)
    if not callable(found):
        raise BadSetting(f"{where} = {words!r}: this is a {type(found).__name__}, not a function")
    called: Callable[..., Any] = found
    return called


@contextmanager
def _beside(directory: str, where: str) -> Iterator[None]:
    """Let imports find the modules of this directory, now and later; they travel to workers by value."""
    before = set(sys.modules)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        yield
    except Exception as error:
        missing = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and missing in _EXTRA:
            raise BadSetting(f"{where}: {missing} is not installed: pip install 'pxrs[spark]'") from error
        raise BadSetting(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    _let_travel([sys.modules[name] for name in set(sys.modules) - before if "." not in name], directory)


def _let_travel(modules: list[ModuleType], directory: str) -> None:
    own = [module for module in modules if _is_in(module, directory)]
    if not own:
        return
    try:
        from pyspark import cloudpickle
    except ModuleNotFoundError as error:
        raise BadSetting(f"{error.name} is not installed: pip install 'pxrs[spark]'") from error
    for module in own:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types


def _is_in(module: ModuleType, directory: str) -> bool:
    """Whether a module, or a package, is directly in a directory."""
    path = os.path.abspath(getattr(module, "__file__", None) or "")
    home = os.path.dirname(path)
    return directory == (os.path.dirname(home) if os.path.basename(path) == "__init__.py" else home)
