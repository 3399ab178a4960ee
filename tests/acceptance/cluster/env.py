"""Pythons for executors on which PXRS is not installed: one that gets it by ``--py-files``, one that is packed."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

import pxrs

TASK_PACKAGES = ("pyarrow", "numpy", "xxhash", "mmh3", "pandas", "dateutil", "pytz", "tzdata", "six", "nats")
"""What tasks import besides PXRS: pandas (with three of its own) is Spark's wish, nats that of a log in JetStream."""
SOURCES = [Path(pxrs.__file__).parent, Path(pxrs.__file__).parent.with_name("pyspark_pxrs")]
_NOT_NEEDED = ("include", "tests", "__pycache__", "src")
"""Parts of packages that nobody imports."""


def bare_python(directory: Path) -> Path:
    """A Python with all that this one has, but PXRS, its metadata and PySpark, which Spark brings itself."""
    _fill(directory, [entry for entry in _installed() if not _is_own(entry.name)])
    python = directory / "bin" / "python"
    for module in ("pxrs", "pyspark_pxrs", "pyspark"):
        found = subprocess.run([python, "-c", f"import {module}"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in found.stderr, f"this Python must not have {module}"
    return python


def whole_environment(directory: Path) -> None:
    """For the driver's machine: what ``bare_python`` has, and PXRS."""
    _fill(directory, [*(entry for entry in _installed() if not _is_own(entry.name)), *SOURCES])


def packed_environment(directory: Path) -> Path:
    """``env.tar.gz``, as venv-pack makes it: copies of PXRS and of what its tasks import, and of nothing else."""
    home = directory / "to-pack"
    _fill(home, [*(entry for entry in _installed() if _is_needed(entry.name)), *SOURCES])
    packed = directory / "env.tar.gz"  # of a .tar Spark refuses links that lead out of it
    with tarfile.open(packed, "w:gz", dereference=True, compresslevel=0) as archive:
        archive.add(home / "lib", "lib", filter=_without_ballast)
        archive.dereference = False  # a Python that is a copy would not find its library
        for name in ("bin", "pyvenv.cfg"):
            archive.add(home / name, name)
    return packed


def _fill(directory: Path, entries: Iterable[Path]) -> None:
    site = _empty(directory)
    for entry in entries:
        (site / entry.name).symlink_to(entry)


def _empty(directory: Path) -> Path:
    """A virtual environment without any package; returns where they belong."""
    venv.create(directory, symlinks=True, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return directory / "lib" / version / "site-packages"


def _installed() -> Iterator[Path]:
    for place in {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}:
        yield from sorted(place.iterdir())


def _is_own(name: str) -> bool:
    return any(word in name for word in ("pxrs", "pyspark"))


def _is_needed(name: str) -> bool:
    """Packages, and the libraries and single files that belong to them."""
    return name.partition(".")[0] in TASK_PACKAGES


def _without_ballast(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if any(part in _NOT_NEEDED for part in Path(entry.name).parts[4:]) else entry
