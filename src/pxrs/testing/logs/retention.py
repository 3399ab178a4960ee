"""Promises about what is stored and deleted as a whole: chunks, trims, seals, and pieces for other processes."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from pxrs.errors import BeyondEnd, Expired, Refused
from pxrs.logs.base import Chunk, Log, Piece, Stamp
from pxrs.logs.pieces import read_range
from pxrs.testing.logs.hooks import (
    SMALL,
    LogPromises,
    OpenLog,
    covers,
    entries,
    fill,
    numbered,
    pairs,
    read_all,
    read_table,
)
from pxrs.testing.stores.hooks import Background


def starts_after(chunks: Sequence[Chunk], offset: int) -> set[int]:
    """The offsets at which a log with these chunks may start after a trim: the last chunk, which may grow, may stay."""
    gone = [chunk for chunk in chunks if chunk.end <= offset]
    starts = {gone[-1].end if gone else chunks[0].start}
    return starts | {chunks[-1].start} if len(gone) == len(chunks) else starts


def pieces_of(log: Log, start: int, end: int) -> Sequence[Piece] | None:
    """None if the log cannot be read in pieces, which it must say as Refused."""
    try:
        return log.pieces(0, start, end)
    except Refused:
        return None


class RetentionPromises(LogPromises):
    # ---- chunks -----------------------------------------------------------------------------------------------------

    def test_chunks_are_contiguous_and_cover_what_can_be_read(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2, settings=SMALL)
        assert covers(log.chunks(0), (0, 0))
        for _ in range(6):
            fill(log, 1)
            assert covers(log.chunks(0), log.bounds(0)), f"{log.chunks(0)} for {log.bounds(0)}"
        assert len(log.chunks(0)) > 1, "with small segments a log has several chunks"
        assert covers(log.chunks(1), (0, 0)), "nothing was appended there"

    def test_chunks_tell_their_size_and_their_newest_time(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        for time_us in (500, 100, 900, 300):
            log.append({0: entries(numbered(3), time_us, -10)})
        times = [500, 490, 480, 100, 90, 80, 900, 890, 880, 300, 290, 280]
        for chunk in log.chunks(0):
            assert chunk.bytes > 0, f"{chunk} holds messages"
            assert chunk.last_us in (None, max(times[chunk.start : chunk.end]))

    # ---- trims ------------------------------------------------------------------------------------------------------

    def test_a_trim_deletes_whole_chunks_only(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        expected = fill(log, 6)
        for offset in range(19):
            allowed = starts_after(log.chunks(0) or [Chunk("", "", 18, 18, 0, None)], offset)
            start = log.trim(0, offset)
            assert start in allowed
            assert log.bounds(0) == (start, 18)
            assert read_all(log, 0, start) == expected[start:]
            assert covers(log.chunks(0), (start, 18))

    def test_a_trim_is_seen_by_others_and_after_reopening(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=1, settings=SMALL), open_log(create=False, settings=SMALL)
        expected = fill(log, 6)
        assert read_all(other, 0) == expected
        start = log.trim(0, 10)
        assert 0 < start <= 10
        for opened in (other, open_log(create=False, settings=SMALL)):
            assert opened.bounds(0) == (start, 18)
            assert read_all(opened, 0, start) == expected[start:]
            with pytest.raises(Expired):
                opened.read(0, start - 1)
            assert opened.trim(0, 10) == start

    def test_b39_a_reader_behind_a_trim_is_told_the_gap(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 6)
        start = log.trim(0, 12)
        assert start > 0
        for offset in (0, start - 1):
            with pytest.raises(Expired, match=rf"\b{offset} to {start - 1}\b"):
                log.read(0, offset)
        found = log.read(0, start)
        assert found is not None and pairs(found)[0] == (start, b"value-%d" % start)

    def test_a_trim_of_everything_keeps_the_end_and_the_next_offset(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=1, settings=SMALL), open_log(create=False, settings=SMALL)
        fill(log, 4)
        start = log.trim(0, 12)
        for opened in (log, other, open_log(create=False, settings=SMALL)):
            assert opened.bounds(0) == (start, 12)
            assert opened.read(0, 12) is None
            assert opened.offset_at(0, 10**15) == 12
            with pytest.raises(BeyondEnd):
                opened.read(0, 13)
        log.close()
        again = open_log(create=False, settings=SMALL)
        assert again.append({0: entries(numbered(2, 12))}) == {0: 12}
        assert read_all(again, 0, 12) == read_all(other, 0, 12) == list(enumerate(numbered(2, 12), 12))

    def test_offsets_go_on_without_a_gap_after_a_trim(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 3)
        start = log.trim(0, 6)
        assert log.append({0: entries(numbered(3, 9))}) == {0: 9}
        assert read_all(log, 0, start) == list(enumerate(numbered(12)))[start:]
        assert covers(log.chunks(0), (start, 12))

    def test_a_trim_never_goes_back(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        assert log.trim(0, 0) == 0
        expected = fill(log, 6)
        start = log.trim(0, 9)
        for offset in (9, 4, 0, -1):
            assert log.trim(0, offset) == start
        assert read_all(log, 0, start) == expected[start:]

    def test_a_trim_beyond_the_end_is_refused(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        expected = fill(log, 3)
        with pytest.raises(BeyondEnd, match=r"offset 10 .* ends at 9"):
            log.trim(0, 10)
        assert log.bounds(0) == (0, 9)
        assert read_all(log, 0) == expected

    def test_a_trim_concerns_its_partition_alone(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2, settings=SMALL)
        expected = fill(log, 4, partition=1)
        fill(log, 4, partition=0)
        assert log.trim(0, 9) > 0
        assert log.bounds(1) == (0, 12)
        assert read_all(log, 1) == expected

    def test_an_offset_by_time_is_never_below_the_start(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 6)
        start = log.trim(0, 9)
        assert [log.offset_at(0, time_us) for time_us in (0, 3_000, 1_000 * start)] == [start] * 3
        assert [log.offset_at(0, 1_000 * offset) for offset in range(start, 19)] == list(range(start, 19))

    def test_readers_and_writers_go_on_beside_a_trim(self, open_log: OpenLog) -> None:
        log, reader = open_log(partitions=1, settings=SMALL), open_log(create=False, settings=SMALL)
        done = threading.Event()

        def trim() -> None:
            while not done.is_set():
                log.trim(0, max(0, log.bounds(0)[1] - 9))

        calls = [Background(trim), Background(follow_behind_trims, reader, done)]
        try:
            fill(log, 40)
        finally:
            done.set()
        for call in calls:
            call.result(self.patience, "a trim, or a reader beside it")
        start = log.trim(0, 111)
        assert start > 0 and reader.bounds(0) == (start, 120)
        assert read_all(reader, 0, start) == list(enumerate(numbered(120)))[start:]

    # ---- seals ------------------------------------------------------------------------------------------------------

    def test_a_seal_changes_no_message(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=2, settings=SMALL), open_log(create=False, settings=SMALL)
        fill(log, 8)
        before = read_table(other, 0)
        log.seal(0)
        for opened in (log, other, open_log(create=False, settings=SMALL)):
            assert opened.bounds(0) == (0, 24)
            assert read_table(opened, 0).equals(before)
            assert [opened.offset_at(0, 1_000 * offset) for offset in range(25)] == list(range(25))
            assert covers(opened.chunks(0), (0, 24))

    def test_a_seal_tells_only_what_it_made(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2, settings=SMALL)
        fill(log, 6)
        first = log.seal(0)
        assert set(first) <= set(log.chunks(0))
        assert list(log.seal(0)) == [], "nothing is sealed twice"
        assert list(log.seal(1)) == [], "there is nothing to seal"
        fill(log, 3)
        assert not set(log.seal(0)) & set(first)

    def test_reads_go_over_from_what_is_sealed_to_what_is_not(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 5)
        log.seal(0)
        fill(log, 3)
        expected = list(enumerate(numbered(24)))
        for start in range(24):
            assert read_all(log, 0, start, 1 + start % 5) == expected[start:]

    def test_appends_retries_and_trims_go_on_after_a_seal(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 5)
        batch, stamp = {0: entries(numbered(3, 15))}, {0: Stamp("p", 0)}
        log.append(batch, stamp)
        log.seal(0)
        assert log.append(batch, stamp) == {0: 15}
        assert log.append({0: entries(numbered(3, 18))}) == {0: 18}
        start = log.trim(0, 6)
        assert 0 < start <= 6
        for opened in (log, open_log(create=False, settings=SMALL)):
            assert read_all(opened, 0, start) == list(enumerate(numbered(21)))[start:]

    # ---- pieces -----------------------------------------------------------------------------------------------------

    def test_pieces_cover_exactly_what_was_asked_for(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        expected = fill(log, 3)
        log.seal(0)
        expected += fill(log, 2, rows=2)
        for start in range(14):
            for end in range(start, 14):
                pieces = pieces_of(log, start, end)
                if pieces is not None:
                    found = [pair for batch in read_range(pieces, start, end) for pair in pairs(batch)]
                    assert found == expected[start:end]

    def test_pieces_of_what_is_not_there_are_refused(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 4)
        start = log.trim(0, 6)
        with pytest.raises((Expired, Refused)):
            log.pieces(0, start - 1, 12)
        with pytest.raises((BeyondEnd, Refused)):
            log.pieces(0, start, 13)


def follow_behind_trims(log: Log, done: threading.Event) -> None:
    """Read on and on; what was trimmed in the meantime is left out, but nothing else is wrong."""
    offset = 0
    while not done.is_set():
        try:
            found = log.read(0, offset, 2)
        except Expired:
            offset = log.bounds(0)[0]
            continue
        if found is not None:
            assert pairs(found) == list(enumerate(numbered(found.num_rows, offset), offset))
            offset += found.num_rows
