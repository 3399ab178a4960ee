"""Logs that are broken on purpose: what they do to messages, times and retries. ``broken_logs`` has the table."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pxrs.errors import Refused
from pxrs.logs.base import ENTRY_SCHEMA, FewRows, Stamp
from pxrs.logs.batches import times
from pxrs.logs.memory import MemoryLog

Batches = Mapping[int, pa.RecordBatch]
Stamps = Mapping[int, Stamp] | None

# ---- what comes in --------------------------------------------------------------------------------------------------


class _Changes(MemoryLog):
    """Changes every batch before it is stored."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        return super().append({number: self._changed(batch) for number, batch in batches.items()}, stamps)

    def _changed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.change(batch) if batch.schema.equals(ENTRY_SCHEMA) else batch

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError


def _with(batch: pa.RecordBatch, column: str, values: pa.Array) -> pa.RecordBatch:
    number = batch.schema.get_field_index(column)
    return batch.set_column(number, batch.schema.field(number), values)


class LosesHeaders(_Changes):
    """Stores everything but the headers."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _with(batch, "headers", pa.nulls(batch.num_rows, batch.schema.field("headers").type))


class NullKeyIsEmpty(_Changes):
    """Does not tell a message without a key from one whose key has no bytes."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _with(batch, "key", batch.column("key").fill_null(b""))


class EmptyTenantIsNull(_Changes):
    """Keeps an empty text as null, as some databases do."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        tenant = batch.column("tenant")
        return _with(batch, "tenant", pc.if_else(pc.equal(tenant, ""), None, tenant))


class RoundsTimes(_Changes):
    """Keeps times in milliseconds."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rounded = pa.array(times(batch) // 1_000 * 1_000, pa.int64())
        return _with(batch, "timestamp", rounded.cast(batch.schema.field("timestamp").type))


class CutsLargeValues(_Changes):
    """Keeps the first mebibyte of a value."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _with(batch, "value", pc.binary_slice(batch.column("value"), 0, 1_048_576))


class SortsByTime(_Changes):
    """Puts the messages of a batch into the order of their times."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pc.sort_indices(batch, sort_keys=[("timestamp", "ascending")]))


class ForgetsWhereASliceBegins(_Changes):
    """Takes the values of a slice from the beginning of the batch that it is a slice of."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _with(batch, "value", pa.Array.from_buffers(pa.binary(), len(batch), batch.column("value").buffers()))


class EmptyTakesAnOffset(_Changes):
    """Stores a message without content for a batch without messages."""

    def change(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        empty = pa.RecordBatch.from_pylist([{"timestamp": 0, "value": b""}], schema=ENTRY_SCHEMA)
        return batch if batch.num_rows else empty


class MixesPartitions(MemoryLog):
    """Sorts the partitions of an append, but not their batches."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        return super().append(dict(zip(sorted(batches), batches.values(), strict=True)), stamps)


