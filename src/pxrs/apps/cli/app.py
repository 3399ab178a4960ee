"""The command line ``pxrs``: all commands in one table, and how an error becomes a line and an exit code."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand

from pxrs.apps.cli.commands import consume, dlq, health, metrics, produce
from pxrs.apps.cli.commands import import_queue as adopt
from pxrs.apps.cli.commands import init as create
from pxrs.apps.cli.commands.group import create as group_create
from pxrs.apps.cli.commands.group import seek
from pxrs.apps.cli.commands.group import show as group
from pxrs.apps.cli.commands.log import check as log_check
from pxrs.apps.cli.commands.log import export as log_export
from pxrs.apps.cli.commands.log import show as log
from pxrs.apps.cli.commands.log import tail as log_tail
from pxrs.apps.cli.commands.log import where as log_where
from pxrs.apps.cli.commands.registry import copy as registry_copy
from pxrs.apps.cli.commands.registry import rows as registry
from pxrs.apps.cli.commands.run import pyfiles
from pxrs.apps.cli.commands.run import run as run_pipeline
from pxrs.apps.cli.commands.work.command import work
from pxrs.apps.cli.options import QueueCommand
from pxrs.apps.demo import command as demo
from pxrs.errors import FORBIDDEN, BadName, BadSetting, BadUrl, PxrsError, disk_text, masked

_WRONG_USAGE = 2
_TYPED_WRONGLY = (BadUrl, BadSetting, BadName)
"""Errors of what was typed, not of what is there."""


class Verb(NamedTuple):
    """A command: its words, its function, and an example that its help shows."""

    words: str
    function: Callable[..., None]
    example: str
    kind: type[TyperCommand] = QueueCommand


VERBS = (
    Verb("init", create.init, "pxrs init file:./orders --partitions 8"),
    Verb("produce", produce.produce, "pxrs produce file:./orders orders.jsonl --format json --key-field account"),
    Verb("consume", consume.consume, "pxrs consume file:./orders --group billing --exec ./bill.sh"),
    Verb("work", work, "pxrs work app:handle file:./orders --group billing --processes 4", TyperCommand),
    Verb("run", run_pipeline, "pxrs run pipeline.py --queue file:./orders --group billing", TyperCommand),
    Verb("group create", group_create.create, "pxrs group create file:./orders audit --at latest"),
    Verb("group list", group.list_groups, "pxrs group list file:./orders"),
    Verb("group describe", group.describe, "pxrs group describe file:./orders billing --fail-if-lag 1000"),
    Verb("group members", group.members, "pxrs group members file:./orders billing -o json"),
    Verb("group seek", seek.seek, "pxrs group seek file:./orders billing --by-duration 1h --execute"),
    Verb("group pause", group.pause, "pxrs group pause file:./orders billing --partition 3"),
    Verb("group resume", group.resume, "pxrs group resume file:./orders billing"),
    Verb("group delete", group.delete, "pxrs group delete file:./orders billing"),
    Verb("member evict", group.evict, "pxrs member evict file:./orders billing A"),
    Verb("member drain", group.drain, "pxrs member drain file:./orders billing A"),
    Verb("log ls", log.ls, "pxrs log ls file:./orders"),
    Verb("log cat", log.cat, "pxrs log cat file:./orders --partition 3 --offset -10 -o '%o %k %v'"),
    Verb("log where", log_where.where, "pxrs log where acct-42 file:./orders", TyperCommand),
    Verb("log tail", log_tail.tail, "pxrs log tail file:./orders --partition 3 -n 5"),
    Verb("log verify", log_check.verify, "pxrs log verify file:./orders"),
    Verb("log repair", log_check.repair, "pxrs log repair file:./orders"),
    Verb("log export", log_export.export, "pxrs log export file:./orders ./messages --as files"),
    Verb("log seal", log_check.seal, "pxrs log seal file:./orders"),
    Verb("dlq ls", dlq.ls, "pxrs dlq ls file:./orders billing"),
    Verb("dlq show", dlq.show_letter, "pxrs dlq show file:./orders billing 0"),
    Verb("dlq retry", dlq.retry, "pxrs dlq retry file:./orders billing --all"),
    Verb("import", adopt.import_, "pxrs import file:./orders old.jsonl -f json --from-checkpoint 500 --group billing"),
    Verb("registry dump", registry.dump, "pxrs registry dump file:./orders > rows.jsonl"),
    Verb("registry adopt", registry_copy.adopt, "pxrs registry adopt file:./orders --registry sqlite:registry.db"),
    Verb("registry copy", registry_copy.copy, "pxrs registry copy sqlite:registry.db etcd://127.0.0.1:2379/pxrs"),
    Verb("registry load", registry.load, "pxrs registry load file:./orders rows.jsonl"),
    Verb("health", health.health, "pxrs health file:./orders"),
    Verb("metrics", metrics.metrics, "pxrs metrics file:./orders --listen 0.0.0.0:9100"),
    Verb("spark pyfiles", pyfiles, "pxrs spark pyfiles pxrs.zip", TyperCommand),
    Verb("demo", demo.demo, "pxrs demo --engine spark", TyperCommand),
)

_FAMILIES = {
    "group": "Look at consumer groups, and move them.",
    "member": "Put a member out of its group.",
    "log": "Look at stored messages, and look after their files.",
    "dlq": "The dead letters: messages that a group could not process.",
    "registry": "The rows of the registry, and which registry a log belongs to.",
    "spark": "Get ready for a Spark cluster.",
}


def _examples(lines: Sequence[str]) -> str:
    # \b keeps the help formatter from joining these lines.
    return "\b\n" + "\n".join(["Examples:" if len(lines) > 1 else "Example:", *(f"  {line}" for line in lines)])


def _about(
    debug: Annotated[  # noqa: ARG001 - is here for --help; ``run`` finds it wherever it was written
        bool, typer.Option("--debug", help="Show the stack of errors.")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Share one queue between many consumers, safely.

    A queue is a URL, as in file:./orders. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 too much lag.
    """
    if version:
        import pxrs

        print(pxrs.__version__)
        raise typer.Exit


