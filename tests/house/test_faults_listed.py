"""Each fault of the catalogue that this part of PXRS answers for has a test that carries its number in its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
NUMBERS = (*range(1, 72), *range(73, 80))
"""Ownership, leases, rebalances and checkpoints: B-01 to B-27; the file log: B-28 to B-39; the registry's stores: B-40
to B-60; the log on JetStream: B-61 and B-62; keys, names, settings and poison: B-63 to B-71; Spark: B-73 to B-79."""


def names_of_tests() -> Iterator[str]:
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node.name


def numbers_in(name: str) -> set[int]:
    """``test_b08_b09_...`` covers two."""
    found = re.match(r"test((?:_b\d\d)+)_", name)
    return {int(number) for number in re.findall(r"\d\d", found.group(1))} if found else set()


def test_every_fault_has_a_test_with_its_number() -> None:
    covered = {number for name in names_of_tests() for number in numbers_in(name)}
    assert [f"test_b{number:02d}_..." for number in NUMBERS if number not in covered] == [], "no test is named so"


def test_numbers_are_read_from_names() -> None:
    assert numbers_in("test_b08_b09_no_session_locks") == {8, 9}
    assert numbers_in("test_names_of_b66") == set()
