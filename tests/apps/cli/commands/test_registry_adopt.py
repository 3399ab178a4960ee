"""The registry of a log, from the shell: refused by name, adopted, carried along; looking makes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import pxrs as library
from pxrs.apps.cli.commands.registry.rows import write_rows
from pxrs.errors import Refused
from pxrs.stores.base import Store, Swap
from tests.apps.cli.helpers import QUEUE, Pxrs, make_queue

OWN, OTHER = "sqlite:own.db", "sqlite:other.db"
SEEK = ["group", "seek", QUEUE, "billing", "--to-latest", "--execute"]


@pytest.fixture
def ready(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> Pxrs:
    """A queue that is consumed by a group in a registry apart."""
    monkeypatch.delenv("PXRS_REGISTRY", raising=False)
    make_queue(pxrs, messages=10)
    assert consume(pxrs, "--registry", OWN).code == 0
    return pxrs


def consume(pxrs: Pxrs, *more: str):  # type: ignore[no-untyped-def]  # a Result, as pxrs gives it
    return pxrs("consume", QUEUE, "-g", "billing", "--until-end", *more)


def names(tmp_path: Path) -> set[str]:
    """All files but those that SQLite keeps while a database is open, for as long as a connection lives."""
    found = (str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    return {name for name in found if not name.endswith(("-wal", "-shm"))}


def test_a_forgotten_registry_is_refused_and_nothing_is_consumed_again(ready: Pxrs, tmp_path: Path) -> None:
    before = names(tmp_path)
    shown = consume(ready)
    assert shown.code == 1 and shown.out == ""
    assert "belongs to sqlite:" in shown.err and "own.db" in shown.err and "--registry URL" in shown.err
    assert names(tmp_path) == before, "nothing is made beside the log"


def test_the_environment_names_it_for_all_commands(ready: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PXRS_REGISTRY", OWN)
    assert ready("group", "list", QUEUE).out.count("billing") == 1
    assert consume(ready).code == 0


def test_health_fails_and_nothing_is_changed_under_another_registry(ready: Pxrs, tmp_path: Path) -> None:
    """Without a look at the record, health would say OK: there is no group in a registry that is not the log's."""
    before = names(tmp_path)
    create = ["group", "create", QUEUE, "audit"]
    for command in (["health", QUEUE], ["dlq", "retry", QUEUE, "billing", "--all"], SEEK, create):
        shown = ready(*command)
        assert shown.code == 1 and "queue 'orders' belongs to sqlite:" in shown.err, command
    assert names(tmp_path) == before
    assert ready("health", QUEUE, "--registry", OWN).code == 0
    assert ready(*SEEK, "--registry", OWN).code == 0


def test_an_unknown_log_and_a_registry_that_is_not_named_are_answered_for_the_shell(pxrs: Pxrs) -> None:
    shown = pxrs("log", "ls", "kafka:orders")
    assert shown.code == 2 and "no driver for 'kafka'" in shown.err and "there are: file, memory, nats" in shown.err
    assert "--registry sqlite:PATH in the shell" in pxrs("log", "ls", "nats://127.0.0.1:1/orders").err


def test_adopting_says_what_it_means(ready: Pxrs, tmp_path: Path) -> None:
    shown = ready("registry", "adopt", QUEUE, "--registry", OTHER)
    assert shown.code == 0 and "belongs to sqlite:" in shown.out and "other.db" in shown.out
    assert "own.db" in shown.err and "groups there are refused from now on" in shown.err
    assert "starts without checkpoints" in shown.err
    assert consume(ready, "--registry", OWN).code == 1
    assert len(consume(ready, "--registry", OTHER).out.splitlines()) == 10
    assert "already" in ready("registry", "adopt", QUEUE, "--registry", OTHER).out
    assert ready("registry", "adopt", QUEUE, "--registry", OWN).code == 0
    assert consume(ready, "--registry", OWN).out == ""


def test_a_copy_of_all_groups_carries_the_id(ready: Pxrs) -> None:
    assert ready("registry", "copy", OWN, OTHER, "--move").code == 0
    assert consume(ready, "--registry", OTHER).out == ""
    assert consume(ready, "--registry", OWN).code == 1, "the groups are gone from there, and the id with them"


def recorded() -> str:
    with library.open(QUEUE, create=False) as queue:
        own = queue.log.registry()
    return own.where.rpartition("/")[2] if own else ""


