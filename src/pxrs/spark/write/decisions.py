"""The decisions about writes, as files: what was decided and what is done outlives the processes of a write.

Commits of one producer may run at the same time: the driver's death does not stop a commit that is under way, and its
successor begins with the same one. A decision is made once, by a link that only the first can set; to finish renames
it, which nobody can do twice. So both work off the same files, and the log tells their appends apart by their stamps.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from pxrs.errors import Damaged
from pxrs.io.clock import SystemClock
from pxrs.io.durable import make_directories, sync_path, write_file
from pxrs.spark.write.paths import ONCE, WritePaths

KEEP_SECONDS = 24 * 3600
"""Staged rows without a decision are deleted when nothing was written for this long."""

_STAGED = re.compile(r"\d+")
_STATE = re.compile(r"(\d+)\.(json|done)")


class Decision(NamedTuple):
    """These files, in this order, are what is stored; ``after`` is where each partition ended before."""

    files: tuple[str, ...]
    rows: int
    time_us: int
    after: dict[int, int]

    @property
    def text(self) -> str:
        return json.dumps({"format": 1, **self._asdict()})

    @classmethod
    def parse(cls, text: str, path: str) -> Decision:
        try:
            found = json.loads(text)
            after = {int(partition): int(end) for partition, end in found["after"].items()}
            return cls(tuple(found["files"]), int(found["rows"]), int(found["time_us"]), after)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{path}, which says what a write consists of, cannot be read: {error}") from error


class Ledger:
    """The decisions of one producer."""

    def __init__(self, root: str, producer: str) -> None:
        self._root = root
        self._producer = producer
        self.folder = os.path.join(root, producer)

    def place(self, sequence: int) -> WritePaths:
        return WritePaths(self._root, self._producer, sequence)

    def _states(self) -> Iterator[tuple[int, str]]:
        for name in _names_in(self.folder):
            if found := _STATE.fullmatch(name):
                yield int(found[1]), found[2]

    def last_done(self) -> int:
        """The highest number that is stored; -1 if none is."""
        return max((number for number, state in self._states() if state == "done"), default=-1)

    def pending(self) -> list[int]:
        """The numbers that are decided and not known to be stored, in order."""
        decided = sorted(number for number, state in self._states() if state == "json")
        done = self.last_done()  # asked afterwards: what was finished in between is not pending
        return [number for number in decided if number > done]

    def read(self, sequence: int) -> Decision | None:
        """Read the decision for a number; also after it was done, if that was the last one."""
        place = self.place(sequence)
        for path in (place.decided, place.done):
            with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
                return Decision.parse(file.read(), path)
        return None

    def decide(self, sequence: int, decision: Decision) -> bool:
        """Decide, durably; False if somebody else has done so before."""
        place = self.place(sequence)
        make_directories(place.staged)
        aside = os.path.join(place.staged, f"{secrets.token_hex(12)}.decision")
        write_file(aside, decision.text.encode(), sync=True)
        try:
            os.link(aside, place.decided)
        except FileExistsError:
            return False
        finally:
            os.unlink(aside)
        sync_path(self.folder)
        if self.last_done() >= sequence:  # somebody decided and finished since this one looked: it is void
            with suppress(FileNotFoundError):
                os.unlink(place.decided)
            return False
        return True

    def holds(self, sequence: int) -> bool:
        """Whether a decision is still to be carried out."""
        return os.path.lexists(self.place(sequence).decided) and self.last_done() < sequence

    def finish(self, sequence: int) -> None:
        """Note that all of it is stored, and clear away its files."""
        place = self.place(sequence)
        with suppress(FileNotFoundError):  # somebody else has finished it
            os.rename(place.decided, place.done)
            sync_path(self.folder)
        if self._producer.startswith(ONCE):
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            self._clear_up_to(sequence)

    def _clear_up_to(self, sequence: int) -> None:
        for number, state in self._states():
            if number < sequence or (number == sequence and state == "json"):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, f"{number}.{state}"))
        for name in _names_in(self.folder):
            if _STAGED.fullmatch(name) and int(name) <= sequence:
                shutil.rmtree(os.path.join(self.folder, name), ignore_errors=True)

    def give_up(self, sequence: int) -> None:
        """Remove what was staged for a number, unless it is decided: then it is still to be stored."""
        if self._producer.startswith(ONCE):
            shutil.rmtree(self.folder, ignore_errors=True)
        elif not self.holds(sequence):
            shutil.rmtree(self.place(sequence).staged, ignore_errors=True)
            with suppress(OSError):  # there is more in it
                os.rmdir(self.folder)


def sweep(root: str) -> None:
    """Remove what dead writers have staged and can never commit. Decisions stay, and what is done is remembered."""
    oldest = SystemClock().wall() - KEEP_SECONDS
    for producer in _names_in(root):
        folder = os.path.join(root, producer)
        if _changed_at(folder) > oldest:
            continue
        ledger = Ledger(root, producer)
        for name in _names_in(folder):
            if _STAGED.fullmatch(name) and _newest(os.path.join(folder, name)) < oldest:
                ledger.give_up(int(name))


def _newest(folder: str) -> float:
    return max(_changed_at(path) for path in (folder, *(os.path.join(folder, name) for name in _names_in(folder))))


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:  # it is being cleared away by somebody else
        return float("inf")


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
