"""Applications on a real cluster that share one group: log in a directory, registry in a database server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

import pxrs
from pxrs.testing.servers.spark import Executor, SparkCluster
from tests.acceptance.harness import ROOT, eventually
from tests.acceptance.spark_harness import COMMON, START_DEADLINE, Hold, MixedScenario

STREAM = "S"
SETTINGS = {**COMMON, "lease_ms": 15_000}
STREAM_SETTINGS = {name: SETTINGS[name] for name in ("lease_ms", "poll_ms", "revoke_timeout_ms")}


class ClusterScenario(MixedScenario):
    """A scenario whose applications have their executors on a cluster, with a Python that does not have PXRS."""

    def __init__(self, directory: Path, cluster: SparkCluster, registry: str, python: Path, zipped: str) -> None:
        super().__init__(directory)
        self.queue.close()  # its registry stands in the directory; that of the cluster's members does not
        self.queue = pxrs.open(log=self._url, registry=registry, settings=pxrs.Settings(**self.settings))
        self.cluster = cluster
        self._registry = registry
        self._python = python
        self._spark = {**cluster.settings(), "spark.cores.max": "1", "spark.submit.pyFiles": zipped}

    def start(self, member: str, **more: Any) -> subprocess.Popen[bytes]:
        config = {
            "log": self._url, "registry": self._registry, "member": member, "out": str(self._out),
            "sink": str(self.shown), "gates": str(self.gates), "spark": self._spark, "settings": SETTINGS,
            "stream_settings": STREAM_SETTINGS, "engine": "stream" if member == STREAM else "pipeline",
            "checkpoint": str(self._directory / "checkpoint"), **more,
        }  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": str(self._python)}
        command = [sys.executable, "-m", "tests.acceptance.cluster.process", json.dumps(config)]
        process = subprocess.Popen(command, cwd=ROOT, env=environ)
        self.processes.append(process)
        return process

    def executor_of(self, hold: Hold) -> Executor:
        """The executor in which the task runs that waits at a gate."""
        families = {parent.pid for parent in psutil.Process(hold.await_held()["pid"]).parents()}
        [found] = [executor for executor in self.cluster.executors() if executor.pid in families]
        return found

    def await_replaced(self, dead: Executor) -> None:
        """The worker notices, and the master gives the application another."""

        def replaced() -> bool:
            return any(one.number > dead.number for one in self.cluster.executors(dead.app))

        eventually(replaced, f"another executor for {dead.app}", START_DEADLINE)

    def await_done(self) -> None:
        """New executors take their time, all the more where other tests run."""
        group = self.queue.group("g")
        eventually(lambda: group.describe().total_lag == 0, "everything handled and committed", START_DEADLINE)
