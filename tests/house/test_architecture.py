"""The rooms and doors of ARCHITECTURE.md: the contracts hold, and each of them bites when somebody breaks it."""

from __future__ import annotations

import ast
import configparser
import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pxrs import drivers

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "pxrs"
CONTRACTS = ROOT / ".importlinter"
CHECKED_TREES = ("src", "tests", "benchmarks", "examples")


def contract_names() -> dict[str, str]:
    """The contracts of ``.importlinter``: id → name."""
    prefix = "importlinter:contract:"
    config = read_config()
    return {s.removeprefix(prefix): config[s]["name"] for s in config.sections() if s.startswith(prefix)}


def read_config() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(CONTRACTS, encoding="utf-8")
    return config


def modules_in(contract: str, option: str) -> set[str]:
    return set(read_config()[f"importlinter:contract:{contract}"][option].split())


def lint(source: Path, *only: str) -> subprocess.CompletedProcess[str]:
    """Check the contracts against the package in this ``src`` directory."""
    chosen = [word for contract in only for word in ("--contract", contract)]
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", CONTRACTS, *chosen],
        env=os.environ | {"PYTHONPATH": str(source), "COLUMNS": "250", "NO_COLOR": "1"},
        cwd=source,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


# ---- the contracts hold, and bite -----------------------------------------------------------------------------------


class Plant(NamedTuple):
    """Lines added to a file of a copy, and what the contract's complaint must name."""

    contract: str
    file: str
    lines: str
    named: tuple[str, ...]


_CLOCKS_AND_IO = ("time", "random", "os", "socket", "threading", "asyncio", "logging", "pathlib", "sqlite3")

PLANTS = (
    Plant(
        "rooms",
        "rules/policies.py",
        "from pxrs.runtime.ports import events",
        ("pxrs.rules.policies", "pxrs.runtime.ports.events"),
    ),
    Plant("rooms", "stores/base.py", "import pxrs.logs.base", ("pxrs.stores.base -> pxrs.logs.base",)),
    Plant(
        "rooms",
        "runtime/ports/events.py",
        "import pxrs.testing.suites",
        ("pxrs.runtime.ports.events -> pxrs.testing.suites",),
    ),
    Plant("rooms", "helpers.py", "", ("helpers",)),
    Plant(
        "inside-runtime",
        "runtime/group/member.py",
        "import pxrs.runtime.consumer.worker",
        ("pxrs.runtime.group.member -> pxrs.runtime.consumer.worker",),
    ),
    Plant("inside-runtime", "runtime/helpers.py", "", ("helpers",)),
    Plant(
        "inside-spark",
        "spark/read/frame.py",
        "import pxrs.spark.stream.offsets",
        ("pxrs.spark.read.frame -> pxrs.spark.stream.offsets",),
    ),
    Plant(
        "inside-file-log",
        "logs/file/segment/scan.py",
        "import pxrs.logs.file.writer",
        ("pxrs.logs.file.segment.scan -> pxrs.logs.file.writer",),
    ),
    Plant("memory-drivers", "runtime/ports/events.py", "import pxrs.stores.memory", ("pxrs.stores.memory",)),
    Plant("memory-drivers", "runtime/views/group.py", "import pxrs.logs.memory", ("pxrs.logs.memory",)),
    Plant("drivers", "runtime/ports/events.py", "import pxrs.logs.file.log", ("pxrs.logs.file.log",)),
    Plant("drivers", "testing/suites.py", "import pxrs.stores.sqlite.store", ("pxrs.stores.sqlite.store",)),
    Plant("independent-drivers", "stores/sqlite/store.py", "import pxrs.stores.memory", ("pxrs.stores.memory",)),
    Plant("connections", "runtime/ports/events.py", "import pxrs.io.watch.file_bell", ("pxrs.io.watch",)),
    Plant("connections", "sinks/parquet.py", "import pxrs.io.sql.connections", ("pxrs.sinks.parquet",)),
    Plant("outputs", "sinks/parquet.py", "import sqlalchemy", ("pxrs.sinks.parquet -> sqlalchemy",)),
    Plant("backends", "runtime/ports/events.py", "import sqlite3", ("pxrs.runtime.ports.events -> sqlite3",)),
    Plant(
        "pure-rules",
        "rules/policies.py",
        "\n".join(f"import {name}" for name in (*_CLOCKS_AND_IO, "pxrs.io.clock")),
        tuple(f"pxrs.rules.policies -> {name}" for name in (*_CLOCKS_AND_IO, "pxrs.io.clock")),
    ),
    Plant("light-vocabulary", "errors.py", "import pyarrow", ("pxrs.errors -> pyarrow",)),
    Plant("light-vocabulary", "settings.py", "import yaml", ("pxrs.settings -> yaml",)),
    Plant("test-tools", "runtime/ports/events.py", "import greenlet", ("pxrs.runtime.ports.events -> greenlet",)),
    Plant("only-spark-knows-spark", "sinks/staging.py", "import pyspark", ("pxrs.sinks.staging -> pyspark",)),
    Plant("light-tasks", "spark/read/task.py", "import pxrs.runtime.ports.events", ("pxrs.spark.read.task",)),
    Plant("no-cycles", "runtime/ports/events.py", "import pxrs.runtime.consumer.consumer", ("pxrs.runtime",)),
)


def test_all_contracts_hold() -> None:
    result = lint(ROOT / "src")
    kept = {name for name in contract_names().values() if f"{name} KEPT" in result.stdout}
    assert kept == set(contract_names().values()), result.stdout + result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("plant", PLANTS, ids=[f"{p.contract}-{p.file}" for p in PLANTS])
