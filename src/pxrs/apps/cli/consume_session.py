"""The session of ``pxrs consume``: what it does with each message, and when it stops."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pxrs.apps.cli.message_format import Shape
from pxrs.apps.cli.options import WrongUsage
from pxrs.errors import StopConsuming

if TYPE_CHECKING:
    from pxrs.model import Message
    from pxrs.runtime.consumer.consumer import Consumer
    from pxrs.runtime.delivery import Context

_LOOK_SECONDS = 0.2
_ENDING = ("stopping", "stopped", "fenced")
_CAUSE_LENGTH = 500
_CANNOT_RUN = (126, 127)
"""Exit codes of a shell that may not run a command, or does not find it."""


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
