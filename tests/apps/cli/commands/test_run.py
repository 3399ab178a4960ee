"""pxrs run: pipelines in files; what they may say, and that they run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import pxrs as library
from pxrs.errors import BadSetting
from pxrs.sinks import ParquetSink, QueueSink, SqlSink
from pxrs.spark.pipeline import pipeline_file as specs
from pxrs.spark.pipeline.pipeline_file import PipelineSpec, load_spec
from tests.apps.cli.helpers import QUEUE, Pxrs, Result, documents, make_queue
from tests.tools.waiting import eventually

README = Path(__file__).resolve().parents[4] / "README.md"
LEAN = {"master": "local[1]", "memory": "512m"}
"""For applications that live for seconds."""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Write a file; its directory is the current one, and modules from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name: str, text: str) -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return name

    yield write
    for module in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


Write = Callable[..., str]

PYTHON = """
import json                               # names of one's own are no keys
TAX = 0.2
queue, registry, group, member = "file:./orders", "sqlite:./r.db", "billing", "A"
columns = ["key", "value"]
sink = {"parquet": "./bills", "partition_by": ["day"]}
start = "2026-01-31T12:00:00+00:00"
settings = {"lease_ms": 3000}
spark = {"master": "local[2]", "ui": True}
def process(df, batch):
    return df
