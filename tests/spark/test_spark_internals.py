"""Each trick with Spark's internals, one by one; and streams work the same without all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from py4j import version
from pyspark.sql import SparkSession

from pxrs.spark.spark_internals import VARIABLE, quick_home, show_to_streams


def test_the_home_leads_to_the_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    home = quick_home([tmp_path])
    assert home is not None and home == quick_home([tmp_path]) and home.startswith(str(tmp_path))
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
    monkeypatch.setattr(version, "__version__", "0.1")
    home = quick_home([tmp_path])
    assert home is not None
    [archive] = (Path(home) / "python" / "lib").glob("py4j-*.zip")
    assert archive.is_file()


@pytest.mark.parametrize(("variable", "value"), [("SPARK_HOME", "/opt/spark"), (VARIABLE, "1")])
def test_a_spark_that_somebody_has_chosen_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv(variable, value)
    assert quick_home([tmp_path]) is None and list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_to_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    (tmp_path / "file").touch()
    home = quick_home([tmp_path / "file", tmp_path])
    assert home is not None and Path(home).parent == tmp_path


def test_source_processes_find_the_files_of_the_application(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pxrs.zip").write_text("sources")
    with monkeypatch.context() as plain:
        plain.setenv(VARIABLE, "1")
        show_to_streams(tmp_path, ["pxrs.zip"])
        assert not (tmp_path / "streaming_job").exists()
    for _ in range(2):
        show_to_streams(tmp_path, ["pxrs.zip", "gone.zip"])
    assert (tmp_path / "streaming_job" / "pxrs.zip").read_text() == "sources"
    assert not (tmp_path / "streaming_job" / "gone.zip").is_symlink()


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_workers_are_started_from_there(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__spec__.cached)

    found = spark.sparkContext.parallelize([0], 1).map(where).first()
    assert found.endswith(".pyc") and Path(found).exists()


BOTH_WAYS = [
    "stream/test_queries.py::test_b75_a_stream_that_reads_alone_goes_on_and_a_gap_in_its_checkpoint_is_loud",
    "stream/test_queries.py::test_b77_a_batch_that_lost_a_partition_shows_nothing_and_is_done_again",
    "write/test_group.py::test_a_stream_of_a_group_is_copied_once_also_when_its_last_batch_comes_again",
]
"""Streams that are read alone, by the source and by tasks; fenced into a sink; and from a group into a queue."""


@pytest.mark.slow
@pytest.mark.processes
def test_streams_work_the_same_without_any_of_it() -> None:
    """The same tests once more, in one application of Spark as it is."""
    here = Path(__file__).parent
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    files = [str(here / name) for name in BOTH_WAYS]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *files]
    env = {**env, VARIABLE: "1"}
    done = subprocess.run(command, env=env, cwd=here.parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(BOTH_WAYS)} passed" in done.stdout
