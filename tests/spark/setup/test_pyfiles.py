"""The library as a zip of sources, and when a session must be told of its format."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zipfile import ZipFile

import pytest

import pxrs
from pxrs.errors import NotFound, Refused
from pxrs.spark.setup import register as formats
from pxrs.spark.setup.py_files import py_files
from pxrs.spark.setup.register import needs_registering


def test_the_zip_holds_all_sources_and_nothing_else(tmp_path: Path) -> None:
    with ZipFile(py_files(tmp_path / "pxrs.zip")) as archive:
        names = set(archive.namelist())
    home = Path(pxrs.__file__).parent
    sources = {f"pxrs/{path.relative_to(home).as_posix()}" for path in home.rglob("*.py")}
    assert sources | {"pyspark_pxrs/__init__.py", "pxrs/spark/setup/log4j2.properties"} <= names
    assert not any("__pycache__" in name or "dist-info" in name for name in names)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"missing: no such directory, to hold pxrs\.zip"):
        py_files(tmp_path / "missing" / "pxrs.zip")


def test_the_same_sources_make_the_same_bytes(tmp_path: Path) -> None:
    first, second = (Path(py_files(tmp_path / name)) for name in ("a.zip", "b.zip"))
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b.zip"], "nothing is left aside"


def test_the_zip_can_be_imported_and_makes_no_zip_itself(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import pxrs; from pxrs.spark.setup.py_files import py_files\n"
        "print(pxrs.__file__)\n"
        "try: py_files('again.zip')\n"
        "except Exception as error: print(error)\n"
    )
    zipped = py_files(tmp_path / "pxrs.zip")
    command = [sys.executable, "-I", "-S", "-c", code, zipped, sysconfig.get_path("purelib")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    home, refusal = done.stdout.splitlines()
    assert home == f"{zipped}/pxrs/__init__.py"
    assert "make the zip where PXRS is installed" in refusal and not (tmp_path / "again.zip").exists()


def test_a_package_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pxrs.spark.setup.py_files.PACKAGES", ("pxrs", "nowhere_at_all"))
    assert util.find_spec("nowhere_at_all") is None
    with pytest.raises(Refused, match="nowhere_at_all"):
        py_files(tmp_path / "pxrs.zip")
    assert list(tmp_path.iterdir()) == []


def session_on(master: str) -> Any:
    return cast(Any, SimpleNamespace(sparkContext=SimpleNamespace(master=master)))


@pytest.mark.parametrize(
    ("master", "needed"),
    [
        ("local", False), ("local[2]", False), ("local[*,3]", False), ("local-cluster[2,1,1024]", True),
        ("spark://h:7077", True), ("yarn", True), ("k8s://https://h", True),
    ],
)  # fmt: skip
def test_the_format_is_registered_where_executors_are_elsewhere(master: str, needed: bool) -> None:
    assert needs_registering(session_on(master)) is needed


def test_the_format_is_registered_where_the_library_is_in_a_zip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "__file__", "/somewhere/pxrs.zip/pxrs/spark/setup/register.py")
    assert needs_registering(session_on("local[2]"))
