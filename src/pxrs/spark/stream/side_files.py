"""Side files: the processes of one Spark application share facts of a running batch, on the driver's machine only.

The source process writes a *sheet* when Spark asks it for the partitions of a batch: which ranges are read, and under
which epochs; after a restart these are others than those in Spark's offset log. The committer at the sink, in the
driver or in a writer's process, reads it there, and leaves a *sink report*: that it commits, and what it has committed.

When it joins, the source also says where its log and its registry are: a writer knows nothing but where to write to.
An address may hold a password, so all of this is for the eyes of one user only.

The directory belongs to one JVM. A driver that comes back from the dead has another one than its successor, and never
reads what is meant for that.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pxrs.errors import Damaged, Refused, masked_url
from pxrs.io.process import boot_id, status_of
from pxrs.model import Owner, Range
from pxrs.rules.json_fields import BadField, flag, items, mapping, parse, text, text_or_none, whole
from pxrs.spark.stream.offsets import Planned, range_of

T = TypeVar("T")
Identity = tuple[str, int]
"""The identity of a plan: the life of the member that made it, and its number in that life."""


class Sheet(NamedTuple):
    """The way to carry out a planned batch: the life of the member, and the ranges with their epochs."""

    plan: Identity
    life: str
    ranges: tuple[Range, ...]
    """The ranges with their present epochs, without those of other members."""
    dropped: tuple[int, ...] = ()

    def owner(self, planned: Planned) -> Owner:
        return Owner(planned.member, self.life)


class SinkReport(NamedTuple):
    """The report of a sink that commits by itself: whether it has output to publish, and which plan is committed."""

    has_output: bool
    done: Identity | None = None


class SourceConfig(NamedTuple):
    """The configuration of a source: its log, its registry if that is elsewhere, and settings by their names."""

    log: str
    registry: str | None
    settings: dict[str, Any]

    def __repr__(self) -> str:
        return f"Places({masked_url(self.log)!r})"  # never a password


class SideFiles:
    """The files about one member of one group, in the directory of one JVM."""

    def __init__(self, jvm: int, planned: Planned) -> None:
        self._directory = _directory_of(jvm)
        name = sha256(f"{planned.log}/{planned.group}/{planned.member}".encode()).hexdigest()[:20]
        self._sheet, self._sink_report = self._directory / f"{name}.json", self._directory / f"{name}.sink"
        self._places = self._directory / f"{name}.places"

    @classmethod
    def of_ancestor(cls, planned: Planned) -> SideFiles | None:
        """Those of the JVM to which this process belongs; Spark may have started it through another one."""
        jvm = _jvm_above()
        return None if jvm is None else cls(jvm, planned)

    def write_places(self, places: SourceConfig) -> None:
        _write(self._places, places._asdict())

    def places(self) -> SourceConfig | None:
        return _checked(self._places, _places)

    def write_sheet(self, sheet: Sheet) -> None:
        _write(self._sheet, sheet._asdict())

    def sheet(self) -> Sheet | None:
        return _checked(self._sheet, _sheet)

    def write_sink_report(self, report: SinkReport) -> None:
        _write(self._sink_report, report._asdict())

    def sink_report(self) -> SinkReport | None:
        return _checked(self._sink_report, _sink_report)

    def remove(self) -> None:
        for path in (self._sheet, self._sink_report, self._places):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # other queries of this JVM are still there
            self._directory.rmdir()


def has_members_beside() -> bool:
    """Whether the JVM to which this process belongs has a source that is a member of a group."""
    return _jvm_above() is not None


def _jvm_above() -> int | None:
    """The JVM that has started this process, if one of its sources has left files."""
    home = _home()
    with suppress(OSError):  # the directory is somebody else's: nothing of ours is in it
        return next((pid for pid in _ancestors() if (home / _name_of(pid)).is_dir()), None)
    return None


def _sheet(found: dict[str, Any]) -> Sheet:
    ranges = [items("ranges", part, 4) for part in items("ranges", found["ranges"])]
    parts = tuple(range_of(whole("ranges", number), rest) for number, *rest in ranges)
    dropped = tuple(whole("dropped", number) for number in items("dropped", found["dropped"]))
    return Sheet(_identity("plan", found["plan"]), text("life", found["life"]), parts, dropped)


def _sink_report(found: dict[str, Any]) -> SinkReport:
    done = found["done"]
    return SinkReport(flag("has_output", found["has_output"]), None if done is None else _identity("done", done))


def _places(found: dict[str, Any]) -> SourceConfig:
    registry, settings = text_or_none("registry", found["registry"]), mapping("settings", found["settings"])
    return SourceConfig(text("log", found["log"]), registry, settings)


def _identity(name: str, pair: Any) -> Identity:
    life, number = items(name, pair, 2)
    return text(name, life), whole(name, number)


def _directory_of(jvm: int) -> Path:
    """Made if it is not there, for nobody's eyes but this user's; those of JVMs that are gone are cleared away."""
    home = _home()
    _make_private(home)
    directory = home / _name_of(jvm)
    if not directory.exists():
        _sweep(home)
    _make_private(directory)
    return directory


def _home() -> Path:
    return Path(tempfile.gettempdir(), f"pxrs-{os.getuid()}")


def _make_private(directory: Path) -> None:
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Refused(f"{directory} must be a directory of this user that nobody else can write to: remove it")


def _name_of(pid: int) -> str:
    """Process numbers come again; with the time of their start they do not."""
    try:
        started = status_of(pid).started
    except OSError:  # no such process, or a system without /proc
        started = 0
    return f"jvm-{_here()}-{pid}-{started}"


@cache
def _here() -> str:
    """The namespace of process ids: temporary directories can be shared by machines, and by containers."""
    parts = [platform.node()]
    with suppress(OSError):
        parts += [f"{boot_id()}\n", os.readlink("/proc/self/ns/pid")]
    return sha256("\n".join(parts).encode()).hexdigest()[:12]


def _ancestors() -> Iterator[int]:
    """The parent of this process, its parent, and so on; where that is unknown, the parent alone."""
    pid = os.getppid()
    while pid > 1:
        yield pid
        try:
            pid = status_of(pid).parent
        except OSError:
            return


def _sweep(home: Path) -> None:
    if not Path("/proc/self/stat").exists():
        return
    for directory in home.glob(f"jvm-{_here()}-*-*"):
        if _name_of(int(directory.name.split("-")[2])) != directory.name:
            shutil.rmtree(directory, ignore_errors=True)


def _write(path: Path, values: dict[str, Any]) -> None:
    """Write a file as a whole: a reader sees the old or the new."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    for directory in (path.parent.parent, path.parent):  # another query of this JVM, that ended, may have removed it
        if not directory.exists():
            _make_private(directory)
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(values, file)
    aside.replace(path)


def _checked(path: Path, build: Callable[[dict[str, Any]], T]) -> T | None:
    """Read a file and check every field; None if it is not there."""
    try:
        return build(mapping("it", parse(path.read_bytes())))
    except FileNotFoundError:
        return None
    except (BadField, KeyError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Damaged(f"{path} is damaged: {why}; stop the query, remove the file, and start it again") from None
