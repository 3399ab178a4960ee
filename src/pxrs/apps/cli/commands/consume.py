"""``pxrs consume``: print messages as a member of a group, or run a command for each."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pxrs.apps.cli import values as words
from pxrs.apps.cli.message_format import FORMAT_HELP, Shape, shape
from pxrs.apps.cli.options import (
    JoinGroup,
    OnFailure,
    OwnName,
    RegistryUrl,
    StartAt,
    UntilEnd,
    Url,
    Verbose,
    WrongUsage,
    opened,
)
from pxrs.apps.cli.output import note
from pxrs.errors import Refused, StopConsuming
from pxrs.runtime.views.tables import counted

if TYPE_CHECKING:
    from pxrs.model import Message
    from pxrs.runtime.consumer.consumer import Consumer
    from pxrs.runtime.delivery import Context
    from pxrs.runtime.ports.counters import Counters

_LOOK_SECONDS = 0.2
_ENDING = ("stopping", "stopped", "fenced")
_CAUSE_LENGTH = 500
_CANNOT_RUN = (126, 127)
"""Exit codes of a shell that may not run a command, or does not find it."""


def consume(
    url: Url,
    group: JoinGroup,
    member: OwnName = None,
    start: StartAt = "earliest",
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, metavar="N", help="Stop after N messages.")] = None,
    until_end: UntilEnd = False,
    output: Annotated[str, typer.Option("--output", "-o", help=FORMAT_HELP)] = "value",
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="CMD", help="Run this for each message, its value on stdin; 0 means done."),
    ] = None,
    tries: Annotated[int | None, typer.Option("--tries", min=1, metavar="N", help="How often to try --exec.")] = None,
    on_failure: OnFailure = None,
    verbose: Verbose = False,
    registry: RegistryUrl = None,
    old_output: Annotated[str | None, typer.Option("--format", "-f", hidden=True)] = None,
) -> None:
    """Join a group and process messages: print them, or give each to a command.

    Runs until Ctrl-C (a clean leave) unless --max or --until-end ends it. A command that keeps failing sends the
    message to the dead letters; one that the shell cannot run (126, 127) ends this member, and no message is lost by
    it. It finds PXRS_KEY, PXRS_PARTITION and PXRS_OFFSET in its environment.
    """
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="pxrs: %(message)s")
    if command is not None and not command.strip():
        raise WrongUsage("--exec '': name a command, or leave --exec out to print the messages")
    if command is None and tries is not None:
        raise WrongUsage("--tries says how often to try --exec: give a command, or leave it out")
    if command is not None:
        refuse_unknown(command)
    given: dict[str, Any] = {"tries": tries, "on_failure": on_failure}
    begin, printing = words.start(start), shape(old_output or output)
    with opened(url, registry) as queue:
        settings = queue.settings.with_(**{name: value for name, value in given.items() if value is not None})
        work = Execute(command) if command is not None else Print(printing)
        session = Session(work, settings.tries, most)
        consumer = queue.consumer(
            group, session.handle, member, start=begin, settings=settings,
            revoked=session.revoked,
        )  # fmt: skip
        session.run(consumer, until_end)
        sum_up(consumer.tally, queue.name, group)
    if session.trouble:
        raise Refused(session.trouble)


def sum_up(tally: Counters, queue: str, group: str) -> None:
    """The last word of a member that has left."""
    kept = f", {tally.dead_lettered} went to the dead letters" if tally.dead_lettered else ""
    skipped = f", {tally.skipped} {'was' if tally.skipped == 1 else 'were'} skipped" if tally.skipped else ""
    handled = counted(tally.handled - tally.dead_lettered - tally.skipped, "message")
    note(f"{group} on {queue}: handled {handled}{kept}{skipped}")


# ---- a member's work ------------------------------------------------------------------------------------------------


class CommandFailed(Exception):
    """The command of ``--exec`` did not end with 0."""


class NotToBlame(Exception):
    """No message can be worked on, so this one is not to blame. The consumer ends; the message is not done."""


class CannotRun(CommandFailed, NotToBlame):
    """The command of ``--exec`` did not start."""


def refuse_unknown(command: str) -> None:
    """Refuse a command whose first word the shell does not know. What is no plain word is left to the shell."""
    word = command.split()[0]
    if not re.fullmatch(r"[\w./+-]+", word) or "(" in command:
        return
    if not (shutil.which(word) if "/" in word else _is_known(word)):
        raise WrongUsage(f"--exec {command!r}: there is no command {word!r} that this user may run")


def _is_known(word: str) -> bool:
    """Whether the shell has such a command, or finds it."""
    asked = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", word]
    return subprocess.run(asked, stdout=subprocess.DEVNULL).returncode == 0


class Print:
    """Writes each message as one line."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        line = self._shape(message) + b"\n"
        try:
            with self._lock:
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()  # a message counts as processed when it is out, not when it is buffered
        except BrokenPipeError:
            raise
        except OSError as error:
            raise NotToBlame(f"cannot write to stdout: {error.strerror}") from error