def build() -> typer.Typer:
    """The command line, made from the table."""
    plain: dict[str, Any] = {"rich_markup_mode": None, "add_completion": False, "pretty_exceptions_enable": False}
    examples = _examples([verb.example for verb in VERBS])
    app = typer.Typer(**plain | {"add_completion": True}, no_args_is_help=True, epilog=examples)
    app.callback(invoke_without_command=True)(_about)
    families: dict[str, typer.Typer] = {}
    for verb in VERBS:
        family, _, name = verb.words.rpartition(" ")
        if family and family not in families:
            own = [v.example for v in VERBS if v.words.startswith(f"{family} ")]
            families[family] = typer.Typer(**plain, no_args_is_help=True, epilog=_examples(own))
            app.add_typer(families[family], name=family, help=_FAMILIES[family])
        home = families[family] if family else app
        home.command(name, cls=verb.kind, epilog=_examples([verb.example]))(verb.function)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command; errors become one line on stderr and an exit code."""
    debug = "--debug" in arguments
    if logging.lastResort is not None:  # warnings of the library, where nobody has set logging up
        logging.lastResort.setFormatter(logging.Formatter("pxrs: %(message)s"))
    code = _run(arguments, debug)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output is gone (``| head``)
        _drop_output()
    except OSError as error:
        _drop_output()
        return code or _failed(_plain(error, "stdout"), debug)
    return code


def _run(arguments: Sequence[str], debug: bool) -> int:
    try:
        words = [word for word in arguments if word != "--debug"]
        code = build()(words, prog_name="pxrs", standalone_mode=False)  # else the framework prints errors as they are
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # ``| head`` has seen enough: that is no failure
            _drop_output()
            return 0
        return end.code if isinstance(end.code, int) else 1
    except PxrsError as error:
        return _failed(str(error), debug, _WRONG_USAGE if isinstance(error, _TYPED_WRONGLY) else 1)
    except OSError as error:
        return _failed(_plain(error, "stdout" if _cannot_print() else ""), debug)
    except Exception as error:
        if hasattr(error, "show"):
            return _misused(error)
        again = "" if debug else "; `pxrs --debug ...` shows where"
        return _failed(f"unexpected {type(error).__name__}: {error}{again}", debug)
    return code if isinstance(code, int) else 0


def _misused(error: Any) -> int:
    """Print what the framework says of wrong words, with passwords hidden: the words may be a URL."""
    text = io.StringIO()
    error.show(text)
    print(masked(text.getvalue()), end="", file=sys.stderr)
    return int(error.exit_code)


def _failed(text: str, debug: bool, code: int = 1) -> int:
    if debug:
        print(masked(traceback.format_exc()), end="", file=sys.stderr)
    print(f"pxrs: error: {masked(text)}", file=sys.stderr)
    return code


def _plain(error: OSError, where: str = "") -> str:
    """The system's error and its path, without the number and the quotes of Python's text."""
    name = error.filename or where
    if error.errno in FORBIDDEN:
        return disk_text(error, name)
    return f"{name}: {error.strerror}" if name and error.strerror else str(error.strerror or error)


def _cannot_print() -> bool:
    """Whether what was printed cannot be written out: it stays in the buffer, and fails again."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Drop buffered output: writing it would fail again when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
