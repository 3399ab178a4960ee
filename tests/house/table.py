"""The measures of the tree: ``python -m tests.house.table`` prints them beside their limits, ``--names`` the cases.

``test_table.py`` keeps them. ``python -m tests.house.walks`` prints the lengths of the walks through the code.
"""

from __future__ import annotations

import ast
import configparser
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "pxrs"
SPLIT_LINES = 80
"""A module with one importer is a paragraph of it, unless it is longer than this."""


class Measure(NamedTuple):
    """One line of the table: its name, what it was at 0.6.0, what it may be, and what it is."""

    name: str
    before: str
    limit: int
    value: int

    @property
    def is_kept(self) -> bool:
        return self.value <= self.limit


@cache
def modules() -> dict[str, Path]:
    """All modules of the package by their dotted names."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        found[name] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room_of(name: str) -> str:
    """``pxrs.runtime.group.member`` → ``runtime``."""
    return [*name.split("."), "", ""][1]


def is_own(name: str) -> bool:
    """Whether a module is part of the product, and not of the tools for tests."""
    return room_of(name) != "testing"


# ---- what is counted ------------------------------------------------------------------------------------------------


def entries() -> dict[str, int]:
    """How many entries each folder has."""
    folders = [SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir() and path.name != "__pycache__")]
    return {str(path.relative_to(ROOT)): sum(e.name != "__pycache__" for e in path.iterdir()) for path in folders}


def own_modules() -> list[str]:
    return [name for name, path in modules().items() if is_own(name) and path.name != "__init__.py"]


def importers() -> dict[str, set[str]]:
    """Each module → the modules that import it, or something out of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, path in modules().items():
        for imported in _imports(tree_of(path)):
            if imported != name:
                found[imported].add(name)
    return found


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pxrs"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules() else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())


def lines_of(name: str) -> int:
    return len(modules()[name].read_text(encoding="utf-8").splitlines())


def _lines_of_testing() -> int:
    return sum(lines_of(name) for name in modules() if not is_own(name))


def lonely() -> list[str]:
    """Modules that one other module imports. Commands of a program have one importer by nature."""
    known = importers()
    return [name for name in own_modules() if room_of(name) != "apps" and len(known[name]) == 1]


def paragraphs() -> list[str]:
    """Lonely modules that are too short to stand alone. A rule may be short: each is one decision."""
    return [name for name in lonely() if lines_of(name) <= SPLIT_LINES and room_of(name) != "rules"]


def shared_class_names() -> dict[str, list[str]]:
    """Names of classes, with or without an underscore, that several modules use."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name in own_modules():
        for node in tree_of(modules()[name]).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(name)
    return {name: found for name, found in homes.items() if len(found) > 1}


DRIVERS = ("pxrs.stores.", "pxrs.logs.", "pxrs.io.sql.", "pxrs.io.nats.")
"""Folders of drivers, and of the connections that they share: each is read by itself."""


def shared_outside_drivers() -> list[str]:
    """Names of classes that several modules use which are no drivers."""
    outside = {
        name: [home for home in homes if not home.startswith(DRIVERS)] for name, homes in shared_class_names().items()
    }
    return [name for name, homes in outside.items() if len(homes) > 1]


def long_functions(limit: int = 50) -> list[str]:
    return [
        f"{name}.{node.name}"
        for name, path in modules().items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if _length(node) > limit
    ]


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    last, first = node.end_lineno or 0, node.body[0]
    doc = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(node) is not None else 0
    return last - node.lineno + 1 - doc


def fork_hooks() -> list[str]:
    return [name for name in modules() if "register_at_fork" in modules()[name].read_text(encoding="utf-8")]


def layer_contracts() -> int:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter", encoding="utf-8")
    return sum(config[name].get("type") == "layers" for name in config.sections())


LIMITS = {
    "modules": 222, "lonely": 32, "paragraphs": 0, "lines": 41_200, "testing": 4_900, "shared": 3, "shared_core": 0,
    "forks": 1,
}  # fmt: skip
"""What a change must not exceed. They only go down."""

# ---- the table ------------------------------------------------------------------------------------------------------


def measures() -> list[Measure]:
    """All that can be counted without running the product."""
    own, inner = own_modules(), {"runtime", "rules", "model"}
    shared = shared_class_names()
    in_core = [name for name, homes in shared.items() if any(room_of(home) in inner for home in homes)]
    return [
        Measure("most entries in a folder", "67", 15, max(entries().values())),
        Measure("modules without testing", "291", LIMITS["modules"], len(own)),
        Measure("of these with one importer only", "68", LIMITS["lonely"], len(lonely())),
        Measure("short modules with one importer", "-", LIMITS["paragraphs"], len(paragraphs())),
        Measure("raw lines without testing", "41,763", LIMITS["lines"], sum(map(lines_of, filter(is_own, modules())))),
        Measure(
            "raw lines of testing", "7,857", LIMITS["testing"], sum(lines_of(n) for n in modules() if not is_own(n))
        ),
        Measure("class names used by several modules", "39", LIMITS["shared"], len(shared)),
        Measure("of these in runtime, model, rules", "-", LIMITS["shared_core"], len(in_core)),
        Measure("of these outside of drivers", "-", 0, len(shared_outside_drivers())),
        Measure("modules with a fork hook", "16", LIMITS["forks"], len(fork_hooks())),
        Measure("functions over 50 lines", "0", 0, len(long_functions())),
        Measure("modules over 500 lines", "0", 0, sum(lines_of(name) > 500 for name in modules())),
    ]


def as_text(rows: list[Measure]) -> str:
    lines = [f"{'measure':<40}{'0.6.0':>10}{'limit':>10}{'now':>10}"]
    lines += [f"{m.name:<40}{m.before:>10}{m.limit:>10,}{m.value:>10,}{'' if m.is_kept else '  over'}" for m in rows]
    return "\n".join(lines)


def main() -> None:
    print(as_text(measures()))
    print(f"layer contracts: {layer_contracts()}; the walks: python -m tests.house.walks")
    if "--names" in sys.argv:
        for name, homes in sorted(shared_class_names().items()):
            print(f"{name}: {', '.join(re.sub('^pxrs.', '', home) for home in homes)}")
        print("one importer:", *lonely(), sep="\n  ")


if __name__ == "__main__":
    main()
