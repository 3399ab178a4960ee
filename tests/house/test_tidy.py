"""House rules that a reader feels: small functions, small modules, small ports, words where they are needed."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pxrs
from pxrs.logs.base import Log
from pxrs.runtime.consumer.consumer import Subscription
from pxrs.runtime.dead_letters.box import DeadLetters
from pxrs.runtime.group.admin import GroupHandle
from pxrs.runtime.producer.producer import BatchReceipt, Receipt
from pxrs.stores.base import Store

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "src").rglob("*.py"))
TEXTS = {".py", ".md", ".toml", ".txt", ".cfg", ".ini", ".yml", ".yaml", ".svg", ""}
NOT_OURS = {".git", ".venv", ".hypothesis", ".mypy_cache", ".ruff_cache", "__pycache__", "dist", "build", "demo-data"}

FUNCTION_LINES = 50
MODULE_LINES = 500
FOLDER_ENTRIES = 15
PORT_METHODS: dict[type, int] = {Store: 8, Log: 10}
PLAIN_LINES = 4
"""A method of so few lines may let its name speak for it."""


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """How long it is, its docstring not counted."""
    assert node.end_lineno is not None
    length = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if ast.get_docstring(node) is not None:
        assert first.end_lineno is not None
        length -= first.end_lineno - first.lineno + 1
    return length


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# ---- sizes ----------------------------------------------------------------------------------------------------------


def test_no_function_is_longer_than_a_page() -> None:
    long = [
        f"{name_of(path)}: {node.name} has {lines_of(node)} lines"
        for path in [*MODULES, *sorted((ROOT / "benchmarks").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]
        for node in functions(parsed(path))
        if lines_of(node) > FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_most_functions_are_small() -> None:
    sizes = sorted(lines_of(node) for path in MODULES for node in functions(parsed(path)))
    assert sizes[len(sizes) // 2] <= 8, "the median function"
    assert sizes[len(sizes) * 9 // 10] <= 20, "nine of ten functions"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_is_longer_than_a_sitting(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("tree", ["src", "tests"])
def test_no_folder_has_more_entries_than_a_reader_takes_in(tree: str) -> None:
    folders = [path for path in (ROOT / tree, *(ROOT / tree).rglob("*")) if path.is_dir()]
    ours = [folder for folder in folders if not NOT_OURS & set(folder.relative_to(ROOT).parts)]
    counts = {name_of(folder): sum(entry.name not in NOT_OURS for entry in folder.iterdir()) for folder in ours}
    assert len(counts) > 20
    assert {name: count for name, count in counts.items() if count > FOLDER_ENTRIES} == {}


@pytest.mark.parametrize("port", [Store, Log])
def test_a_port_is_small(port: type) -> None:
    methods: frozenset[str] = port.__abstractmethods__  # type: ignore[attr-defined]  # every port is an ABC
    assert 1 <= len(methods) <= PORT_METHODS[port], sorted(methods)


@pytest.mark.parametrize("port", [Store, Log])
def test_every_verb_of_a_port_states_its_contract(port: type) -> None:
    methods: frozenset[str] = port.__abstractmethods__  # type: ignore[attr-defined]  # every port is an ABC
    assert [name for name in sorted(methods) if not getattr(port, name).__doc__] == []


# ---- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "a module begins with its docstring"


def test_every_class_with_behaviour_says_what_it_is() -> None:
    """Small records may be plain; a class of tests says it in their names."""
    silent = [
        f"{name_of(path)}: {node.name}"
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if lines_of(node) > PLAIN_LINES + 1 and not ast.get_docstring(node) and not _holds_tests(node)
    ]
    assert not silent, "\n".join(silent)


def _holds_tests(node: ast.ClassDef) -> bool:
    return any(function.name.startswith("test_") for function in functions(node))


def test_what_users_call_is_explained() -> None:
    """Everything that can be reached from ``pxrs.open``, but for methods whose few lines say as much as their name."""
    classes = [value for name in pxrs.__all__ if inspect.isclass(value := getattr(pxrs, name))]
    classes += [GroupHandle, Subscription, Receipt, BatchReceipt, DeadLetters]
    silent = [f"{kind.__name__}.{name}" for kind in classes for name in unexplained(kind)]
    assert not silent, "\n".join(silent)


def unexplained(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if name.startswith("_") or not inspect.isfunction(function) or inspect.getdoc(function):
            continue
        if len(inspect.getsource(function).splitlines()) > PLAIN_LINES + 2:
            yield name


def test_an_unexplained_method_is_recognised() -> None:
    class Silent:
        def long(self) -> int:
            first = 1
            second = 2
            third = 3
            fourth = 4
            fifth = 5
            return first + second + third + fourth + fifth

        def short(self) -> int:
            return 1

    assert list(unexplained(Silent)) == ["long"]


def test_every_error_says_what_to_do() -> None:
    classes = [value for value in vars(pxrs.errors).values() if inspect.isclass(value)]
    assert len(classes) > 10
    assert [kind.__name__ for kind in classes if not (kind.__doc__ or "").strip()] == []


# ---- what no file may hold ------------------------------------------------------------------------------------------

# Spelled backwards, so that this file does not hold the words itself.
UNFINISHED = re.compile(r"\b(" + "|".join(word[::-1] for word in ("ODOT", "EMXIF", "KCAH")) + r")\b")
PLACES = re.compile(r"(?<![\w.])/(" + "|".join(word[::-1] for word in ("krow", "toor", "pmt", "emoh")) + r")/")


def texts() -> list[Path]:
    """The files that belong to the project: as git has it or would add it, or else all that lies here."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        paths = [ROOT / name for name in listed]
    else:
        paths = [path for path in ROOT.rglob("*") if not NOT_OURS & set(path.relative_to(ROOT).parts)]
    return [path for path in sorted(paths) if path.is_file() and path.suffix in TEXTS]


def found_in_texts(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name_of(path)}:{number}: {line.strip()[:100]}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_nothing_is_left_for_later_in_a_comment() -> None:
    assert not found_in_texts(UNFINISHED)


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert not found_in_texts(PLACES)


def test_the_patterns_find_what_they_are_for() -> None:
    assert UNFINISHED.search(f"# {'ODOT'[::-1]}: later") and not UNFINISHED.search("METHODOLOGY")
    assert PLACES.search(f"open('/{'pmt'[::-1]}/x')") and not PLACES.search("{tmp_path}/tmp.txt")
    assert len(texts()) > 50
