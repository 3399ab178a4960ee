"""Where the batches of one segment stand: some forty bytes for each, since a segment may hold very many."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from pxrs.logs.base import Stamp
from pxrs.logs.segment import Header

_NOBODY = -1


class BatchIndex:
    """Parallel columns, one row for each batch, in the order of the file."""

    def __init__(self) -> None:
        self.positions = array("q")
        self.bases = array("q")
        self.last_us = array("q")
        self.verified = bytearray()
        self._producers = array("i")
        self._sequences = array("q")
        self._numbers: dict[str, int] = {}
        self._highest = array("q")

    def __len__(self) -> int:
        return len(self.bases)

    def add(self, position: int, header: Header, verified: bool = False) -> None:
        self.positions.append(position)
        self.bases.append(header.base)
        self.last_us.append(header.last_us)
        self.verified.append(verified)
        self._producers.append(_NOBODY if header.stamp is None else self._note(header.stamp))
        self._sequences.append(0 if header.stamp is None else header.stamp.sequence)

    def _note(self, stamp: Stamp) -> int:
        """The producer's number here; its highest sequence makes the search for a new stamp cost nothing."""
        number = self._numbers.setdefault(stamp.producer, len(self._numbers))
        if number == len(self._highest):
            self._highest.append(stamp.sequence)
        self._highest[number] = max(stamp.sequence, self._highest[number])
        return number

    def _columns(self) -> tuple[array[int], ...]:
        """What is written down."""
        return self.positions, self.bases, self.last_us, self._producers, self._sequences

    def rows(self, first: int) -> tuple[list[str], bytes]:
        """The batches from a number on: the producers they name, and their columns as bytes."""
        return list(self._numbers), b"".join(column[first:].tobytes() for column in self._columns())

    def starts_with(self, other: BatchIndex) -> bool:
        """Whether the batches of another index are the first of these."""
        pairs = zip(self._columns(), other._columns(), strict=True)
        return all(mine[: len(theirs)] == theirs for mine, theirs in pairs)

    def take(self, names: list[str], columns: bytes, count: int) -> None:
        """Put back what ``rows`` has given."""
        at = 0
        for column in self._columns():
            column.frombytes(columns[at : at + count * column.itemsize])
            at += count * column.itemsize
        self.verified.extend(bytes(count))
        self._numbers = {name: number for number, name in enumerate(names)}
        self._highest.extend([-1] * (len(names) - len(self._highest)))
        for producer, sequence in zip(self._producers[-count:], self._sequences[-count:], strict=True):
            if producer != _NOBODY:
                self._highest[producer] = max(sequence, self._highest[producer])

    def cut(self, count: int) -> None:
        """Keep only the first ``count`` batches."""
        del self.verified[count:]
        for column in self._columns():
            del column[count:]

    def number_of(self, offset: int) -> int:
        """Which of the batches holds this offset."""
        return bisect_right(self.bases, offset) - 1

    def find(self, stamp: Stamp) -> int | None:
        """The first offset of the batch with this stamp. Only a retry is searched for: others are ahead of all."""
        producer = self._numbers.get(stamp.producer)
        if producer is None or stamp.sequence > self._highest[producer]:
            return None
        at = -1
        try:
            while True:
                at = self._sequences.index(stamp.sequence, at + 1)
                if self._producers[at] == producer:
                    return self.bases[at]
        except ValueError:  # no more of them
            return None
