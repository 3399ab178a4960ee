"""On real clusters: executors are other processes, and have nothing but what the application brings them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow.dataset as ds
import pytest

from pxrs.spark.setup.py_files import py_files
from pxrs.testing.servers.etcd import EtcdServer
from pxrs.testing.servers.nats import NatsServer
from pxrs.testing.servers.postgres import PostgresServer
from pxrs.testing.servers.spark import QUICK, Executor, SparkCluster, spark_environment, spark_home
from tests.acceptance.cluster.env import bare_python, packed_environment, whole_environment
from tests.acceptance.cluster.job import ROWS
from tests.acceptance.cluster.scenario import ClusterScenario

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without PXRS."""
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> str:
    return py_files(tmp_path_factory.mktemp("zip") / "pxrs.zip")


@pytest.fixture
def scenario(
    tmp_path: Path, spark_cluster: SparkCluster, postgres_server: PostgresServer, python: Path, zipped: str
) -> Iterator[ClusterScenario]:
    scenario = ClusterScenario(tmp_path, spark_cluster, postgres_server.url("clusters"), python, zipped)
    try:
        yield scenario
    finally:
        scenario.close()


def pythons_of(executor: Executor) -> set[str]:
    """The programs that an executor has started."""
    return {child.cmdline()[0] for child in psutil.Process(executor.pid).children(recursive=True)}


def test_b78_executors_of_a_pipeline_and_of_a_stream_are_killed(scenario: ClusterScenario, python: Path) -> None:
    scenario.run_only("A", "S")
    holds, mark = [scenario.hold(member, "task") for member in ("A", "S")], scenario.mark()
    scenario.post(400)
    killed = [scenario.executor_of(hold) for hold in holds]
    assert len({executor.app for executor in killed}) == 2, "one of each application, in the middle of a task"
    assert {used for executor in killed for used in pythons_of(executor)} == {str(python)}
    for executor, hold in zip(killed, holds, strict=True):
        executor.kill()
        hold.release()
    for executor in killed:
        scenario.await_replaced(executor)
    scenario.prove()
    assert set(scenario.begun(mark).values()) == {1}, "no batch was needed twice: Spark has tried the tasks again"
    assert {row.member for row in scenario.rows()} == {"A", "S"}
    tasks = scenario.lines("task")
    assert {line["by"] for line in tasks} == {"A", "S"}
    assert {(line["python"], line["home"]) for line in tasks} == {(str(python), "./pxrs.zip/pxrs/__init__.py")}
    assert [line["installed"] for line in tasks] == [[]] * len(tasks), "there is no metadata of PXRS"


# ---- one application, by spark-submit --------------------------------------------------------------------------------

EAGER = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


def submit(
    home: Path, words: list[str], settings: Mapping[str, str], pythons: tuple[str, str], config: dict[str, Any]
) -> dict[str, Any]:
    """Run the job with the Pythons of driver and executors, in its directory; returns what it said."""
    settings = {"spark.driver.memory": "512m", "spark.ui.enabled": "false", "spark.log.level": "ERROR", **settings}
    confs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    job = [str(Path(__file__).with_name("job.py")), json.dumps({**config, "home": str(home)})]
    environ = spark_environment({"PYSPARK_DRIVER_PYTHON": pythons[0], "PYSPARK_PYTHON": pythons[1]})
    command = [str(spark_home() / "bin" / "spark-submit"), *words, *confs, *job]
    done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False, timeout=500)
    lines = (done.stderr + done.stdout).splitlines()
    assert done.returncode == 0, "\n".join(line for line in lines if not line.startswith("\tat "))
    said: dict[str, Any] = json.loads((home / "said.json").read_text())
    return said


def check_shared(home: Path) -> None:
    """All that was written to the queue is in the output, once, and both members had a part of it."""
    rows = ds.dataset(home / "shared", format="parquet").to_table().to_pylist()
    assert sorted(int(row["value"]) for row in rows) == list(range(ROWS))
    assert len({(row["partition"], row["offset"]) for row in rows}) == ROWS
    assert {row["member"] for row in rows} == {"A", "S"}


def test_jetstream_and_etcd_with_a_packed_environment_and_speculation(
    tmp_path: Path, spark_cluster: SparkCluster, nats_server: NatsServer, etcd_server: EtcdServer
) -> None:
    whole_environment(tmp_path / "env")  # where the driver runs, the same path leads to an environment too
    words = ["--archives", f"{packed_environment(tmp_path)}#env"]
    config = {"log": nats_server.url("clusters"), "registry": etcd_server.url("clusters"), "speculate": True}
    pythons = (sys.executable, "./env/bin/python")
    said = submit(tmp_path, words, {**spark_cluster.settings(), **EAGER}, pythons, config)
    assert said["share"] == {"error": None}
    check_shared(tmp_path)
    for executor in said["executors"]:
        home = f"/{executor['home'].removeprefix('/')}"
        assert "/env/lib/" in home and home.endswith("/site-packages/pxrs/__init__.py"), "from the archive"
        assert str(spark_cluster.workers[0].data.parents[1]) in executor["python"], "which the worker has unpacked"
        assert executor["loaded"] == [], "no registry, and nothing that only a registry needs"
    for attempts in said["attempts"].values():
        assert attempts == ["task-0-attempt-0", "task-0-attempt-1", "task-1-attempt-0"], "one task ran twice"
    speculated = ds.dataset(tmp_path / "speculated", format="parquet").to_table()
    assert sorted(map(int, speculated["value"].to_pylist())) == list(range(ROWS)), "and its rows are there once"
    stored = {int(row["value"]): row["count"] for row in said["stored"]}
    assert stored == dict.fromkeys(range(ROWS), 2), "written twice by the job, and not once more by Spark"


def test_local_cluster_with_the_zip_alone(tmp_path: Path, python: Path, zipped: str) -> None:
    config = {"log": f"file:{tmp_path}/orders", "registry": f"sqlite:{tmp_path}/registry.db"}
    words = ["--master", "local-cluster[2,1,1024]", "--py-files", zipped]
    said = submit(tmp_path, words, {**QUICK, "spark.executor.memory": "512m"}, (str(python), str(python)), config)
    assert said["share"] == {"error": None}
    check_shared(tmp_path)
    homes = {(executor["python"], executor["home"]) for executor in said["executors"]}
    assert homes == {(str(python), "./pxrs.zip/pxrs/__init__.py")}
