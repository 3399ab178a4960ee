"""The lowest versions that pyproject.toml allows do work: they are installed, and run README's first program.

These tests need a package index. Where none is in reach they fail and say so: a bound that nobody tries is a guess.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALL_SECONDS, RUN_SECONDS = 240, 120


def lowest(requirements: list[str]) -> list[str]:
    """Each requirement that counts for this Python, at the lowest version that it allows."""
    found = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate():
            [bound] = [one.version for one in requirement.specifier if one.operator == ">="]
            found.append(f"{requirement.name}=={bound}")
    return found


def installed(directory: Path, *wanted: str) -> Path:
    """The Python of a new environment that holds these packages."""
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-input", "--prefer-binary"]
    ended = subprocess.run([*command, *wanted], capture_output=True, text=True, timeout=INSTALL_SECONDS)
    assert ended.returncode == 0, (
        f"{', '.join(wanted)} could not be installed. This test needs a package index that pip can reach, and wheels "
        f"of these versions for this Python; pip says:\n{ended.stdout}{ended.stderr}"
    )
    return python


def run(python: Path, directory: Path, *arguments: str, more_path: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), more_path]))
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PXRS_", "COV_"))}
    return subprocess.run(
        [str(python), *arguments],
        cwd=directory, env=env | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip


def test_the_lowest_versions_are_read_from_the_bounds() -> None:
    assert lowest(["a>=1.2", "b>=2,<3", "c>=1; python_version < '3'"]) == ["a==1.2", "b==2"]
    names = {Requirement(one).name for one in PROJECT["dependencies"]}
    assert {Requirement(one).name for one in lowest(PROJECT["dependencies"])} == names, "each has a bound"


MORE = """
import pxrs, yaml
import pyarrow as pa
import pyarrow.parquet as pq
from pxrs.sinks import ParquetSink

with open("pxrs.yaml", "w") as file:
    yaml.safe_dump({"segment_bytes": 4_000, "batch_rows": 20}, file)
with pxrs.open("file:./more", partitions=1, hash="murmur3_128", settings=pxrs.load_settings("pxrs.yaml")) as queue:
    with queue.producer() as producer:
        for number in range(20):
            rows = [f"row {number * 20 + row}".encode() for row in range(20)]
            producer.send_batch(pa.table({"key": ["k"] * 20, "value": rows})).result()
    assert queue.log.seal(0), "some segments are Parquet now"
    read = len(queue.read(0, 0, 1_000))
    sink = ParquetSink("./shown")
    queue.consumer("sealed", lambda batch: batch.select(["value"]), deliver="arrow", sink=sink).run(until_end=True)
print(f"{read} read, {pq.read_table('shown').num_rows} published")
"""


@pytest.mark.slow
@pytest.mark.processes
def test_the_lowest_versions_of_the_dependencies_run_the_program_of_the_readme(tmp_path: Path) -> None:
    python = installed(tmp_path / "env", *lowest(PROJECT["dependencies"]))
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert program
    ended = run(python, tmp_path, "-c", program[1])
    assert (ended.stdout, ended.stderr) == ("100 orders handled\n", "")
    ended = run(python, tmp_path, "-c", MORE)
    assert (ended.stdout, ended.stderr) == ("400 read, 400 published\n", "")
    shown = run(python, tmp_path, "-m", "pxrs.apps.cli", "group", "describe", "file:./orders", "billing")
    assert shown.returncode == 0 and "TOTAL-LAG   0" in shown.stdout
    wrong = run(python, tmp_path, "-m", "pxrs.apps.cli", "health", "file:./orders", "--registry", "redis:/u:geheim@h")
    assert wrong.returncode == 2 and wrong.stderr.startswith("pxrs: error: ") and "geheim" not in wrong.stderr
    wrong = run(python, tmp_path, "-m", "pxrs.apps.cli", "health", "file:./orders", "redis:/u:geheim@h")
    assert wrong.returncode == 2 and "Usage: pxrs health" in wrong.stderr and "geheim" not in wrong.stderr


LOWER_SPARK = "4.2.1"
SPARK_PROGRAM = """
import pyspark, pxrs
from pxrs.sinks import ParquetSink
from pxrs.spark import Pipeline
from pxrs.testing.spark import lean_session

spark = lean_session(master="local[1]")
with pxrs.open("file:./orders", partitions=2) as queue:
    with queue.producer() as producer:
        for number in range(50):
            producer.send(f"acct-{number % 5}", f"order {number}")
    frame = spark.read.format("pxrs").load("file:./orders")
    frame.write.format("pxrs").option("path", "file:./copies").option("partitions", "2").mode("append").save()
    with pxrs.open("file:./copies") as copies:
        copied = sum(copies.log.bounds(partition)[1] for partition in range(2))
    process = lambda df, batch: df.selectExpr("CAST(value AS STRING) AS text")
    Pipeline(spark, queue, "billing", process, sink=ParquetSink("./bills")).run(until_end=True)
bills = spark.read.parquet("./bills").distinct().count()
print(f"{pyspark.__version__}: {copied} copied, {bills} billed")
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_the_lower_pyspark_reads_writes_and_runs_a_pipeline(tmp_path: Path) -> None:
    """The rest of the environment is that of this test: only pyspark is another one."""
    [spark] = [one for one in map(Requirement, PROJECT["optional-dependencies"]["spark"]) if one.name == "pyspark"]
    assert spark.specifier.contains(Version(LOWER_SPARK)) and not spark.specifier.contains("4.1.4")
    python = installed(tmp_path / "env", "--no-deps", f"pyspark=={LOWER_SPARK}")
    rest = next(path for path in sys.path if path.endswith("site-packages"))
    (tmp_path / "job.py").write_text(SPARK_PROGRAM)
    ended = run(python, tmp_path, "job.py", more_path=f"{_packages(python)}{os.pathsep}{rest}")
    assert ended.stdout.endswith(f"{LOWER_SPARK}: 50 copied, 50 billed\n"), ended.stdout + ended.stderr


def _packages(python: Path) -> str:
    [found] = (python.parents[1] / "lib").glob("python*/site-packages")
    return str(found)