def test_a_planted_violation_is_refused_by_its_contract(plant: Plant, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "pxrs", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "pxrs" / plant.file, "a", encoding="utf-8") as file:
        file.write(f"\n{plant.lines}\n")
    result = lint(tmp_path, plant.contract)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract_names()[plant.contract]} BROKEN" in result.stdout
    missing = [words for words in plant.named if words not in result.stdout]
    assert not missing, result.stdout


def test_every_contract_has_a_planted_violation() -> None:
    assert {plant.contract for plant in PLANTS} == set(contract_names())


def test_no_contract_lists_an_exception() -> None:
    assert "ignore_imports" not in CONTRACTS.read_text(encoding="utf-8")


def test_the_contracts_name_every_driver() -> None:
    named = {name.partition(":")[0] for room in drivers._BUILT_IN.values() for name in room.values()}
    protected = modules_in("memory-drivers", "protected_modules") | modules_in("drivers", "protected_modules")
    assert named == protected
    folders = {re.sub(r"\.(store|log)$", "", name) for name in named}
    assert folders == modules_in("independent-drivers", "modules")


def test_every_store_is_in_the_table_of_drivers() -> None:
    named = {name.split(":")[0].split(".")[2] for name in drivers._BUILT_IN["pxrs.stores"].values()}
    entries = {path.stem for path in (SOURCE / "stores").iterdir()} - {"__init__", "__pycache__", "base", "versions"}
    assert entries == named


def test_the_contracts_name_the_whole_vocabulary() -> None:
    """A module beside the rooms is vocabulary, except the table of drivers."""
    others = {"pxrs.__init__", "pxrs.drivers"}
    alone = {f"pxrs.{path.stem}" for path in SOURCE.glob("*.py")} - others
    assert alone | {"pxrs.io.clock", "pxrs.runtime.telemetry.metric_names"} == modules_in(
        "light-vocabulary", "source_modules"
    )


def test_the_package_loads_without_what_only_the_edges_need() -> None:
    """Whoever imports pxrs pays for the data path, not for the command line, the stores or the test tools."""
    code = "import sys, pxrs; pxrs.open; print(*{name.partition('.')[0] for name in sys.modules})"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(answer.stdout.split())
    assert "pyarrow" in loaded
    assert not loaded & {"typer", "rich", "prometheus_client", "sqlite3", "pytest", "greenlet", "matplotlib", "pandas"}


# ---- promises about single lines ------------------------------------------------------------------------------------


def python_files(*trees: str) -> list[Path]:
    return [path for tree in trees for path in sorted((ROOT / tree).rglob("*.py"))]


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with open(path, encoding="utf-8") as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def bad_silencers(text: str) -> list[str]:
    """What is wrong with a comment that silences a checker: it must name the rule; ``noqa`` also the reason."""
    if re.search(r"type:\s*ignore(?!\[[a-z-]+(, ?[a-z-]+)*\])", text):
        return ["type: ignore without its error code"]
    if re.search(r"(?i)noqa", text) and not re.search(r"# noqa: [A-Z]+[0-9]+(, [A-Z]+[0-9]+)* - \S.{5,}", text):
        return ["noqa without rule and reason"]
    return []


@pytest.mark.parametrize(
    ("comment", "wrong"),
    [
        ("# type: ignore", True),
        ("# type: ignore[misc]", False),
        ("# noqa", True),
        ("# noqa: ARG001", True),
        ("# noqa: ARG001, B023 - the port's signature", False),
    ],
)
def test_a_bare_silencer_is_recognised(comment: str, wrong: bool) -> None:
    assert bool(bad_silencers(comment)) is wrong


def test_silenced_checks_name_their_rule() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in python_files(*CHECKED_TREES)
        for line, text in comments(path)
        for what in bad_silencers(text)
    ]
    assert not found, "\n".join(found)


# ---- time, and Python's own hash ------------------------------------------------------------------------------------

_CLOCKS = "time monotonic perf_counter process_time thread_time clock_gettime localtime gmtime"
_ASKS_TIME = {"time": set(_CLOCKS.split()), "datetime": {"now", "utcnow", "today"}, "date": {"today"}}


def asked_times(tree: ast.AST) -> Iterator[int]:
    """The lines that ask the machine what time it is. Sleeping is not asking."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if _asks(module, name):
                yield node.lineno
            case ast.ImportFrom(module="time", names=names) if any(_asks("time", alias.name) for alias in names):
                yield node.lineno


def _asks(module: str, name: str) -> bool:
    return name.removesuffix("_ns") in _ASKS_TIME.get(module, ())


def test_only_the_clock_asks_the_time() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in python_files("src")
        if path != SOURCE / "io" / "clock.py"
        for line in asked_times(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not found, f"hand a pxrs.io.clock.Clock in instead: {found}"


def test_asking_the_time_is_recognised() -> None:
    asks = "import time\nfrom time import monotonic\ntime.time()\ntime.sleep(1)\ndatetime.now(UTC)\ntime.time_ns()\n"
    assert sorted(asked_times(ast.parse(asks))) == [2, 3, 5, 6]
    assert list(asked_times(ast.parse((SOURCE / "io" / "clock.py").read_text(encoding="utf-8"))))


def calls_of_hash(source: str) -> list[int]:
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "hash"]


def test_rules_never_use_the_salted_hash_of_python() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in python_files("src/pxrs/rules")
        if (lines := calls_of_hash(path.read_text(encoding="utf-8")))
    }
    assert not found, "hash() of a str differs from process to process"
    assert calls_of_hash("x = hash(b'')") == [1]


def test_comments_are_told_from_text() -> None:
    """A string that speaks of a silencer is none."""
    tokens = tokenize.generate_tokens(io.StringIO("x = '# noqa'  # fine\n").readline)
    assert [t.string for t in tokens if t.type == tokenize.COMMENT] == ["# fine"]
