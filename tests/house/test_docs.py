"""The documents are executed: code blocks run, links lead somewhere, commands exist, generated pages are up to date."""

from __future__ import annotations

import ast
import inspect
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import textwrap
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import pytest
import typer

import pxrs
from pxrs.apps.cli.app import build
from pxrs.spark.read import columns, options
from pxrs.spark.read.given_options import SETTINGS
from pxrs.spark.write import writer as sink_options
from pxrs.testing.conformance import promises, run_suite
from tests.simulation.planted.bugs import BUGS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
SPARK = ROOT / "docs" / "spark.md"
DIRECTORIES = ROOT / "docs" / "directories.md"
SEALED = ROOT / "docs" / "reading-sealed.md"
SEALED_SPARK = ROOT / "docs" / "sealed" / "spark.md"
VIRTUAL = ROOT / "docs" / "virtual-partitions.md"
STREAMING = ROOT / "docs" / "streaming.md"
SPARK_USERS = ROOT / "docs" / "spark-users.md"
OPERATE = ROOT / "docs" / "operate.md"
RUN_ALONE = (SPARK, DIRECTORIES, SEALED_SPARK, VIRTUAL, STREAMING, SPARK_USERS, OPERATE)
NOT_RUN = "# not run"

pytestmark = pytest.mark.timeout(60)

PROMISES = (
    "single owner", "monotone", "fenced", "no loss", "bounded repeats", "order", "convergence", "minimal movement",
    "stable routing", "refuse loudly", "isolation", "visible once",
)  # fmt: skip


def is_superseded(path: Path) -> bool:
    """Whether this is a decision that another one has replaced: it may name what is not there any more."""
    return re.search(r"\A#.*\n\nSuperseded by ", text_of(path)) is not None


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of one language: the line where each begins, and its text."""
    text = text_of(path)
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def run_blocks(path: Path) -> dict[str, Any]:
    """Run all Python blocks of a page in one namespace; errors show the page's own lines."""
    names: dict[str, Any] = {"__name__": "page"}
    for page in pages_before(path):
        for line, code in blocks(page, "python"):
            if NOT_RUN not in code:
                exec(compile("\n" * line + code, str(page), "exec"), names)
    return names


def pages_before(path: Path) -> list[Path]:
    """The page, and before it the one that it goes on from."""
    return [SEALED, path] if path.parent == SEALED_SPARK.parent else [path]


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


