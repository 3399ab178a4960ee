"""The output of one batch, for as long as it may have to be written again: a table, or files that Spark has written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from pxrs.sinks.output import collected, tables_in, write_frame
from pxrs.sinks.sql.table import CHUNK_ROWS, sliced


class Output:
    """Chunks of rows that can be gone through any number of times. ``close`` frees what they stand in."""

    def __init__(self, output: Any, rows: int) -> None:
        self._table, self._directory = collected(output, rows), ""
        if not isinstance(self._table, pa.Table):
            frame, self._table = self._table, None
            self._directory = tempfile.mkdtemp(prefix="pxrs-output-")
            try:
                write_frame(frame, os.path.join(self._directory, "rows"), "none")
            except BaseException:
                self.close()
                raise
        self.schema = next((chunk.schema for chunk in self.chunks()), None) or self._empty_schema()
        self.rows = sum(chunk.num_rows for chunk in self.chunks())

    def _empty_schema(self) -> pa.Schema:
        return pa.schema([]) if self._table is None else self._table.schema

    def chunks(self) -> Iterator[pa.Table]:
        if self._table is not None:
            yield from sliced(self._table)
            return
        for table in tables_in(os.path.join(self._directory, "rows"), CHUNK_ROWS):
            yield from sliced(table)

    def close(self) -> None:
        self._table = None
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
