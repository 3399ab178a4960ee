"""What a Spark application and its Python side hold in memory over a long run, as a curve and as growth."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_SECONDS = 0.5
SAMPLES_PER_COLLECTION = 10
"""The JVM is told to collect its garbage every so many samples: what is in the heap then is really held."""
_MIB = 1 << 20

DRIVER, JVM, WORKERS, HEAP = "driver Python", "JVM", "Python workers", "JVM heap after GC"


@dataclass
class Curves:
    """Samples as (seconds, MiB), one curve for each kind of process."""

    points: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, at: float, size: float) -> None:
        self.points.setdefault(name, []).append((at, size / _MIB))

    def growth(self) -> dict[str, float]:
        """From the mean of the first third of the time to the mean of the last, in percent."""
        return {name: 100 * (_mean(points, 2) / _mean(points, 0) - 1) for name, points in self.points.items()}

    def latest(self) -> dict[str, float]:
        """MiB in the last third."""
        return {name: _mean(points, 2) for name, points in self.points.items()}


def _mean(points: Sequence[tuple[float, float]], third: int) -> float:
    length = points[-1][0]
    return statistics.mean(size for at, size in points if third / 3 <= at / length <= (third + 1) / 3)


@contextmanager
def watched(spark: SparkSession) -> Iterator[Curves]:
    """Samples while the block runs."""
    curves, stop = Curves(), threading.Event()
    thread = threading.Thread(target=_sample, args=(spark, curves, stop), name="benchmark-memory")
    thread.start()
    try:
        yield curves
    finally:
        stop.set()
        thread.join()


def _sample(spark: SparkSession, curves: Curves, stop: threading.Event) -> None:
    java = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]  # a live session has a JVM
    driver = psutil.Process()
    jvm = psutil.Process(java.ProcessHandle.current().pid())
    beans, began, number = java.management.ManagementFactory.getMemoryMXBean(), time.monotonic(), 0
    while not stop.wait(SAMPLE_SECONDS):
        at = time.monotonic() - began
        curves.add(DRIVER, at, rss_anon(driver.pid))
        curves.add(JVM, at, rss_anon(jvm.pid))
        curves.add(WORKERS, at, sum(rss_anon(child.pid) for child in jvm.children(recursive=True)))
        if number % SAMPLES_PER_COLLECTION == 0:
            java.System.gc()
            curves.add(HEAP, at, beans.getHeapMemoryUsage().getUsed())
        number += 1


def rss_anon(pid: int) -> int:
    """What the process has for itself: pages of mapped files are the kernel's, and are not counted."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0  # it has ended meanwhile
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    return int(sizes[0]) * 1024 if sizes else 0


def draw(curves: Curves, title: str, path: Path) -> None:
    """The curves over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5))
    for name, points in curves.points.items():
        axes.plot(*zip(*points, strict=True), label=name if name == HEAP else f"{name} (RssAnon)")
    axes.set(title=title, xlabel="seconds", ylabel="MiB")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
