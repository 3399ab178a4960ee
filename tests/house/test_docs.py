"""The documents are executed: code blocks run, links lead somewhere, commands exist, generated pages are up to date."""

from __future__ import annotations

import ast
import inspect
import os
import re
import runpy
import shlex
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

import pxrs
from pxrs.apps.cli.app import build
from pxrs.spark.read import columns, options
from pxrs.spark.read.given_options import SETTINGS
from pxrs.spark.write import writer as sink_options
from pxrs.testing.conformance import promises, run_suite
from tests.house.pages import (
    DIRECTORIES,
    OPERATE,
    ROOT,
    SEALED_SPARK,
    SPARK,
    SPARK_USERS,
    STREAMING,
    VIRTUAL,
    blocks,
    name_of,
    run_blocks,
    run_page,
    text_of,
)
from tests.simulation.planted.bugs import BUGS
from tests.tools.one_jvm import OneJvm

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
RUN_ALONE = (SPARK, DIRECTORIES, SEALED_SPARK, VIRTUAL, STREAMING, SPARK_USERS, OPERATE)

pytestmark = pytest.mark.timeout(60)

PROMISES = (
    "single owner", "monotone", "fenced", "no loss", "bounded repeats", "order", "convergence", "minimal movement",
    "stable routing", "refuse loudly", "isolation", "visible once",
)  # fmt: skip


def is_superseded(path: Path) -> bool:
    """Whether this is a decision that another one has replaced: it may name what is not there any more."""
    return re.search(r"\A#.*\n\nSuperseded by ", text_of(path)) is not None


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and settings that make no reader wait."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PXRS_LEASE_MS", "2000")
    monkeypatch.setenv("PXRS_COMMIT_INTERVAL_MS", "50")


# ---- code -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("path", [p for p in PAGES if p not in RUN_ALONE and blocks(p, "python")], ids=name_of)
def test_the_code_of_a_page_runs(path: Path) -> None:
    run_blocks(path)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(180)
