"""The measures of the tree stay within their limits, and are measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import table
from tests.house.table import layer_contracts, measures, paragraphs, shared_class_names


def test_the_tree_stays_within_its_limits() -> None:
    over = [measure for measure in measures() if not measure.is_kept]
    assert not over, (over, paragraphs(), sorted(shared_class_names()))


def test_there_are_four_layer_contracts() -> None:
    assert layer_contracts() == 4


def test_what_is_measured_is_there() -> None:
    found = {measure.name: measure.value for measure in measures()}
    assert found["modules without testing"] > 100 and found["raw lines without testing"] > 20_000
    assert found["of these with one importer only"] > 5, "importers are found"


# ---- each measure counts what it is named for -----------------------------------------------------------------------


@pytest.fixture
def grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of its own in place of the product, still without modules."""
    monkeypatch.setattr(table, "ROOT", tmp_path)
    monkeypatch.setattr(table, "SOURCE", tmp_path / "src" / "pxrs")
    table.modules.cache_clear()
    yield table.SOURCE
    table.modules.cache_clear()


def write(source: Path, **modules: str) -> None:
    """Add modules: ``a__b="text"`` is ``a/b.py``."""
    for name, text in modules.items():
        path = source.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    table.modules.cache_clear()
    table.tree_of.cache_clear()


def counted() -> dict[str, int]:
    return {measure.name: measure.value for measure in measures()}


def test_a_folder_of_sixteen_entries_is_over(grown: Path) -> None:
    write(grown, **{f"io__m{number}": "" for number in range(15)})
    assert counted()["most entries in a folder"] == 15
    write(grown, io__one_more="")
    assert counted()["most entries in a folder"] == 16


def test_a_short_module_with_one_importer_is_a_paragraph(grown: Path) -> None:
    write(grown, io__short="X = 1\n" * 80, io__long="X = 1\n" * 81, rules__rule="X = 1\n", apps__verb="X = 1\n")
    write(grown, io__reader="from pxrs.io import long, short\nfrom pxrs.rules.rule import X\nimport pxrs.apps.verb\n")
    assert paragraphs() == ["pxrs.io.short"]
    write(grown, io__other="from pxrs.io.short import X\n")
    assert paragraphs() == [] and counted()["of these with one importer only"] == 2


def test_a_class_name_that_two_modules_use_is_counted_and_drivers_may_share_one(grown: Path) -> None:
    write(grown, stores__a="class Client: ...", stores__b="class _Client: ...", io__nats__client="class Client: ...")
    assert sorted(shared_class_names()) == ["Client"] and table.shared_outside_drivers() == []
    write(grown, runtime__client="class Client: ...")
    assert table.shared_outside_drivers() == [], "one of its homes alone is no driver"
    assert counted()["of these in runtime, model, rules"] == 1
    write(grown, spark__client="class Client: ...")
    assert table.shared_outside_drivers() == ["Client"]


def test_long_modules_long_functions_and_fork_hooks_are_counted(grown: Path) -> None:
    names = ("functions over 50 lines", "modules over 500 lines", "modules with a fork hook")
    page = "def f():\n" + "    pass\n" * 49
    write(grown, io__page=page, io__sitting="X = 1\n" * 500, testing__tool="X = 1\n")
    assert [counted()[name] for name in names] == [0, 0, 0]
    write(grown, io__page=page + "    pass\n", io__sitting="X = 1\n" * 501, io__hook="os.register_at_fork(f)\n")
    assert [counted()[name] for name in names] == [1, 1, 1]
    assert (counted()["modules without testing"], counted()["raw lines of testing"]) == (3, 1)