"""
YAML = """
queue: file:./orders
registry: sqlite:./r.db
group: billing
member: A
columns: [key, value]
process: bill:process
sink: {parquet: ./bills, partition_by: [day]}
start: 2026-01-31T12:00:00Z
settings: {lease_ms: 3000}
spark: {master: "local[2]", ui: true}
map_arrow:
"""


# ---- what a file says ---------------------------------------------------------------------------------------------


def test_a_python_file_and_a_yaml_file_say_the_same(written: Write) -> None:
    written("bill.py", "def process(df, batch):\n    return df\n")
    found = [load_spec(written("pipeline.py", PYTHON)), load_spec(written("pipeline.yaml", YAML))]
    for spec in found:
        assert (spec.queue, spec.registry, spec.group, spec.member) == (QUEUE, "sqlite:./r.db", "billing", "A")
        assert spec.columns == ["key", "value"] and spec.map_arrow is None and spec.process("df", None) == "df"
        assert spec.sink == {"parquet": "./bills", "partition_by": ["day"]}
        assert spec.start == datetime(2026, 1, 31, 12, tzinfo=UTC)
        assert spec.settings == {"lease_ms": 3000} and spec.spark == {"master": "local[2]", "ui": True}


def test_what_the_command_says_wins_over_the_file(written: Write) -> None:
    spec = load_spec(written("pipeline.py", PYTHON)).with_(group="audit", queue=None, master="local[1]", ui=None)
    assert (spec.group, spec.queue, spec.spark) == ("audit", QUEUE, {"master": "local[1]", "ui": True})


def test_places_for_single_partitions(written: Write) -> None:
    spec = load_spec(written("p.yaml", "start: {0: latest, 1: 120, 2: '2026-01-31T12:00:00Z'}"))
    assert spec.start == {0: "latest", 1: 120, 2: datetime(2026, 1, 31, 12, tzinfo=UTC)}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.yaml", "proces: bill:process", "p.yaml: unknown name 'proces' (did you mean 'process'?)"),
        ("p.py", "colums = ['key']", "p.py: unknown name 'colums' (did you mean 'columns'?); if it is your own"),
        ("p.yaml", "settings: {lease: 3000}", "p.yaml: settings: unknown setting 'lease'; did you mean 'lease_ms'?"),
        ("p.yaml", "spark: {mastr: local}", "p.yaml: spark: unknown name 'mastr' (did you mean 'master'?)"),
        ("p.yaml", "sink: {parquet: x, partition: [a]}", "unknown name 'partition' (did you mean 'partition_by'?)"),
        ("p.yaml", "sink: {parquet: x, queue: y}", "write parquet: DIRECTORY, queue: URL or sql: URL"),
        ("p.yaml", "sink: {sql: 'postgresql://a:secret@h/d', queue: y}", "sink = {'sql': 'postgresql://a:***@h/d'"),
        ("p.yaml", "sink: {sql: 'postgresql://h/d'}", "sql needs the name of a table: write table: NAME beside it"),
        ("p.yaml", "sink: {sql: x, tabel: y}", "unknown name 'tabel' (did you mean 'table'?)"),
        ("p.yaml", "sink: ./bills", "sink = './bills': a sink of pxrs.sinks is needed"),
        ("p.yaml", "sink: {parquet: x, instead_of: {sql: x}}", "sql needs the name of a table"),
        ("p.yaml", "columns: key", "columns = 'key': a list of names is needed"),
        ("p.yaml", "columns: [keys]", "no column 'keys' (did you mean 'key'?)"),
        ("p.yaml", "group: 7", "group = 7: a text is needed"),
        ("p.py", "process = 'bill:process'", "process = 'bill:process': a function is needed"),
        ("p.yaml", "start: yesterday", "start = 'yesterday': earliest, latest or a time"),
        ("p.yaml", "process: bill", "p.yaml: process = 'bill': write module:function"),
        ("p.yaml", "process: nowhere:f", "p.yaml: process cannot be loaded: ModuleNotFoundError"),
        ("p.yaml", "process: json:nothing", "there is no 'nothing' in json"),
        ("p.yaml", "process: json:__name__", "this is a str, not a function"),
        ("p.yaml", "- queue", "expected names with values"),
        ("p.py", "1 / 0", "p.py cannot be loaded: ZeroDivisionError"),
        ("p.toml", "", "p.toml: a pipeline is a file that ends in .py, .yaml or .yml"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(written: Write, name: str, text: str, words: str) -> None:
    with pytest.raises(BadSetting, match=re.escape(words)):
        load_spec(written(name, text))


def test_names_of_ones_own_are_not_taken_for_slips(written: Write) -> None:
    text = "from json import loads as starts\n_colums = 1\ndef process_order(x): return x\ngroups = 1\ngroup = 'g'\n"
    assert load_spec(written("p.py", text)).group == "g"


@pytest.mark.parametrize("name", ["p.py", "p.yaml"])
def test_a_file_that_is_not_there_is_named(written: Write, name: str) -> None:
    with pytest.raises(BadSetting, match=rf"{name}: .*[Nn]o such file"):
        load_spec(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("group: g\nsink: {parquet: x}", "names no queue"),
        ("queue: file:./q\nsink: {parquet: x}", "names no group"),
        ("queue: file:./q\ngroup: g", "has nothing to do: set process, map_arrow or sink"),
    ],
)
def test_a_pipeline_that_lacks_something_is_refused(pxrs: Pxrs, written: Write, text: str, words: str) -> None:
    shown = pxrs("run", written("p.yaml", text))
    assert shown.code == 2 and words in shown.err and shown.err.count("\n") == 1


def test_a_missing_queue_is_refused_before_spark_starts(pxrs: Pxrs, written: Write) -> None:
    shown = pxrs("run", written("p.yaml", "group: g\nsink: {parquet: x}"), "--queue", "file:./nowhere")
    assert shown.code == 1 and "pxrs init" in shown.err


def test_without_pyspark_the_error_says_what_to_install(written: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(BadSetting, match=r"pip install 'pxrs\[spark\]'"):
        load_spec(written("p.py", "import pyspark"))


def test_the_environment_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PXRS_LEASE_MS", "5000")
    settings = specs._settings(PipelineSpec("p.py", settings={"lease_ms": 3000, "tries": 7}))
    assert (settings.lease_ms, settings.tries) == (5000, 7)


def test_sinks_are_made_from_what_the_file_says(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs)
    with ExitStack() as closing:
        settings = library.Settings()
        assert isinstance(specs._sink(closing, {"parquet": "./bills", "compression": "zstd"}, settings), ParquetSink)
        target = specs._sink(closing, {"queue": QUEUE}, settings)
        assert isinstance(target, QueueSink) and target.target
        bills = specs._sink(closing, {"sql": "mysql://h/shop", "table": "bills", "create": True}, settings)
        assert isinstance(bills, SqlSink) and bills.target == "bills"


# ---- running ------------------------------------------------------------------------------------------------------

MAPPED = """
import pyarrow as pa
from upper import upper                    # stands beside this file; Spark's workers cannot import it
queue = "file:./orders"
group = "billing"
sink = {"parquet": "./out"}
columns = ["partition", "offset", "value"]
schema = "partition int, offset long, value binary"
settings = {"fast_rows": 0}                # all through Spark's tasks
spark = %r
PREFIX = b"order "

