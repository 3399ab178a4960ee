"""Promises about messages: dense offsets, every byte as it was sent, reads that start and end anywhere, times."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pxrs.errors import BeyondEnd, Expired, NotFound, Refused
from pxrs.logs.base import ENTRY_SCHEMA, SCHEMA, FewRows, Log, Row, Stamp
from pxrs.testing.logs.hooks import SMALL, LogPromises, OpenLog, entries, fill, numbered, pairs, read_all, read_table

ALL_BYTES = bytes(range(256))

ODD_ROWS: tuple[dict[str, object], ...] = (
    {"timestamp": 0, "key": None, "value": b"", "headers": None, "id": None, "tenant": None},
    {"timestamp": 1, "key": b"", "value": b"\0", "headers": [], "id": b"\0" * 16, "tenant": ""},
    {
        "timestamp": 1_700_000_000_123_457,
        "key": ALL_BYTES,
        "value": ALL_BYTES * 3,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": ALL_BYTES}, {"key": "", "value": None}],
        "id": ALL_BYTES[240:],
        "tenant": "größe 日本 𝄞",
    },
    {"timestamp": -1, "key": b"k", "value": b"v", "headers": [{"key": "é", "value": b""}], "id": None, "tenant": "\0"},
)
"""Messages that need care on their way into a log: nothing beside empty, every byte, doubled names, odd times."""


class MessagePromises(LogPromises):
    # ---- offsets ----------------------------------------------------------------------------------------------------

    def test_a_new_log_is_empty(self, open_log: OpenLog) -> None:
        log = open_log(partitions=3)
        assert [log.bounds(partition) for partition in range(3)] == [(0, 0)] * 3
        assert log.read(2, 0) is None

    def test_offsets_are_dense_from_zero_in_each_partition(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        assert log.append({0: entries(numbered(3)), 1: entries(numbered(2, 50))}) == {0: 0, 1: 0}
        assert log.append({0: entries(numbered(2, 3))}) == {0: 3}
        assert read_all(log, 0) == list(enumerate(numbered(5)))
        assert read_all(log, 1) == list(enumerate(numbered(2, 50)))
        assert (log.bounds(0), log.bounds(1)) == ((0, 5), (0, 2))

    def test_a_few_messages_as_plain_values_are_stored_as_batches_are(self, open_log: OpenLog) -> None:
        """``append_rows`` and ``read_rows`` may be a shorter way. They lead to the same place, retries included."""
        log, stamp = open_log(partitions=2), Stamp("p", 1)
        log.append({0: entries(numbered(2))})
        few = FewRows([5, -7], [ALL_BYTES, None], [b"", ALL_BYTES], bytes(range(32)))
        assert log.append_rows({0: few, 1: few}, {0: stamp, 1: stamp}) == {0: 2, 1: 0}
        assert log.append_rows({0: few}, {0: stamp}) == {0: 2}, "a retry is stored once"
        log.append({0: entries(numbered(1, 9))})
        assert log.bounds(0) == (0, 5)
        for partition, start, stored in ((0, 2, 2), (1, 0, 2)):
            expected = few.batch().to_pylist()
            table = read_table(log, partition).slice(start, stored)
            assert table.select(ENTRY_SCHEMA.names).to_pylist() == expected
            rows = _plain(log, partition, start, stored)
            assert [row[1] for row in rows] == list(range(start, start + stored))
            assert [(row[2], row[3], row[5]) for row in rows] == [(e["key"], e["value"], e["id"]) for e in expected]

    def test_batches_for_several_partitions_go_each_to_its_own(self, open_log: OpenLog) -> None:
        log = open_log(partitions=4)
        for turn, order in enumerate([(3, 0, 2), (1, 3), (2, 1, 0, 3)]):
            sent = {partition: entries([b"%d-%d" % (partition, turn)] * (partition + 1)) for partition in order}
            assert set(log.append(sent)) == set(order)
        turns = {0: (0, 2), 1: (1, 2), 2: (0, 2), 3: (0, 1, 2)}
        for partition, expected in turns.items():
            values = [b"%d-%d" % (partition, turn) for turn in expected for _ in range(partition + 1)]
            assert read_all(log, partition) == list(enumerate(values))

    def test_messages_keep_the_order_they_were_sent_in(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        values = [b"%d" % (number * 7_919 % 100) for number in range(100)]
        log.append({0: entries(values[:60], time_us=9_000, step_us=-13)})
        log.append({0: entries(values[60:], time_us=5, step_us=0)})
        assert read_all(log, 0) == list(enumerate(values))

    def test_an_empty_batch_stores_nothing(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        assert log.append({0: entries([])}) == {0: 0}
        log.append({0: entries(numbered(2))})
        assert log.append({0: entries([]), 1: entries(numbered(1))}) == {0: 2, 1: 0}
        assert log.append({}) == {}
        assert log.append({0: entries(numbered(1, 2))}) == {0: 2}
        assert read_all(log, 0) == list(enumerate(numbered(3)))
        assert log.bounds(1) == (0, 1)

    # ---- content ----------------------------------------------------------------------------------------------------

    def test_every_column_comes_back(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        batch = entries(numbered(3), time_us=7)
        log.append({0: batch})
        read = log.read(0, 0)
        assert read is not None
        assert read.schema.equals(SCHEMA)
        assert read.select(batch.schema.names).to_pylist() == batch.to_pylist()

    def test_keys_headers_tenants_ids_and_times_come_back_bit_for_bit(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        sent = pa.RecordBatch.from_pylist(list(ODD_ROWS), schema=ENTRY_SCHEMA)
        log.append({0: sent})
        for number in range(sent.num_rows):
            log.append({0: sent.slice(number, 1)})
        log.close()
        found = read_table(open_log(create=False), 0)
        expected = pa.Table.from_batches([sent, sent])
        for column in ENTRY_SCHEMA.names:
            assert found.column(column).equals(expected.column(column)), f"column {column!r} came back changed"
        found.validate(full=True)

    def test_a_part_of_a_larger_batch_is_stored_alone(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        large = entries(numbered(20))
        assert [log.append({0: large.slice(first, 4)})[0] for first in (3, 16, 7)] == [0, 4, 8]
        expected = [*numbered(4, 3), *numbered(4, 16), *numbered(4, 7)]
        assert read_all(log, 0) == list(enumerate(expected))
        assert read_table(log, 0).column("key").to_pylist()[4] == b"key-16"

    def test_large_values_are_stored(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        values = [b"small", ALL_BYTES * (self.large_value // 256), b"after", b"\0" * self.large_value]
        log.append({0: entries(values[:3])})
        log.append({0: entries(values[3:])})
        assert log.bounds(0) == (0, 4)
        found = read_all(log, 0)
        assert [len(value) for _, value in found] == [len(value) for value in values]
        assert [number for number, (_, value) in enumerate(found) if value != values[number]] == []

    def test_a_batch_of_many_messages_is_stored(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        assert log.append({0: entries(numbered(12_000))}) == {0: 0}
        assert log.append({0: entries(numbered(1, 12_000))}) == {0: 12_000}
        assert read_all(log, 0) == list(enumerate(numbered(12_001)))

    def test_what_was_read_stays_as_it_was(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        expected = fill(log, 3)
        held = [batch for offset in (0, 3, 6) if (batch := log.read(0, offset)) is not None]
        fill(log, 3)
        log.trim(0, 6)
        log.close()
        assert [pair for batch in held for pair in pairs(batch)][: len(expected)] == expected

    # ---- reading ----------------------------------------------------------------------------------------------------

    def test_reads_start_anywhere_and_keep_to_max_rows(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        for size in (1, 5, 2, 4):
            _, end = log.bounds(0)
            log.append({0: entries(numbered(size, end))})
        expected = list(enumerate(numbered(12)))
        for start in range(12):
            for max_rows in range(1, 8):
                assert read_all(log, 0, start, max_rows) == expected[start:]

    def test_b27_an_offset_beyond_the_end_is_an_error_not_a_wait(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        with pytest.raises(BeyondEnd, match=r"offset 1 .* ends at 0"):
            log.read(0, 1)
        log.append({0: entries(numbered(2))})
        assert log.read(0, 2) is None
        for offset in (3, 4, 10**12):
            with pytest.raises(BeyondEnd, match=rf"offset {offset} .* ends at 2"):
                log.read(0, offset)

    def test_an_offset_below_the_start_names_the_gap(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(2))})
        with pytest.raises(Expired, match="-5 to -1"):
            log.read(0, -5)

    # ---- times ------------------------------------------------------------------------------------------------------

    def test_finds_an_offset_by_time(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        log.append({0: entries(numbered(3), time_us=100, step_us=10)})
        log.append({0: entries(numbered(3), time_us=200, step_us=10)})
        asked = [0, 100, 101, 120, 121, 200, 220, 221]
        assert [log.offset_at(0, time_us) for time_us in asked] == [0, 0, 1, 2, 3, 3, 5, 6]
        assert log.offset_at(1, 0) == 0

    def test_finds_the_first_of_several_messages_of_one_time(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        for time_us in (100, 200, 200, 200, 300):
            log.append({0: entries(numbered(2), time_us)})
        assert [log.offset_at(0, time_us) for time_us in (100, 200, 300)] == [0, 2, 8]

    def test_finds_an_offset_by_time_where_times_do_not_rise(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(2), time_us=500, step_us=-400)})
        log.append({0: entries(numbered(2), time_us=300, step_us=10)})
        log.append({0: entries(numbered(3), time_us=700, step_us=-50)})
        log.append({0: entries(numbered(1), time_us=50)})
        asked = (50, 310, 500, 501, 650, 700, 701)
        assert [log.offset_at(0, time_us) for time_us in asked] == [0, 0, 0, 4, 4, 4, 8]

    # ---- what is refused --------------------------------------------------------------------------------------------

    def test_a_partition_that_is_not_there_is_refused(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        for partition in (-1, 2):
            with pytest.raises(NotFound, match="0 to 1"):
                log.read(partition, 0)
            with pytest.raises(NotFound, match="0 to 1"):
                log.append({0: entries([b"x"]), partition: entries([b"x"])})
        assert log.bounds(0) == (0, 0)

    def test_a_batch_of_another_shape_is_refused_before_anything_is_stored(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        good = entries([b"x"])
        with pytest.raises(Refused, match="value binary"):
            log.append({0: good, 1: good.drop_columns(["value"])})
        null = good.set_column(2, good.schema.field("value"), pa.array([None], pa.binary()))
        with pytest.raises(Refused, match="value"):
            log.append({0: good, 1: null})
        assert (log.bounds(0), log.bounds(1)) == ((0, 0), (0, 0))


def _plain(log: Log, partition: int, offset: int, count: int) -> list[Row]:
    """So many messages by ``read_rows``, which may give Arrow or plain values, and fewer than asked for."""
    found: list[Row] = []
    while len(found) < count:
        part = log.read_rows(partition, offset + len(found), count - len(found))
        assert part is not None, f"offset {offset + len(found)} is not there"
        found += part if isinstance(part, list) else _rows_of(part, partition)
    return found


def _rows_of(batch: pa.RecordBatch, partition: int) -> list[Row]:
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    rows = zip(batch.to_pylist(), times, strict=True)
    return [(partition, r["offset"], r["key"], r["value"], t, r["id"], r["headers"], r["tenant"]) for r, t in rows]
