"""Where Spark is started from: its Python processes find Spark's package with its compiled code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from py4j import version
from pyspark.sql import SparkSession

from pxrs.spark.setup.fast_home import quick_home


def test_the_home_leads_to_the_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = quick_home()
    assert home is not None and home == quick_home() and home.startswith(str(tmp_path))
    assert (Path(home) / "bin" / "spark-submit").is_file() and any((Path(home) / "jars").glob("spark-core_*.jar"))
    path = os.pathsep.join(map(str, (Path(home) / "python" / "lib").iterdir()))
    command = [
        sys.executable,
        "-c",
        "import pyspark, py4j; print(pyspark.__spec__.cached); print(py4j.__spec__.cached)",
    ]
    said = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True).stdout
    for compiled in said.splitlines():
        assert compiled.startswith(home) and compiled.endswith(".pyc"), "and not compiled anew from an archive"
        assert Path(compiled).exists()


def test_another_py4j_than_that_of_the_archive_does_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(version, "__version__", "0.1")
    home = quick_home()
    assert home is not None
    [archive] = (Path(home) / "python" / "lib").glob("py4j-*.zip")
    assert archive.is_file()


def test_a_spark_that_somebody_has_chosen_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert quick_home() is None


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_workers_are_started_from_there(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__spec__.cached)

    found = spark.sparkContext.parallelize([0], 1).map(where).first()
    assert found.endswith(".pyc") and Path(found).exists()
