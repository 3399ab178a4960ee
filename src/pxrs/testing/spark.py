"""A Spark session for tests of your own pipelines: lean, started once, stopped at the end.

    # conftest.py
    from pxrs.testing.spark import spark

    # test_billing.py
    def test_billing(spark, tmp_path):
        queue = pxrs.open(f"file:{tmp_path}/orders", partitions=4)
        ...
        assert frame(spark, queue, {0: (0, 10)}).count() == 10

With pytest-xdist give all these tests one group, ``@pytest.mark.xdist_group("spark")``, and run with
``--dist loadgroup``: one Java is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pxrs.spark.setup.session import session

LEAN = {
    # A test's queries are small and run once: the quick compiler and the simple collector are the faster ones.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for ``pxrs.spark.session(config=...)`` of a short life."""


def lean_session(name: str = "pxrs-tests", master: str = "local[2]") -> SparkSession:
    """A session that starts quickly and stays small."""
    return session(name, master=master, memory="512m", config=LEAN)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests of this process."""
    started = lean_session()
    yield started
    started.stop()


__all__ = ["LEAN", "lean_session", "spark"]