class StoresBeforeChecking(MemoryLog):
    """Checks one batch after the other, each when the ones before it are stored."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        given: dict[int, int] = {}
        for number, batch in batches.items():
            given |= super().append({number: batch}, stamps)
        return given


# ---- what comes out -------------------------------------------------------------------------------------------------


class WaitsBeyondTheEnd(MemoryLog):
    """Has nothing yet for a reader whose offset is ahead of the log."""

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        return super().read(partition, min(offset, self.bounds(partition)[1]), max_rows)


class SkipsToTheStart(MemoryLog):
    """Gives a reader that is behind a trim what is left, and says nothing."""

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        return super().read(partition, max(offset, self.bounds(partition)[0]), max_rows)


class FewRowsAreNotStamped(MemoryLog):
    """The shorter way for a few messages forgets what makes a retry safe."""

    def append_rows(self, rows: Mapping[int, FewRows], stamps: Mapping[int, Stamp] | None = None) -> dict[int, int]:
        return super().append_rows(rows, {} if stamps else None)


class DropsAtMaxRows(MemoryLog):
    """Leaves out one message where max_rows cuts a batch."""

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        found = super().read(partition, offset, max_rows + 1)
        if found is None or found.num_rows <= max_rows:
            return found
        return found.take(pa.array([*range(max_rows - 1), max_rows]))


class IgnoresMaxRows(MemoryLog):
    """Returns as many messages as it has in one batch."""

    def read(self, partition: int, offset: int, max_rows: int = 10_000) -> pa.RecordBatch | None:
        return super().read(partition, offset)


class BelievesThatTimesRise(MemoryLog):
    """Searches the times as if each were at least the one before it."""

    def offset_at(self, partition: int, timestamp_us: int) -> int:
        start, _ = self.bounds(partition)
        found = [int(time_us) for batch in self._partition(partition).batches for time_us in times(batch)]
        return start + bisect_left(found, timestamp_us)


class FindsWhatIsTrimmed(MemoryLog):
    """Answers with offset 0 for every time before the first message that it has."""

    def offset_at(self, partition: int, timestamp_us: int) -> int:
        found = super().offset_at(partition, timestamp_us)
        return 0 if found == self.bounds(partition)[0] else found


# ---- retries --------------------------------------------------------------------------------------------------------


class StoresRetriesAgain(MemoryLog):
    """Knows no stamps."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        return super().append(batches)


class BelievesAnyContent(MemoryLog):
    """Takes whatever comes under a used stamp for a retry."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        return super().append(batches, {n: stamp._replace(content="") for n, stamp in (stamps or {}).items()})


class ForgetsAndGuesses(MemoryLog):
    """Knows only the stamps of the last few batches, and takes every other one for new."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        for number in batches:
            partition = self._partition(number)
            recent = partition.bases[-2:]
            partition.stamps = {stamp: base for stamp, base in partition.stamps.items() if base in recent}
        return super().append(batches, stamps)


class RetryGetsTheEnd(MemoryLog):
    """Stores a retry once, but answers with the offset that the next message will get."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        ends = {number: self.bounds(number)[1] for number in batches}
        super().append(batches, stamps)
        return ends


class ForgetsStampsAtReopening(MemoryLog):
    """Keeps stamps in the object that stored them, and not in the log."""

    _life = ""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        self._life = self._life or secrets.token_hex(8)
        mine = {number: Stamp(stamp.producer + self._life, stamp.sequence) for number, stamp in (stamps or {}).items()}
        return super().append(batches, mine)


class ComparesTheSequenceAlone(MemoryLog):
    """Takes the first batch of one producer for a retry of another's."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        return super().append(batches, {number: Stamp("", stamp.sequence) for number, stamp in (stamps or {}).items()})


class JoinsProducerAndSequence(MemoryLog):
    """Makes one word of a stamp: batch 10 of p has the same as batch 0 of p1."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        words = {number: f"{stamp.producer}{stamp.sequence}" for number, stamp in (stamps or {}).items()}
        return super().append(batches, {number: Stamp(word, 0) for number, word in words.items()})


class OneWindowForAllPartitions(MemoryLog):
    """Takes a batch for a retry if its stamp was seen in any partition."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        seen = {stamp: first for found in self._content.partitions for stamp, first in found.stamps.items()}
        known = {number: seen[stamp] for number, stamp in (stamps or {}).items() if stamp in seen and number in batches}
        return super().append({number: b for number, b in batches.items() if number not in known}, stamps) | known


class RemembersWhatItRefused(MemoryLog):
    """Notes a stamp before it looks at the batch: the second try is swallowed."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        try:
            return super().append(batches, stamps)
        except Refused:
            for number, stamp in (stamps or {}).items():
                self._partition(number).stamps.setdefault(stamp, self.bounds(number)[1])
            raise


class SwallowsLateRetries(MemoryLog):
    """Knows for ever that a stamp was there, but not for long where: a late retry gets an offset with nothing at it."""

    def append(self, batches: Batches, stamps: Stamps = None) -> dict[int, int]:
        for number in batches:
            found = self._partition(number)
            late = {stamp: found.end for stamp, first in found.stamps.items() if first < found.end - 30}
            found.stamps.update(late)
        return super().append(batches, stamps)