def map_arrow(batch):
    values = [upper(PREFIX + value) for value in batch["value"].to_pylist()]
    return pa.RecordBatch.from_pydict({"partition": batch["partition"], "offset": batch["offset"], "value": values})
"""


def run_file(directory: Path, *words: str) -> Result:
    """``pxrs run`` in a process of its own, with time for a JVM to start on a busy machine."""
    command = [sys.executable, "-m", "pxrs.apps.cli", "run", *words]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=280)
    return Result(ended.returncode, ended.stdout, ended.stderr)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(directory, format="parquet").to_table().to_pylist()
    return rows


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-stories")
def test_functions_of_a_python_file_reach_the_executors(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=40)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "upper.py").write_text("def upper(value):\n    return value.upper()\n")
    (tmp_path / "files" / "pipeline.py").write_text(MAPPED % LEAN)
    shown = run_file(tmp_path, "files/pipeline.py", "--until-end", "--member", "A", "--verbose")
    assert shown.code == 0, shown.err
    assert "billing on orders: handled 40 messages" in shown.err
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 40 and len({(row["partition"], row["offset"]) for row in rows}) == 40
    assert {row["value"] for row in rows} == {b"ORDER " + line.upper().encode() for line in documents(40).splitlines()}


COUNT = """
from pyspark.sql import functions as F

def per_account(df, batch):
    account = F.get_json_object(F.col("value").cast("string"), "$.account.id")
    counted = df.groupBy(account.alias("key")).count()
    return counted.select(F.col("key").cast("binary"), F.col("count").cast("string").cast("binary").alias("value"))
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-stories")
def test_a_yaml_file_runs_from_queue_to_queue(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=40)
    assert pxrs("init", "file:./counts", "--partitions", 2).code == 0
    (tmp_path / "count.py").write_text(COUNT)
    spec = {"queue": "file:./elsewhere", "process": "count:per_account", "sink": {"queue": "file:./counts"}}
    (tmp_path / "count.yaml").write_text(json.dumps({**spec, "spark": LEAN}))
    shown = run_file(tmp_path, "count.yaml", "--until-end", "--queue", QUEUE, "--group", "counting")
    assert shown.code == 0, shown.err
    with library.open("file:./counts", create=False) as counts:
        messages = [message for partition in range(2) for message in counts.read(partition, 0, 100)]
    assert sum(int(message.value) for message in messages) == 40
    assert {message.key for message in messages} == {f"acct-{n}".encode() for n in range(7)}


def readme_pipeline() -> str:
    """The pipeline file that the README shows."""
    found = re.search(r"^```python\n(# pipeline\.py\n.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-stories")
def test_the_pipeline_of_the_readme_runs_until_it_is_asked_to_leave(pxrs: Pxrs, tmp_path: Path) -> None:
    make_queue(pxrs, messages=40)
    (tmp_path / "pipeline.py").write_text(readme_pipeline())
    command = [sys.executable, "-m", "pxrs.apps.cli", "run", "pipeline.py", "--master", "local[1]", "--member", "A"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            with library.open(QUEUE, create=False) as queue:
                eventually(lambda: "billing" in queue.groups() or process.poll() is not None, "the group", 150)
                lag = queue.group("billing").describe
                eventually(lambda: process.poll() is not None or lag().total_lag == 0, "the end of the work", 150)
                members = json.loads(pxrs("group", "members", QUEUE, "billing", "-o", "json").out)
                process.send_signal(signal.SIGTERM)
                _, said = process.communicate(timeout=60)
                assert process.returncode == 0, said
                assert queue.group("billing").members() == []
        finally:
            process.kill()
    assert [(m["consumer_id"], m["engine"]) for m in members] == [("A", "spark")]
    assert members[0]["app"].startswith("local-") and members[0]["jvm"] != str(process.pid)
    assert len(rows_of(tmp_path / "bills")) == 40