def test_the_page_about_directories_does_and_prints_what_it_says(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    run_page(DIRECTORIES, {})


def test_the_loggers_on_the_page_for_operators_exist() -> None:
    assert set(re.findall(r"^\| `(pxrs\.\w+)` \|", text_of(OPERATE), re.MULTILINE)) == logger_names() - {"pxrs"}


def test_a_page_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho 1 and 2\n```\n```text\n1 … 2\n```\n```python\nprint(3)\n```\n```text\n4\n```\n")
    with pytest.raises(AssertionError, match=r"this is printed:\s+3"):
        run_page(page, {})


def in_one_jvm(test: Any) -> Any:
    """Marks of a test whose page is done in the process that they share, and on Spark over its one Java machine."""
    marks = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(600)]
    for mark in (*marks, pytest.mark.xdist_group("spark")):
        test = mark(test)
    return test


@in_one_jvm
def test_the_page_about_sealed_segments_in_spark_does_what_it_says(one_jvm: OneJvm) -> None:
    one_jvm.run("tests.house.pages:run_blocks_of", name_of(SEALED_SPARK), PXRS_LEASE_MS="4000")


@in_one_jvm
@pytest.mark.parametrize("path", [VIRTUAL, STREAMING], ids=name_of)
def test_a_page_about_spark_does_and_prints_what_it_says(path: Path, one_jvm: OneJvm) -> None:
    told_by(path, {}, one_jvm)


@in_one_jvm
def test_the_page_for_operators_does_and_prints_what_it_says(one_jvm: OneJvm) -> None:
    said = told_by(OPERATE, {}, one_jvm)
    assert "sent 1 message again" in said and "resumed all partitions of 'billing'" in said


@in_one_jvm
def test_the_page_for_spark_users_does_what_it_says(one_jvm: OneJvm) -> None:
    assert "owns [0, 1, 2, 3] and was 1000 messages behind" in told_by(SPARK_USERS, {}, one_jvm)


def told_by(path: Path, changes: dict[str, str], one_jvm: OneJvm) -> str:
    return one_jvm.run("tests.house.pages:run_page_of", name_of(path), changes, PXRS_LEASE_MS="4000")


def test_the_options_on_the_page_for_spark_users_exist() -> None:
    right = re.findall(r"^\| .* \| (.*) \|$", text_of(SPARK_USERS).partition("## Options")[2], re.MULTILINE)
    left = re.findall(r"^\| (.*) \| the same", text_of(SPARK_USERS), re.MULTILINE)
    named = {name for line in (*right, *left) for name in re.findall(r"`((?:pxrs\.)?[a-z][\w.]*[A-Za-z])`", line)}
    kept = {name for name in named if "kafka" not in name and name not in ("earliest", "latest", "path")}
    assert len(kept) > 10 and kept <= {*option_names(), *SETTINGS}


LEAN = {"B C D": "B C", "in C D": "in C", "== 4 and": "== 3 and"}
"""Two more Spark applications instead of three, which the page admits."""


@in_one_jvm
def test_the_page_about_spark_does_what_it_says(one_jvm: OneJvm) -> None:
    assert all(text_of(SPARK).count(words) == 1 for words in LEAN), "what is changed stands once on the page"
    said = told_by(SPARK, LEAN, one_jvm)
    [(sent, shown, different)] = re.findall(r"(\d+) orders were sent, (\d+) .* output, (\d+) different ones", said)
    assert int(sent) == int(shown) == int(different) > 5_000
    assert "1 passed" in said, "the test of the page's reader"


@pytest.mark.usefixtures("elsewhere")
def test_the_example_of_the_readme_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_blocks(ROOT / "README.md")
    assert sorted(names["handled"]) == sorted(f"order {number}" for number in range(100))
    assert capsys.readouterr().out == "100 orders handled\n"
    (_, code), *_ = blocks(ROOT / "README.md", "python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15


@pytest.mark.usefixtures("elsewhere")
def test_the_example_in_the_package_docstring_runs() -> None:
    """It ends with a consumer that would run for ever; one that is stopped by its handler stands in for it."""
    code = textwrap.dedent("\n".join(re.findall(r"^(?:    .*)?$", pxrs.__doc__ or "", flags=re.MULTILINE)))
    assert code.count(".run()") == 1
    names: dict[str, Any] = {"handled": []}
    stopping = "queue.consumer(group='billing', handler=handled.append)"
    changed = re.sub(r"^queue\.consumer.*$", f"consumer = {stopping}", code, flags=re.MULTILINE)
    exec(compile(changed, "pxrs.__doc__", "exec"), names)
    with names["queue"], names["consumer"] as consumer:
        while names["queue"].group("billing").describe().total_lag > 0:
            consumer.wait(0.02)
            consumer.check()
    assert [message.text for message in names["handled"]] == ["hello"]


def test_the_store_suite_of_the_contributing_page_is_green() -> None:
    suite = run_blocks(ROOT / "CONTRIBUTING.md")["TestMyStore"]
    assert run_suite(suite()) == {}
    assert len(promises(suite)) > 40


# ---- what the pages name exists -------------------------------------------------------------------------------------

PRESENT = [path for path in PAGES if not is_superseded(path)]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text_of(path))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", PRESENT, ids=name_of)
def test_named_files_exist(path: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w./-]*)`", text_of(path))
    assert [name for name in named if "NAME" not in name and not (ROOT / name).exists()] == []


def test_the_modules_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", text_of(ROOT / "ARCHITECTURE.md"))
    assert len(named) > 20
    assert [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "src/pxrs"))] == []


@pytest.mark.parametrize("path", PRESENT, ids=name_of)
def test_named_modules_and_objects_exist(path: Path) -> None:
    named = set(re.findall(r"`(pxrs(?:\.\w+)+)`", text_of(path))) - metadata_keys() - option_names() - logger_names()
    assert [name for name in sorted(named) if not _resolves(name)] == []


def option_names() -> set[str]:
    """Names that look like modules and are options of reads, streams and writes."""
    return {*options._KNOWN, *options._STREAM, *sink_options._KNOWN, *sink_options._BATCH_ONLY, *SETTINGS}


