"""Tricks with Spark 4.3 that no API of Spark offers. All of them are off with ``PXRS_PLAIN_SPARK=1``.

| | what it saves | without it |
|---|---|---|
| ``quick_home``: processes import Spark from directories | 1 s of each new query | each process compiles Spark |
| ``RowsWithPlan``: small batches go to the JVM with their plan | half the time of one | a task reads them |
| ``do_not_wait``: workers acknowledge tasks at once | 40 ms and more of each task | the JVM waits for them |
| ``show_to_streams``: streaming sources see ``--py-files`` | an installation of PXRS | Spark looks elsewhere |

``tests/spark/test_spark_internals.py`` and ``read/test_wire.py`` test each of them, and run streams without them; ADR
0044 has the figures.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Any

import pyarrow as pa

VARIABLE = "PXRS_PLAIN_SPARK"


def is_plain() -> bool:
    """Whether Spark is to be used as its API offers it. Processes on the driver's machine inherit it."""
    return os.environ.get(VARIABLE) == "1"


# ---- a home with compiled code --------------------------------------------------------------------------------------
# Spark puts its ``python/lib/pyspark.zip`` first on the path of every Python process that it starts, and that of py4j
# behind it. The archives hold sources only, so each worker and each streaming query compiles them anew, for more than a
# second. In this home the same names are directories that lead to the installed packages, with their compiled code.


_SHARED = ("bin", "sbin", "jars", "conf", "data", "examples", "licenses", "kubernetes")
_ARCHIVE = "pyspark.zip"
_LAYOUT = b"2"
"""The layout of such a home; another layout gets another directory."""


def quick_home(caches: Iterable[Path]) -> str | None:
    """The directory to set as ``SPARK_HOME`` for a JVM on this machine, in the first of these that can be written to.

    None if Spark is better left as it is: it was not installed as a Python package, or somebody has said where it is.
    """
    spec = util.find_spec("pyspark")
    if is_plain() or "SPARK_HOME" in os.environ or spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).resolve().parent
    libraries = package / "python" / "lib"
    if not (libraries / _ARCHIVE).is_file() or not (package / "jars").is_dir():
        return None
    name = f"spark-{hashlib.sha256(_LAYOUT + str(package).encode()).hexdigest()[:12]}"
    for cache in caches:
        with suppress(OSError):
            return str(_made(cache / name, package, libraries))
    return None


def _made(home: Path, package: Path, libraries: Path) -> Path:
    """Links alone. Of two that start at once each finds what the other has made."""
    inside = home / "python" / "lib"
    (inside / _ARCHIVE).mkdir(parents=True, exist_ok=True)
    _link(inside / _ARCHIVE / "pyspark", package)
    for name in _SHARED:
        _link(home / name, package / name)
    for archive in libraries.glob("py4j-*.zip"):
        _instead_of(archive, inside / archive.name)
    return home


def _instead_of(archive: Path, path: Path) -> None:
    """The installed py4j, if it is the one in the archive; else the archive itself."""
    from py4j import version

    if archive.name == f"py4j-{version.__version__}-src.zip":
        path.mkdir(exist_ok=True)
        _link(path / "py4j", Path(version.__file__).resolve().parent)
    else:
        _link(path, archive)


def _link(path: Path, target: Path) -> None:
    if target.exists():
        with suppress(FileExistsError):
            path.symlink_to(target)


# ---- rows that go to the JVM with their plan -------------------------------------------------------------------------


class RowsWithPlan:
    """A streaming reader that can hand Spark the rows of a small batch together with its plan: no task reads them.

    Spark takes such rows only of a reader of its own. This one says that it is of that class as long as it has rows to
    hand over; a Spark that does not ask has its tasks read them.
    """

    handed: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]  # the one that every object has could be set
    def __class__(self) -> type:
        return type(self) if self.handed is None else (_of_spark() or type(self))

    @property
    def can_hand_over(self) -> bool:
        return _of_spark() is not None

    def getCache(self, start: Any, end: Any) -> Iterator[pa.RecordBatch] | None:  # noqa: ARG002, N802 - Spark's name
        """The rows of the batch that was just planned, if they were read here."""
        handed, self.handed = self.handed, None
        return None if handed is None else iter(handed)


def _of_spark() -> type | None:
    """Spark's own class; None in a Spark in which it has another name."""
    if is_plain():
        return None
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
    except ImportError:
        return None
    return _SimpleStreamReaderWrapper


# ---- the connection between a Python worker and its JVM -------------------------------------------------------------
# Spark leaves both ends as the system makes them. The JVM sends a task in two parts, and keeps the second, a small one,
# until the first is acknowledged; the worker's system waits with that for 40 ms, in case there was an answer to send
# along. Every task of every Python source pays for it.


_ACKNOWLEDGE_NOW = getattr(socket, "TCP_QUICKACK", None)  # Linux alone has it
_DESCRIPTORS = "/proc/self/fd"


def do_not_wait() -> None:
    """Acknowledge now what came in, so that the rest of the task comes; and send what is ready without waiting either.

    For a worker that has got the first part: the system falls back into its habit after a while.
    """
    if _ACKNOWLEDGE_NOW is None or is_plain():
        return
    for descriptor in _descriptors():
        with suppress(OSError):  # no connection by TCP; or closed since: the one that the list was read with
            _hasten(descriptor, _ACKNOWLEDGE_NOW)


def _descriptors() -> list[int]:
    try:
        return list(map(int, os.listdir(_DESCRIPTORS)))
    except OSError:  # a container that does not show it
        return []


def _hasten(descriptor: int, acknowledge_now: int) -> None:
    if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, acknowledge_now, 1)


# ---- the files of an application, where streaming sources look for them ---------------------------------------------


_STREAMING = "streaming_job"
"""The directory where Spark's source processes look for the files of an application, beside the one for tasks."""


def show_to_streams(root: Path, names: list[str]) -> None:
    """Copy files for streams: Spark names another directory to the process of a streaming source than to its tasks."""
    for name in [] if is_plain() else names:
        link = root / _STREAMING / name
        link.parent.mkdir(exist_ok=True)
        if not link.exists() and (root / name).exists():
            link.symlink_to(root / name)
