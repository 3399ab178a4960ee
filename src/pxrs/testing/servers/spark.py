"""A standalone Spark cluster for tests: a master and two workers, real processes that can be killed and started again.

    # conftest.py
    from pxrs.testing.servers.spark import spark_cluster

    # test_orders.py
    def test_orders(spark_cluster, tmp_path):
        spark = session("orders", config=spark_cluster.settings())
        ...
        spark_cluster.executors()[0].kill()

The programs are those of the package pyspark; Java is found as ``pxrs.spark.session`` finds it. Everything listens on
the loopback interface, as Linux has it. Executors are started by the workers, in an environment without
``PYTHONPATH``: what they import must be in their Python, or travel with the application.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from pxrs.spark.setup.java import find_java
from pxrs.testing.servers.base import ServerCluster, ServerProcess, fixture_of, free_ports, wait_until

HOST = "127.0.0.1"
_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.driver.extraJavaOptions": _OPTIONS,
    "spark.executor.extraJavaOptions": _OPTIONS,
    "spark.sql.shuffle.partitions": "2",
}
"""Settings of a driver and its executors that live for a test only."""
_PACKAGE = "org.apache.spark.deploy"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_OWN = ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR")
"""Variables that the environment of a test may have, and a worker must not hand on to executors."""


def spark_home() -> Path:
    """The directory of the package pyspark, which is a whole Spark."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise FileNotFoundError("there is no Spark: pip install 'pxrs[spark]'")
    return Path(found.origin).parent


def spark_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for programs of Spark such as spark-submit: with Java and Spark, and without our Python."""
    own = {name: value for name, value in os.environ.items() if name not in _OWN}
    return {**own, "JAVA_HOME": find_java(), "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": HOST, **(more or {})}


class Executor(NamedTuple):
    """A running executor of an application."""

    app: str
    number: int
    pid: int

    def kill(self) -> None:
        """kill -9. Its Python workers notice, and end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class SparkServer(ServerProcess):
    """A master or a worker: a JVM with a web page."""

    kind: str

    def __init__(self, directory: Path, host: str = HOST) -> None:
        super().__init__(directory)
        self.host = host
        self.port, self.web_port = free_ports(2)

    def prepare(self) -> None:
        for name in ("work", "local"):
            (self.data / name).mkdir(parents=True)

    def command(self) -> Sequence[str]:
        words = ["--host", self.host, "--port", str(self.port), "--webui-port", str(self.web_port)]
        return [str(spark_home() / "bin" / "spark-class"), f"{_PACKAGE}.{self.kind.lower()}.{self.kind}", *words]

    def popen(self, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        own = {
            "SPARK_LOCAL_IP": self.host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
            "SPARK_LOCAL_DIRS": f"{self.data}/local",
        }
        env = spark_environment(own)
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)

    def is_ready(self) -> bool:
        try:
            self.page()
        except (OSError, ValueError):  # it answers before it has all its pages
            return False
        return True

    def page(self) -> dict[str, Any]:
        """The data that its web page shows."""
        with urllib.request.urlopen(f"http://{self.host}:{self.web_port}/json/", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


class SparkMaster(SparkServer):
    """Gives applications their executors."""

    kind = "Master"

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"


class SparkWorker(SparkServer):
    """Runs executors, as processes of its own."""

    kind = "Worker"

    def __init__(self, directory: Path, host: str, master: SparkMaster, cores: int, memory: str) -> None:
        super().__init__(directory, host)
        self._master = master
        self._size = ["--cores", str(cores), "--memory", memory]

    def command(self) -> Sequence[str]:
        return [*super().command(), *self._size, "--work-dir", f"{self.data}/work", self._master.url]

    def executors(self) -> list[Executor]:
        """Those that run now, oldest first."""
        return [] if self.pid is None else sorted(_executors_of(self.pid), key=lambda found: found[1:])

    def kill(self) -> None:
        """Its executors go with it: they would wait for a while before they notice."""
        left = self.executors()
        super().kill()
        for executor in left:
            executor.kill()


class SparkCluster(ServerCluster[SparkServer]):
    """A master and workers of this size. ``workers[1].kill()`` takes one away, and ``executors()[0].kill()`` less.

    Each worker has a loopback address of its own (127.0.0.2, 127.0.0.3, …): to Spark they are different machines, and
    that matters to it, for instance in speculation.
    """

    def __init__(self, directory: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.master = SparkMaster(directory / "master")
        self.workers = [
            SparkWorker(directory / f"worker-{number}", f"127.0.0.{2 + number}", self.master, cores, memory)
            for number in range(workers)
        ]
        self.nodes = [*self.workers, self.master]  # in the order in which they end

    def start(self) -> Self:
        """The master first: a worker that does not find it waits for many seconds before it asks again."""
        self.master.start()
        for worker in self.workers:
            worker.launch()
        wait_until(self._is_whole, "every worker has found the master", 60.0)
        return self

    def _is_whole(self) -> bool:
        for worker in self.workers:
            if worker.pid is None:
                raise RuntimeError(f"a worker has ended:\n{worker.log_text()}")
        return bool(self.master.page()["aliveworkers"] == len(self.workers))

    @property
    def url(self) -> str:
        """The master's, for ``spark.master``."""
        return self.master.url

    def settings(self, executor_memory: str = "512m") -> dict[str, str]:
        """The settings with which a driver on this machine uses the cluster, for ``pxrs.spark.session(config=...)``."""
        return {
            "spark.master": self.url,
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.executor.memory": executor_memory,
            **QUICK,
        }

    def executors(self, app: str | None = None) -> list[Executor]:
        """Those that run now, of this application or of all."""
        found = [executor for worker in self.workers for executor in worker.executors()]
        return [executor for executor in found if app in (None, executor.app)]


def _executors_of(worker: int) -> Iterator[Executor]:
    for path in Path(f"/proc/{worker}/task").glob("*/children"):
        for pid in _words(path, None):
            words = _words(Path(f"/proc/{pid}/cmdline"), "\0")
            if _EXECUTOR in words:
                app, number = (words[words.index(name) + 1] for name in ("--app-id", "--executor-id"))
                yield Executor(app, int(number), int(pid))


def _words(path: Path, separator: str | None) -> list[str]:
    try:
        return path.read_text().split(separator)
    except OSError:  # the process has ended
        return []


spark_cluster = fixture_of(SparkCluster)


__all__ = [
    "QUICK",
    "Executor",
    "SparkCluster",
    "SparkMaster",
    "SparkWorker",
    "spark_cluster",
    "spark_environment",
    "spark_home",
]