class Shell:
    """One bash for all commands of a page: what runs in the background goes on from block to block."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._bash.__exit__(None, None, None)  # closes what it reads from, and waits for its end

    def run(self, commands: str) -> None:
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.write(f"{commands}\necho the block ends\n")
        self._bash.stdin.flush()
        while not (line := self._bash.stdout.readline()).endswith("the block ends\n"):
            assert line, f"bash has ended in:\n{commands}"
            print(line, end="", flush=True)
        print(line.removesuffix("the block ends\n"), end="", flush=True)


class Echo(io.StringIO):
    """Keeps what is printed, and passes it on at once."""

    def __init__(self, to: TextIO) -> None:
        super().__init__()
        self._to = to

    def write(self, text: str) -> int:
        self._to.write(text)
        self._to.flush()
        return super().write(text)


def run_page(path: Path, changes: dict[str, str]) -> None:
    """Do all that a page says, top to bottom, as its reader would: run code, save files, type commands.

    A block of text is what the block before it prints; … stands for anything.
    """
    names: dict[str, Any] = {"__name__": "page"}
    found = [(*block, language) for language in ("python", "sh", "text") for block in blocks(path, language)]
    printed = ""
    with Shell() as shell:
        for line, code, language in sorted(found):
            for old, new in changes.items():
                code = code.replace(old, new)
            if NOT_RUN in code:
                continue
            if language == "text":
                assert _fits(printed, code), f"{path}:{line}: this is printed:\n{printed}"
                continue
            with redirect_stdout(Echo(sys.stdout)) as said:
                _run_block((path, line), code, language, shell, names)
            printed = said.getvalue()


def _run_block(place: tuple[Path, int], code: str, language: str, shell: Shell, names: dict[str, Any]) -> None:
    path, line = place
    file = re.match(r"# (\w+\.py)\n", code)
    if language == "sh":
        shell.run(code)
    elif file:
        Path(file[1]).write_text(code, encoding="utf-8")
    else:
        exec(compile("\n" * line + code, str(path), "exec"), names)


def _fits(printed: str, expected: str) -> bool:
    pattern = re.escape(expected.strip()).replace("…", ".*")
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def run_in_another_process(call: str, directory: Path) -> str:
    """Do with a page what this call says, in a process with a group of its own; returns what was printed."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    quick = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "PXRS_LEASE_MS": "4000"}
    env = os.environ | quick | {"PATH": programs, "PYTHONPATH": f"{ROOT}{os.pathsep}."}
    page = subprocess.Popen(
        [sys.executable, "-c", f"from tests.house import test_docs as t; {call}"], cwd=directory, env=env,
        start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    with page:
        try:
            said: str = page.communicate(timeout=580)[0]
        finally:
            if page.returncode != 0:  # it may have left applications behind
                with suppress(ProcessLookupError):
                    os.killpg(page.pid, signal.SIGKILL)
    assert page.returncode == 0, said
    return said


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(180)
def test_the_page_about_directories_does_and_prints_what_it_says(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    run_page(DIRECTORIES, {})


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(180)
def test_the_page_for_operators_does_and_prints_what_it_says(tmp_path: Path) -> None:
    said = run_in_another_process("t.run_page(t.OPERATE, {})", tmp_path)
    assert "sent 1 message again" in said and "resumed all partitions of 'billing'" in said


def test_the_loggers_that_operators_are_told_of_exist() -> None:
    assert set(re.findall(r"^\| `(pxrs\.\w+)` \|", text_of(OPERATE), re.MULTILINE)) == logger_names() - {"pxrs"}


def test_a_page_that_prints_something_else_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\necho 1 and 2\n```\n```text\n1 … 2\n```\n```python\nprint(3)\n```\n```text\n4\n```\n")
    with pytest.raises(AssertionError, match=r"this is printed:\s+3"):
        run_page(page, {})


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-docs")
@pytest.mark.timeout(600)
def test_the_page_about_sealed_segments_in_spark_does_what_it_says(tmp_path: Path) -> None:
    run_in_another_process("t.run_blocks(t.SEALED_SPARK)", tmp_path)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-docs")
@pytest.mark.timeout(600)
def test_the_page_about_virtual_partitions_does_and_prints_what_it_says(tmp_path: Path) -> None:
    run_in_another_process("t.run_page(t.VIRTUAL, {})", tmp_path)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-docs")
@pytest.mark.timeout(600)
def test_the_page_about_streaming_does_what_it_says(tmp_path: Path) -> None:
    run_in_another_process("t.run_page(t.STREAMING, {})", tmp_path)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-docs")
@pytest.mark.timeout(600)
def test_the_page_for_spark_users_does_what_it_says(tmp_path: Path) -> None:
    said = run_in_another_process("t.run_page(t.SPARK_USERS, {})", tmp_path)
    assert "owns [0, 1, 2, 3] and was 1000 messages behind" in said


def test_the_options_that_spark_users_are_told_of_exist() -> None:
    right = re.findall(r"^\| .* \| (.*) \|$", text_of(SPARK_USERS).partition("## Options")[2], re.MULTILINE)
    left = re.findall(r"^\| (.*) \| the same", text_of(SPARK_USERS), re.MULTILINE)
    named = {name for line in (*right, *left) for name in re.findall(r"`((?:pxrs\.)?[a-z][\w.]*[A-Za-z])`", line)}
    kept = {name for name in named if "kafka" not in name and name not in ("earliest", "latest", "path")}
    assert len(kept) > 10 and kept <= {*option_names(), *SETTINGS}


LEAN = {"B C D": "B C", "in C D": "in C", "== 4 and": "== 3 and"}
"""Two more Spark applications instead of three, which the page admits."""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark-docs")
@pytest.mark.timeout(600)
def test_the_page_about_spark_does_what_it_says(tmp_path: Path) -> None:
    assert all(text_of(SPARK).count(words) == 1 for words in LEAN), "what is changed stands once on the page"
    said = run_in_another_process(f"t.run_page(t.SPARK, {LEAN!r})", tmp_path)
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
    assert "pxrs.logs.base" in imported
