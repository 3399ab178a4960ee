"""A home for Spark from which Python processes start quickly.

Spark puts its ``python/lib/pyspark.zip`` first on the path of every Python process that it starts, and that of py4j
behind it. The archives hold sources only, so each process compiles them anew, for more than a second: each worker, and
each streaming query. In this home the same names are directories that lead to the installed packages, with their
compiled code.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from importlib import util
from pathlib import Path

from py4j import version

from pxrs.spark.setup.java import caches

_SHARED = ("bin", "sbin", "jars", "conf", "data", "examples", "licenses", "kubernetes")
_ARCHIVE = "pyspark.zip"
_LAYOUT = b"2"
"""What is in such a home; another layout is another directory."""


def quick_home() -> str | None:
    """The directory to set as ``SPARK_HOME`` for a JVM on this machine; None if Spark is better left as it is: it was
    not installed as a Python package, or somebody has said where it is."""
    spec = util.find_spec("pyspark")
    if "SPARK_HOME" in os.environ or spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).resolve().parent
    libraries = package / "python" / "lib"
    if not (libraries / _ARCHIVE).is_file() or not (package / "jars").is_dir():
        return None
    for cache in caches():
        with suppress(OSError):
            return str(_made(cache / f"spark-{_mark(package)}", package, libraries))
    return None


def _mark(package: Path) -> str:
    return hashlib.sha256(_LAYOUT + str(package).encode()).hexdigest()[:12]


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
    if archive.name == f"py4j-{version.__version__}-src.zip":
        path.mkdir(exist_ok=True)
        _link(path / "py4j", Path(version.__file__).resolve().parent)
    else:
        _link(path, archive)


def _link(path: Path, target: Path) -> None:
    if target.exists():
        with suppress(FileExistsError):
            path.symlink_to(target)