class Execute:
    """Runs a shell command for each message."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __call__(self, message: Message) -> None:
        place = {"PXRS_PARTITION": str(message.partition), "PXRS_OFFSET": str(message.offset)}
        key = {} if message.key is None else {"PXRS_KEY": message.key.decode(errors="surrogateescape")}
        ended = subprocess.run(
            self._command, shell=True, input=message.value, stderr=subprocess.PIPE, env=os.environ | place | key
        )
        sys.stderr.buffer.write(ended.stderr)
        sys.stderr.buffer.flush()
        if ended.returncode != 0:
            said = ended.stderr.decode(errors="replace").strip()[-_CAUSE_LENGTH:]
            how = f"exit code {ended.returncode}" + (f": {said}" if said else "") + f" ({self._command})"
            if ended.returncode in _CANNOT_RUN:
                raise CannotRun(f"--exec cannot be run: {how}")
            raise CommandFailed(how)


class Session:
    """Counts what was taken and what is finished, and ends the consumer when it is enough."""

    def __init__(self, work: Callable[[Message], None], tries: int, most: int | None) -> None:
        self._work = work
        self._tries = tries
        self._most = most
        self._taken = 0
        self._finished = 0
        self._running: set[int] = set()
        self._over = False
        self.trouble = ""
        """Why no message can be printed, or given to the command of ``--exec``, if that has ended it."""
        self._consumer: Consumer | None = None
        self._changed = threading.Condition()

    # ---- called by the partitions' threads ---------------------------------------------------------------------

    def handle(self, message: Message, context: Context) -> None:
        if message.partition not in self._running:
            self._take(message.partition)
        try:
            self._work(message)
        except BrokenPipeError:
            self._end()
            raise StopConsuming from None
        except NotToBlame as error:
            self.trouble = f"{error}; the message at hand is not done"
            self._end()
            raise StopConsuming from None
        except Exception:
            if context.attempt >= self._tries:  # the failure policy takes care of it: nobody will see it again
                self._finish(message)
            raise
        self._finish(message)

    def revoked(self, partition: int) -> None:
        with self._changed:
            if partition in self._running:  # it was taken away between two tries
                self._running.discard(partition)
                self._taken -= 1
            self._changed.notify_all()

    def _take(self, partition: int) -> None:
        """Take one of the messages that --max allows. When all are taken, wait whether one is given back."""
        with self._changed:
            while self._most is not None and self._taken >= self._most and not self._is_ending():
                self._changed.wait(_LOOK_SECONDS)
            if self._is_ending():
                raise StopConsuming
            self._taken += 1
            self._running.add(partition)

    def _finish(self, message: Message) -> None:
        with self._changed:
            self._finished += 1
            self._running.discard(message.partition)
            self._over = self._over or self._finished == self._most
            self._changed.notify_all()

    def _is_ending(self) -> bool:
        return self._over or (self._consumer is not None and self._consumer.state in _ENDING)

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    # ---- called by the command -----------------------------------------------------------------------------------

    def run(self, consumer: Consumer, until_end: bool) -> None:
        """Run until a signal, an error, enough messages, or the end of what is there now."""
        self._consumer = consumer
        watcher = threading.Thread(target=self._watch, args=(consumer,), daemon=True)
        watcher.start()
        try:
            consumer.run(until_end)
        finally:
            self._end()
            watcher.join()

    def _watch(self, consumer: Consumer) -> None:
        with self._changed:
            while not self._over:
                self._changed.wait()
        consumer.stop()