def logger_names() -> set[str]:
    """Names that look like modules and are loggers."""
    return {
        name
        for path in (ROOT / "src/pxrs").rglob("*.py")
        for name in re.findall(r'getLogger\("([\w.]+)"\)', text_of(path))
    }


def metadata_keys() -> set[str]:
    """Names that look like modules and are keys in the metadata of batches."""
    return {
        key for path in (ROOT / "src/pxrs/logs").rglob("*.py") for key in re.findall(r'"(pxrs\.\w+)"', text_of(path))
    }


def _resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        module = ".".join(parts[:cut])
        try:
            if find_spec(module) is None:
                continue
        except ModuleNotFoundError:
            continue
        found: Any = __import__(module, fromlist=["_"])
        for part in parts[cut:]:
            found = getattr(found, part, None)
        return found is not None
    return False


def typed(path: Path) -> list[list[str]]:
    """The commands that a page shows, one for each line, as a shell would split them."""
    lines = re.findall(r"^pxrs [^\n|<>&]*", "\n".join(code for _, code in blocks(path, "(?:sh)?")), re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines if not line.rstrip().endswith("\\")]


@pytest.mark.parametrize("path", [page for page in PAGES if typed(page)], ids=name_of)
def test_the_commands_of_a_page_can_be_typed(path: Path) -> None:
    """Each is taken apart as the program would, and not run."""
    wrong = {" ".join(words): error for words in typed(path) if (error := usage_error(words))}
    assert wrong == {}


def usage_error(words: list[str]) -> str:
    """What is wrong with a command; "" if nothing is."""
    command: Any = typer.main.get_command(build())
    context = None
    try:
        while True:
            context = command.make_context("pxrs", words, parent=context)
            if not hasattr(command, "resolve_command"):
                return ""
            _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    except typer.Exit:  # --help and --version end at once
        return ""
    except Exception as error:
        return getattr(error, "message", None) or str(error)


def test_a_command_that_cannot_be_typed_is_recognised() -> None:
    assert usage_error(["group", "describe", "file:./orders", "billing", "--watch", "2"])
    assert usage_error(["no-such-command"]) and not usage_error(["group", "list", "file:./orders"])


@pytest.mark.parametrize("path", PRESENT, ids=name_of)
def test_named_commands_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    made = set(re.findall(r"(?:`|^)make ([a-z-]+)", text_of(path), re.MULTILINE))
    assert made <= targets
    modules = set(re.findall(r"python -m ([\w.]+)", text_of(path)))
    assert [module for module in sorted(modules) if find_spec(module) is None] == []


def test_planted_bugs_that_are_cited_exist() -> None:
    cited = {
        int(number)
        for path in DECISIONS
        if not is_superseded(path)
        for words in re.findall(r"planted bugs? ([\d, and]+)", text_of(path))
        for number in re.findall(r"\d+", words)
    }
    assert cited and cited <= {bug.number for bug in BUGS}


def test_a_name_that_does_not_exist_is_noticed() -> None:
    assert _resolves("pxrs.testing.faults.checker.check") and _resolves("pxrs.rules")
    assert not _resolves("pxrs.testing.faults.checker.nothing") and not _resolves("pxrs.nowhere.at_all")


# ---- pages that are made from the code ------------------------------------------------------------------------------


def test_generated_pages_are_up_to_date() -> None:
    pages: dict[str, str] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["pages"]()
    stale = [name for name, text in pages.items() if text_of(ROOT / "docs" / name) != text]
    assert not stale, "run: python -m docs.generate"


def test_every_setting_is_in_the_reference() -> None:
    named = set(re.findall(r"^\| `(\w+)`", text_of(ROOT / "docs" / "settings.md"), re.MULTILINE))
    assert named == set(pxrs.Settings().as_dict())


def test_the_choices_of_settings_are_in_the_reference() -> None:
    lines = dict(re.findall(r"^\| `(\w+)` \|(.*)$", text_of(ROOT / "docs" / "settings.md"), re.MULTILINE))
    assert "One of `'fsync'`, `'flush'`." in lines["durability"]
    assert "One of `'all'`, `'unconsumed'`." in lines["retain"] and "One of" not in lines["lease_ms"]


