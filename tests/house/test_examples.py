"""Every example is a program that runs and says what it should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.one_jvm import OneJvm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

EXPECTED = {
    "produce_and_consume.py": r"""
checkpoints are at 100 of 100 orders, lag 0
customer-0 ordered 735
""",
    "crash_recovery.py": r"""
A has partitions \[(\d, ){3}\d\], B has \[(\d, ){3}\d\]
A is dead
B has partitions \[0, 1, 2, 3, 4, 5, 6, 7\]
all 400 messages were handled, lag 0
\d+ of them twice: those that A had not yet written down
""",
    "dead_letters.py": r"""
handled \[12, 7, 30\]
dead letter 0: 'twelve' at offset 2, 3 tries
  ValueError: invalid literal for int\(\) with base 10: b'twelve'
""",
    "etl_to_parquet.py": r"""
lag 0
Spark reads 1999 orders, 1999 distinct
pyarrow reads 1999 orders of 3 days, worth 499,750.00
""",
    "count_per_account.py": r"""
2000 of 3000 clicks were made by people, for 20 accounts
acct-0 has 100
""",
    "route_stream.py": r"""
599 events in 8 partitions
599 events were handled, of 20 accounts, 599 different ones
""",
    "aggregate_with_watermark.py": r"""
7 minutes are final
minute 3: 30 clicks on home
minute 4: 50 clicks on home
minute 5: 20 clicks on home
""",
    "etl_to_sql.py": r"""
no database was named: a throwaway PostgreSQL is started
the query has ended: an accident in batch 2, which has \d+ orders
lag 0
1198 bills in the table, 1198 different ones, for 30 accounts, worth 3,694.00
""",
}
ON_SPARK = {
    "etl_to_parquet.py", "count_per_account.py", "route_stream.py", "aggregate_with_watermark.py", "etl_to_sql.py",
}  # fmt: skip


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
@pytest.mark.parametrize("name", sorted(set(EXPECTED) - ON_SPARK))
def test_an_example_runs_and_prints_what_it_promises(name: str) -> None:
    printed = run(name)
    assert re.fullmatch(EXPECTED[name].strip(), printed.strip()), printed


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("name", sorted(ON_SPARK))
def test_an_example_on_spark_runs_and_prints_what_it_promises(name: str, one_jvm: OneJvm) -> None:
    printed = one_jvm.run("runpy:run_path", str(EXAMPLES / name), None, "__main__", strict=True)
    assert re.fullmatch(EXPECTED[name].strip(), printed.strip()), printed


@pytest.mark.processes
def test_the_first_example_leaves_a_queue_that_is_not_sent_twice(tmp_path: Path) -> None:
    """Run again in the same directory, it finds the first hundred orders processed and handles only the new ones."""
    run("produce_and_consume.py", str(tmp_path))
    assert "checkpoints are at 200 of 100 orders, lag 0" in run("produce_and_consume.py", str(tmp_path))


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)