def test_the_log_says_where_its_registry_was_moved_to(ready: Pxrs) -> None:
    assert ready("registry", "copy", OWN, OTHER, "--move").code == 0 and recorded() == "own.db"
    assert consume(ready, "--registry", OTHER).code == 0 and recorded() == "other.db"
    assert "other.db" in consume(ready, "--registry", OWN).err


def test_a_copy_that_is_adopted_is_recorded_and_the_first_one_does_not_come_back(ready: Pxrs) -> None:
    assert ready("registry", "copy", OWN, OTHER).code == 0
    shown = ready("registry", "adopt", QUEUE, "--registry", OTHER)
    assert "other.db" in shown.out and "groups there are refused from now on" in shown.err and recorded() == "other.db"
    assert consume(ready, "--registry", OWN).code == 1 and recorded() == "other.db"
    assert consume(ready, "--registry", OTHER).code == 0


@pytest.mark.parametrize(("first", "second"), [(OWN, OTHER), (OTHER, OWN)])
def test_after_a_copy_the_first_consumer_decides_and_the_other_registry_is_refused(
    ready: Pxrs, first: str, second: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Both had the id of the log, and both were consumed: every message twice."""
    assert ready("registry", "copy", OWN, OTHER).code == 0
    assert ready("produce", QUEUE, stdin="one more\n").code == 0
    assert consume(ready, "--registry", first).out == "one more\n"
    shown = consume(ready, "--registry", second)
    assert (shown.code, shown.out) == (1, "") and f"belongs to sqlite:{Path.cwd()}/{first[7:]} (id " in shown.err
    assert recorded() == first[7:]
    assert any("it is a copy of" in text for text in caplog.messages) is (first == OTHER)
    assert consume(ready, "--registry", first).code == 0, "and again"
    assert ready("registry", "adopt", QUEUE, "--registry", second).code == 0
    assert consume(ready, "--registry", second).out == "one more\n" and consume(ready, "--registry", first).code == 1


@pytest.mark.parametrize("move", [False, True], ids=["copy", "move"])
def test_wherever_a_copy_ends_half_way_one_registry_takes_members_and_it_has_the_checkpoints(
    ready: Pxrs, monkeypatch: pytest.MonkeyPatch, move: bool, tmp_path: Path
) -> None:
    """Killed at each of its writes. Whoever is asked first, and is not refused, goes on behind what was consumed."""
    words = ["registry", "copy", OWN, OTHER, *(["--move"] if move else [])]
    written = last = 0

    def write(store: Store, changes: list[Swap]) -> None:
        nonlocal written
        if written == last:
            raise Refused("killed")
        written += 1
        write_rows(store, changes)

    monkeypatch.setattr("pxrs.apps.cli.commands.registry.copy.write_rows", write)
    shutil.copytree(tmp_path, kept := tmp_path.with_name(f"{tmp_path.name}-kept"))
    is_whole = False
    while not is_whole:
        for order in ((OWN, OTHER), (OTHER, OWN)):
            shutil.rmtree(tmp_path / "orders")
            for path in tmp_path.glob("*.db*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
            written = 0
            is_whole = ready(*words).code == 0
            codes = [consume(ready, "--registry", registry) for registry in order]
            assert [shown.out for shown in codes] == ["", ""] and [shown.code for shown in codes].count(0) == 1
        last += 1
    assert last > (4 if move else 3)


def test_so_do_a_dump_that_is_loaded_elsewhere_and_the_registry_that_it_is_of(ready: Pxrs) -> None:
    rows = ready("registry", "dump", QUEUE, "--registry", OWN).out
    assert ready("registry", "load", QUEUE, "--registry", OTHER, stdin=rows).code == 0
    assert consume(ready, "--registry", OTHER).code == 0 and consume(ready, "--registry", OWN).code == 1
    assert ready("registry", "load", QUEUE, "--registry", OTHER, stdin=rows).code == 1, "rows differ: it goes on"


def test_a_moved_registry_is_one_alone_also_after_a_copy(ready: Pxrs) -> None:
    third = "sqlite:third.db"
    assert ready("registry", "copy", OWN, OTHER).code == 0
    assert ready("registry", "copy", OWN, third, "--move").code == 0
    assert consume(ready, "--registry", third).code == 0 and recorded() == "third.db"
    assert consume(ready, "--registry", OTHER).code == 1


def test_a_registry_is_not_copied_to_itself(ready: Pxrs, tmp_path: Path) -> None:
    before = ready("registry", "dump", QUEUE, "--registry", OWN).out
    for same in (OWN, f"sqlite:{tmp_path}/own.db"):
        shown = ready("registry", "copy", OWN, same, "--move")
        assert shown.code == 2 and "are the same registry" in shown.err
    assert ready("registry", "dump", QUEUE, "--registry", OWN).out == before != ""


def test_a_group_that_is_refused_here_is_refused_once(ready: Pxrs, caplog: pytest.LogCaptureFixture) -> None:
    shown = ready("group", "create", QUEUE, "audit")
    assert shown.code == 1 and shown.err.count("belongs to") == 1 and not caplog.records


def test_a_copy_of_one_group_of_several_leaves_the_log_where_it_is(ready: Pxrs) -> None:
    ready("consume", QUEUE, "-g", "audit", "--until-end", "--registry", OWN)
    shown = ready("registry", "copy", OWN, OTHER, "--group", "billing")
    assert shown.code == 0 and "queue 'orders' has other groups in FROM (audit): its log belongs to FROM" in shown.err
    assert consume(ready, "--registry", OTHER).code == 1 and consume(ready, "--registry", OWN).code == 0


def test_a_registry_that_knows_the_queue_keeps_its_id_and_the_log_must_be_told(ready: Pxrs) -> None:
    assert ready("registry", "adopt", QUEUE, "--registry", OTHER).code == 0
    assert ready("registry", "adopt", QUEUE, "--registry", OWN).code == 0
    shown = ready("registry", "copy", OWN, OTHER)
    assert shown.code == 0 and "pxrs registry adopt LOG --registry sqlite:other.db" in shown.err
    assert consume(ready, "--registry", OTHER).code == 1
    assert ready("registry", "adopt", QUEUE, "--registry", OTHER).code == 0
    assert consume(ready, "--registry", OTHER).out == ""


def test_a_dump_carries_the_id_back_into_a_lost_registry(ready: Pxrs, tmp_path: Path) -> None:
    rows = ready("registry", "dump", QUEUE, "--registry", OWN).out
    assert any(json.loads(line)["key"].endswith("/_registry/id") for line in rows.splitlines())
    for path in tmp_path.glob("own.db*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "it was wiped" in consume(ready, "--registry", OWN).err
    assert ready("registry", "load", QUEUE, "--registry", OWN, stdin=rows).code == 0
    assert consume(ready, "--registry", OWN).out == ""


def test_no_groups_of_a_registry_that_is_not_the_logs_is_an_error(
    ready: Pxrs, caplog: pytest.LogCaptureFixture
) -> None:
    shown = ready("group", "list", QUEUE)
    assert shown.code == 1 and shown.out == "" and caplog.text.count("own.db") + shown.err.count("own.db") == 1
    assert ready("group", "list", QUEUE, "--registry", OWN).code == 0


def test_a_dump_of_a_registry_that_is_not_the_logs_is_refused(ready: Pxrs) -> None:
    shown = ready("registry", "dump", QUEUE)
    assert shown.code == 1 and shown.out == "" and "own.db" in shown.err and "registry.db beside" in shown.err


@pytest.mark.parametrize("named", ["option", "environment"])
def test_a_queue_belongs_to_the_registry_that_init_was_told(
    pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """The first group that forgot it made a registry beside the log, and the log belonged to that one."""
    monkeypatch.delenv("PXRS_REGISTRY", raising=False)
    with monkeypatch.context() as context:
        if named == "environment":
            context.setenv("PXRS_REGISTRY", OWN)
        more = ["--registry", OWN] if named == "option" else []
        assert pxrs("init", QUEUE, *more).code == 0 and recorded() == "own.db"
        assert pxrs("init", QUEUE, *more).code == 0, "a second time it is the same"
    shown = consume(pxrs)
    assert shown.code == 1 and "own.db" in shown.err and not Path("orders/registry.db").exists()
    shown = pxrs("init", QUEUE, "--registry", OTHER)
    assert shown.code == 1 and "own.db" in shown.err and not Path("other.db").exists()
    assert consume(pxrs, "--registry", OWN).code == 0


def test_init_records_no_registry_that_ends_with_its_process(pxrs: Pxrs) -> None:
    assert pxrs("init", QUEUE, "--registry", "memory:").code == 0 and recorded() == ""


@pytest.mark.parametrize("verb", ["init", "produce"])
def test_help_says_when_a_registry_is_recorded(pxrs: Pxrs, verb: str) -> None:
    said = " ".join(pxrs(verb, "--help").out.split())
    assert "the first group says which" in said or "records none: the first group does" in said


def test_warnings_of_the_library_say_who_speaks(ready: Pxrs, pxrs_process) -> None:  # type: ignore[no-untyped-def]  # the fixture's type
    shown = pxrs_process("group", "describe", QUEUE, "billing")
    assert shown.code == 1 and shown.err.startswith("pxrs: queue 'orders' belongs to sqlite:")


@pytest.mark.parametrize(
    "command",
    [
        ["log", "ls", QUEUE],
        ["log", "cat", QUEUE],
        ["log", "verify", QUEUE],
        ["health", QUEUE],
        ["group", "list", QUEUE],
        ["group", "describe", QUEUE, "billing"],
        ["group", "members", QUEUE, "billing"],
        SEEK,
        ["group", "resume", QUEUE, "billing"],
        ["group", "delete", QUEUE, "billing", "--force"],
        ["member", "evict", QUEUE, "billing", "A"],
        ["member", "drain", QUEUE, "billing", "A"],
        ["dlq", "show", QUEUE, "billing", "0"],
        ["log", "export", QUEUE, "./out", "-p", "9"],
        ["log", "where", QUEUE, "k"],
        ["group", "create", QUEUE, "billing", "--at", "nowhere.json"],
        ["group", "create", QUEUE, "a/b"],
        ["registry", "adopt", QUEUE, "--registry", "memory:"],
        ["registry", "adopt", "file:./absent"],
        ["import", "file:./new", "absent.txt"],
        ["group", "pause", QUEUE, "billing"],
        ["dlq", "ls", QUEUE, "billing"],
        ["dlq", "retry", QUEUE, "billing", "--all"],
        ["registry", "dump", QUEUE],
        ["registry", "copy", "sqlite:orders/registry.db", OTHER],
        ["registry", "copy", "lockfiles:nowhere", OTHER],
        ["registry", "load", QUEUE, "absent.jsonl"],
        ["init", QUEUE, "--partitions", "9"],
        ["init", "file:./new", "--registry", "sqlite:no/such/place.db"],
        ["init", "file:./new", "--registry", "nowhere:x"],
        ["consume", QUEUE, "-g", "a/b"],
        ["consume", QUEUE, "-g", "billing", "--member", "-"],
        ["consume", QUEUE, "-g", "billing", "--from", "tomorrow"],
        ["import", "file:./new", "lines.txt", "--from-checkpoint", "1", "--group", "a/b"],
        ["log", "ls", "kafka:orders"],
    ],
    ids=" ".join,
)
def test_looking_and_what_is_refused_leave_nothing_behind(
    pxrs: Pxrs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.delenv("PXRS_REGISTRY", raising=False)
    make_queue(pxrs, messages=3)
    (tmp_path / "lines.txt").write_text("a\nb\n")
    before = names(tmp_path)
    pxrs(*command)
    assert names(tmp_path) == before


def test_a_producer_with_the_registry_that_was_copied_deletes_nothing(ready: Pxrs) -> None:
    shown = ready("registry", "copy", OWN, OTHER)
    assert shown.code == 0 and "nothing is deleted from the log" in shown.err
    assert ready("registry", "copy", OWN, OTHER).code == 0, "a second copy is the same"
    settings = library.Settings(retain="unconsumed", delete_delay_ms=0)
    for registry in (OWN, OTHER):
        with library.open("file:orders", registry=registry, settings=settings) as queue:
            assert "another registry is a copy of this one" in queue._belonging(settings).why_not_trim()
    assert consume(ready, "--registry", OTHER).out == ""
    for registry, refused in ((OWN, "belongs to sqlite:"), (OTHER, "")):
        with library.open("file:orders", registry=registry, settings=settings) as queue:
            assert refused in queue._belonging(settings).why_not_trim()
            assert bool(refused) == bool(queue._belonging(settings).why_not_trim())
    assert ready("registry", "adopt", QUEUE, "--registry", OWN).code == 0
    assert consume(ready, "--registry", OWN).code == 0 and consume(ready, "--registry", OTHER).code == 1
    with library.open("file:orders", registry=OWN, settings=settings) as queue:
        assert not queue._belonging(settings).why_not_trim()
