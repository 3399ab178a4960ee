"""The library as one zip of sources, for ``--py-files``: how it reaches executors where it is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from pxrs.errors import NotFound, Refused

PACKAGES = ("pxrs", "pyspark_pxrs")
"""The library, and the name under which Spark finds ``format("pxrs")``."""


def py_files(path: str | os.PathLike[str] = "pxrs.zip") -> str:
    """Write the zip, and return its path: for ``--py-files``, or for the setting ``spark.submit.pyFiles``.

    It holds this version of PXRS and nothing else: executors must have pyarrow, numpy, xxhash, mmh3 and pandas. The
    same sources make the same bytes.
    """
    target = Path(path)
    if target.is_dir():
        raise Refused(f"{target} is a directory: name the zip to write, as in {target / 'pxrs.zip'}")
    if not target.parent.is_dir():
        raise NotFound(f"{target.parent}: no such directory, to hold {target.name}")
    aside = target.with_name(f".{target.name}.{os.getpid()}")  # a reader sees the old or the new
    try:
        with ZipFile(aside, "w", ZIP_DEFLATED) as archive:
            for name, file in sorted(_files()):
                archive.writestr(ZipInfo(name), file.read_bytes(), ZIP_DEFLATED)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    return str(target)


def _files() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        home = _home_of(package)
        for file in home.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield f"{package}/{file.relative_to(home).as_posix()}", file


def _home_of(package: str) -> Path:
    spec = find_spec(package)
    home = Path(spec.origin).parent if spec is not None and spec.origin else None
    if home is None or not home.is_dir():
        raise Refused(f"the sources of {package} are not in a directory ({home}): make the zip where PXRS is installed")
    return home