def test_the_readme_speaks_of_this_version() -> None:
    assert f"| PXRS {pxrs.__version__.rpartition('.')[0]} |" in text_of(ROOT / "README.md")


def test_every_option_and_column_of_the_spark_source_is_in_its_table() -> None:
    first, second = re.findall(r"^\| (?:option|column) \|.*\n((?:\|.*\n)+)", text_of(SPARK), re.MULTILINE)
    assert re.findall(r"^\| `([\w.]+)`", first, re.MULTILINE) == list(options._KNOWN)
    assert re.findall(r"^\| `(\w+)`", second, re.MULTILINE) == list(columns.TYPES)


def test_the_tree_of_errors_is_complete() -> None:
    drawn = set(re.findall(r"[├└]── (\w+)", text_of(ROOT / "docs" / "errors.md")))
    assert drawn == {name for name, kind in vars(pxrs.errors).items() if inspect.isclass(kind)} - {"PxrsError"}


def test_the_readme_names_every_promise_once() -> None:
    named = re.findall(r"^\d+\. \*\*([a-z ]+)\*\*", text_of(ROOT / "README.md"), re.MULTILINE)
    assert tuple(named) == PROMISES


def test_the_checker_speaks_of_promises_only() -> None:
    source = text_of(ROOT / "src" / "pxrs" / "testing" / "faults" / "checker.py")
    spoken = set(re.findall(r'_broken\("([a-z ]+)"', source))
    assert spoken and spoken <= set(PROMISES)


def test_the_picture_of_the_rooms_is_that_of_the_contracts() -> None:
    layers = re.search(r"^layers =\n((?:    .+\n)+)", text_of(ROOT / ".importlinter"), re.MULTILINE)
    assert layers is not None
    rooms = [re.findall(r"\w+", line) for line in layers[1].splitlines() if "__main__" not in line]
    picture = blocks(ROOT / "ARCHITECTURE.md", "")[0][1].splitlines()
    drawn = [re.findall(r"\w+", re.split(r"\s{2,}", line.strip())[0]) for line in picture]
    assert drawn == rooms


# ---- decisions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DECISIONS, ids=name_of)
def test_a_decision_has_its_four_parts_on_one_page(path: Path) -> None:
    text = text_of(path)
    headings = [heading.lower() for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert headings == ["context", "decision", "consequences", "how to check that it still holds"]
    assert len(text.splitlines()) <= 60
    assert text.startswith(f"# {path.name[:4]}: ")


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


def test_adr_0003_only_drivers_of_asynchronous_clients_are_asynchronous() -> None:
    found = [
        name_of(path)
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "async_thread.py" and path.parent.name not in ("jetstream", "nats")
        if any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(ast.parse(text_of(path))))
    ]
    assert not found


def test_adr_0005_only_these_modules_write_rows() -> None:
    """A new writer of rows is a decision: whoever swaps past ``runtime/registry/rows.py`` goes round the rules."""
    source = ROOT / "src" / "pxrs"
    writers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if not {"stores", "testing"} & set(path.relative_to(source).parts[:-1])
        and re.search(r"\bSwap\(", text_of(path))
    }
    by_rules = {
        "runtime/registry/rows.py",
        "runtime/registry/registry.py",
        "runtime/registry/wake_row.py",
        "runtime/dead_letters/box.py",
    }
    of_the_queue = {"runtime/queue/log_registry.py"}
    by_operators = {
        "runtime/group/admin.py",
        "apps/cli/commands/registry/rows.py",
        "apps/cli/commands/registry/copy.py",
    }
    assert writers == by_rules | of_the_queue | by_operators


def test_adr_0008_partition_threads_know_no_registry() -> None:
    tree = ast.parse(text_of(ROOT / "src" / "pxrs" / "runtime" / "consumer" / "worker.py"))
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {
        name for name in imported if name.startswith(("pxrs.runtime.registry.registry", "pxrs.stores", "pxrs.io.sql"))
    }
    assert "pxrs.errors" in imported, "imports are found"
