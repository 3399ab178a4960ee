"""Messages for one group only: a dead letter that is sent again has a header that names its group.

The header names the log by its id, the group, and the letter's number. It counts in that log alone: a copy of the
message in another log is for everybody there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from pxrs.errors import Refused
from pxrs.rules.texts import values_of

ONLY_FOR = "pxrs.only-for"
"""The header that only a retry of dead letters may write."""


class Reader(NamedTuple):
    """A group that reads a log, which is known by its id. Neither an id nor the name of a group has a slash in it."""

    log_id: str
    group: str

    def mark(self, letter: int) -> bytes:
        """The value of the header for a letter that this group is sent again."""
        return f"{self.log_id}/{self.group}/{letter}".encode()

    def is_meant(self, headers: Mapping[str, bytes | None]) -> bool:
        """Whether this group processes a message with these headers. All groups do, unless it is for another one."""
        words = (headers.get(ONLY_FOR) or b"").split(b"/")
        return len(words) != 3 or words[0] != self.log_id.encode() or words[1] == self.group.encode()


def marked_rows(headers: pa.Array) -> list[int]:
    """The rows in a column of headers that carry ``ONLY_FOR``. A column without headers costs nothing."""
    if headers.null_count == len(headers):
        return []
    import pyarrow.compute as pc  # tasks of Spark import this module, and most of them do without

    found = pc.equal(headers.flatten().field("key"), ONLY_FOR)
    if not pc.any(found).as_py():
        return []
    return sorted(set(pc.list_parent_indices(headers).filter(found).to_pylist()))


def rows_for_others(headers: pa.Array, reader: Reader) -> list[int]:
    """The rows of a column of headers that this group passes over."""
    return [row for row in marked_rows(headers) if not reader.is_meant(_by_name(values_of(headers.slice(row, 1))[0]))]


def own_part(batch: pa.RecordBatch, reader: Reader) -> tuple[int, pa.RecordBatch]:
    """Count the rows at the beginning that are for other groups; return it with the rows behind them up to the next
    such row.
    """
    passed = 0
    for row in rows_for_others(batch.column("headers"), reader):
        if row != passed:
            return passed, batch.slice(passed, row - passed)
        passed += 1
    return passed, batch.slice(passed) if passed else batch


def own_rows(batch: pa.RecordBatch, reader: Reader) -> pa.RecordBatch:
    """All rows of a batch that this group processes."""
    others = set(rows_for_others(batch.column("headers"), reader))
    if not others:
        return batch
    return batch.take(pa.array([row for row in range(batch.num_rows) if row not in others], pa.int64()))


def refuse_marked(headers: pa.Array | pa.ChunkedArray) -> None:
    """Refuse a column of headers in which a user has written ``ONLY_FOR``."""
    chunks = headers.chunks if isinstance(headers, pa.ChunkedArray) else [headers]
    first = 0
    for chunk in chunks:
        for row in marked_rows(chunk):
            raise Refused(f"row {first + row}: {_REFUSAL}")
        first += len(chunk)


def refuse_name(name: str) -> None:
    """Refuse one header name that users may not write."""
    if name == ONLY_FOR:
        raise Refused(_REFUSAL)


def without_mark(headers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Headers without ``ONLY_FOR``, for messages that are passed on to another queue."""
    kind = headers.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return headers  # the log that stores it refuses it
    if not any(marked_rows(chunk) for chunk in headers.chunks):
        return headers
    rows = [row and [pair for pair in row if pair["key"] != ONLY_FOR] for row in values_of(headers)]
    return pa.chunked_array([pa.array(rows, headers.type)])


def _by_name(pairs: list[dict[str, Any]]) -> dict[str, bytes | None]:
    return {pair["key"]: pair["value"] for pair in pairs}


_REFUSAL = (
    f"the header {ONLY_FOR!r} says for which group a dead letter is sent again, and only `pxrs dlq retry` and "
    "dead_letters.retry() write it: leave it out when you pass headers on"
)
