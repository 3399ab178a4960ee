"""Output that executors have written must be seen by the driver before it is committed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pxrs.errors import Unavailable
from pxrs.sinks.output import check_seen


def test_all_rows_in_all_folders_are_counted(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    for name, rows in (("a.parquet", 3), ("day=1/b.parquet", 4)):
        pq.write_table(pa.table({"n": range(rows)}), tmp_path / name)
    (tmp_path / "_SUCCESS").touch()
    check_seen(str(tmp_path), 7)


def test_rows_on_the_disk_of_another_machine_are_missed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(3)}), tmp_path / "a.parquet")
    with pytest.raises(Unavailable, match=r"wrote 5 rows into .*, and the driver sees 3 there"):
        check_seen(str(tmp_path), 5)
