"""The output of the applications, read as any other program would read it, and what must be true of it."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds

from pxrs.model import Cause, Owner, Partition, Tenure
from pxrs.testing.faults.checker import Event, Processed, Rested, Sent, Stored

Place = tuple[int, int]
"""Partition and offset."""
Line = dict[str, Any]


class Row(NamedTuple):
    """One row of the output. Sorted, rows stand in the order in which they were committed."""

    partition: int
    epoch: int
    batch: int
    file: str
    number: int
    offset: int
    key: bytes
    value: bytes
    id: bytes
    member: str
    pid: int


class Message(NamedTuple):
    """What was acknowledged."""

    key: bytes
    value: bytes


def read_rows(directory: Path, where: ds.Expression | None = None) -> list[Row]:
    """All rows that a reader without PXRS sees, or those that fit."""
    rows: list[Row] = []
    for fragment in _fragments(directory):
        file = Path(fragment.path).name
        found = fragment.to_table(filter=where).to_pylist()
        rows += [Row(file=file, number=number, **row) for number, row in enumerate(found)]
    return sorted(rows)


def count_rows(directory: Path) -> int:
    return sum(fragment.count_rows() for fragment in _fragments(directory))


def _fragments(directory: Path) -> Iterator[ds.ParquetFileFragment]:
    return ds.dataset(directory, format="parquet").get_fragments() if directory.exists() else iter(())


def check_output(rows: list[Row], sent: Mapping[Place, Message]) -> None:
    """No loss, no repeat, order per key, epochs that never go back."""
    places = Counter((row.partition, row.offset) for row in rows)
    assert set(places) == set(sent), "no loss, and nothing that was never sent"
    assert [place for place, times in places.items() if times > 1] == [], "no visible repeat"
    assert len({row.id for row in rows}) == len(rows), "no id stands twice"
    assert all(sent[row.partition, row.offset] == (row.key, row.value) for row in rows), "each message as it was sent"
    _check_order(rows)


def _check_order(rows: Iterable[Row]) -> None:
    last_offset: dict[int, int] = defaultdict(lambda: -1)
    last_number: dict[bytes, int] = defaultdict(lambda: -1)
    for row in sorted(rows):
        assert row.offset > last_offset[row.partition], f"offsets rise as epochs and batches do: {row}"
        assert int(row.value) > last_number[row.key], f"order per key: {row}"
        last_offset[row.partition], last_number[row.key] = row.offset, int(row.value)


# ---- for the checker -------------------------------------------------------------------------------------------------


class Evidence:
    """What is known of a run: the messages, the visible rows, the owners by the registry, the lines of the members."""

    def __init__(
        self,
        sent: Mapping[Place, Message],
        rows: Iterable[Row],
        tenures: Mapping[int, Mapping[int, Tenure]],
        lines: Iterable[Line],
    ) -> None:
        self._sent = sent
        self._tenures = tenures
        """Partition → epoch → who had it."""
        self._rows: dict[tuple[int, int], deque[Row]] = defaultdict(deque)
        for row in sorted(rows):
            self._rows[row.partition, row.epoch].append(row)
        self._lines: dict[tuple[str, int, int], list[Line]] = defaultdict(list)
        for line in lines:
            if line["what"] in ("claimed", "committed"):
                self._lines[line["what"], line["partition"], line["epoch"]].append(line)

    def events(self, live: Iterable[Owner]) -> Iterator[Event]:
        """The history of the run: what counts as processed is what readers see."""
        yield from (Sent(*place) for place in sorted(self._sent))
        for partition, tenures in sorted(self._tenures.items()):
            yield from self._events_of(partition, tenures)
        ends = {p: sum(partition == p for partition, _ in self._sent) for p in self._tenures}
        yield Rested(tuple(live), ends, 0)

    def _events_of(self, partition: int, tenures: Mapping[int, Tenure]) -> Iterator[Event]:
        epochs = sorted(tenures)
        assert epochs == list(range(1, len(epochs) + 1)), f"partition {partition}: the history has a gap: {epochs}"
        checkpoint: int | None = None
        before = nobody = Owner("nobody", "")
        for epoch in epochs:
            owner, cause = self._owner(partition, epoch, tenures[epoch].owner), Cause(tenures[epoch].cause)
            yield Stored(partition, owner or before, Partition(partition, owner, epoch, checkpoint, cause))
            if owner is not None:
                for event in self._work(partition, owner, epoch):
                    checkpoint = event.row.checkpoint if isinstance(event, Stored) else checkpoint
                    yield event
            before = owner or nobody

    def _owner(self, partition: int, epoch: int, name: str | None) -> Owner | None:
        if name is None:
            return None
        claims = self._lines["claimed", partition, epoch]
        return Owner(name, str(claims[0]["pid"]) if claims else "")

    def _work(self, partition: int, owner: Owner, epoch: int) -> Iterator[Processed | Stored]:
        rows = self._rows[partition, epoch]
        for line in self._lines["committed", partition, epoch]:
            end = line["checkpoint"]
            while rows and rows[0].offset < end:
                yield _processed(rows.popleft())
            yield Stored(partition, owner, Partition(partition, owner, epoch, end, Cause.CLAIM))
        yield from map(_processed, rows)


def _processed(row: Row) -> Processed:
    return Processed(row.partition, row.offset, Owner(row.member, str(row.pid)), row.epoch)
