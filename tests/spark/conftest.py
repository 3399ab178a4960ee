"""Fixtures of the Spark tests: one session, a queue with known messages, and one application that started fresh."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pxrs
from pxrs.testing.spark import spark
from tests.spark.helpers import open_orders, run_fresh

__all__ = ["spark"]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pxrs.Queue]:
    """A queue that no test changes."""
    with open_orders(tmp_path_factory.mktemp("log")) as queue:
        yield queue


@pytest.fixture
def url(orders: pxrs.Queue) -> str:
    return f"file:{orders.log.directory}"


APPLICATION = """
import json, sys
import pyarrow as pa
import pxrs
from pxrs.testing.spark import lean_session
from pxrs.spark import frame

def modules(batch):
    return pa.RecordBatch.from_pydict({"module": sorted(sys.modules)})

directory, registry = sys.argv[1:]
queue = pxrs.open(log=f"file:{directory}/orders", registry=registry)
spark = lean_session()
loaded = frame(spark, queue, {0: (0, 10)}, map_arrow=modules).collect()
java = spark._jvm.System
print(json.dumps({
    "java": [java.getProperty("java.home"), int(java.getProperty("java.specification.version"))],
    "modules": [row.module for row in loaded],
}))
spark.stop()
"""


@pytest.fixture(scope="session")
def fresh_application(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What an application saw that ran where no Java is installed, with a queue whose registry has a secret place."""
    directory = tmp_path_factory.mktemp("fresh")
    open_orders(directory).close()
    tools = _tools_without_java(directory / "tools")
    registry = f"sqlite:{directory}/secret-registry.db"
    env = {"PATH": str(tools), "JAVA_HOME": "", "XDG_CACHE_HOME": str(directory / "cache")}
    return run_fresh(APPLICATION, str(directory), registry, env=env) | {"directory": str(directory)}


def _tools_without_java(directory: Path) -> Path:
    """A PATH with what Spark's start scripts need, and no Java."""
    directory.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in os.scandir(folder):
            if tool.name != "java" and not os.path.lexists(directory / tool.name):
                (directory / tool.name).symlink_to(tool.path)
    return directory
