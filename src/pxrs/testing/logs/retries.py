"""Promises about retries (B-62): the same stamp is stored once, and nothing that was acknowledged is missing.

A log may forget stamps after a while. It must know those of the last two batches of a partition; how far back its
window reaches beyond them is its own affair.
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from pxrs.errors import Conflict, Refused
from pxrs.logs.base import Stamp
from pxrs.testing.logs.hooks import SMALL, LogPromises, OpenLog, entries, fill, numbered, pairs, read_all


class RetryPromises(LogPromises):
    def test_b62_the_same_stamp_is_stored_once(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        first = {0: Stamp("p", 0), 1: Stamp("p", 0)}
        batches = {0: entries(numbered(2)), 1: entries(numbered(3))}
        assert log.append(batches, first) == {0: 0, 1: 0}
        assert log.append({0: entries(numbered(2, 2))}, {0: Stamp("p", 1)}) == {0: 2}
        log.append(batches, first)
        assert read_all(log, 0) == list(enumerate(numbered(4)))
        assert log.bounds(1) == (0, 3)

    def test_b62_a_retry_gets_the_old_offset(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(2))})
        batch, stamp = {0: entries(numbered(2, 2))}, {0: Stamp("p", 0)}
        assert log.append(batch, stamp) == {0: 2}
        assert log.append(batch, stamp) == {0: 2}
        assert log.append({0: entries(numbered(2, 4))}, {0: Stamp("p", 1)}) == {0: 4}
        assert log.append(batch, stamp) == {0: 2}
        assert read_all(log, 0) == list(enumerate(numbered(6)))

    def test_b62_another_producer_or_sequence_is_another_batch(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        stamps = [Stamp("p", 0), Stamp("q", 0), Stamp("p", 1), Stamp("p1", 0), Stamp("p", 10), Stamp("P", 0)]
        for number, stamp in enumerate(stamps):
            assert log.append({0: entries(numbered(1, number))}, {0: stamp}) == {0: number}
        assert read_all(log, 0) == list(enumerate(numbered(6)))

    def test_b62_equal_batches_without_a_stamp_are_stored_each(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        assert [log.append({0: entries([b"same"])})[0] for _ in range(3)] == [0, 1, 2]
        assert read_all(log, 0) == [(0, b"same"), (1, b"same"), (2, b"same")]

    def test_b62_a_stamp_counts_for_its_partition_alone(self, open_log: OpenLog) -> None:
        log = open_log(partitions=3)
        for partition in range(3):
            log.append({partition: entries(numbered(2, partition))}, {partition: Stamp("p", 0)})
        assert [read_all(log, number) for number in range(3)] == [list(enumerate(numbered(2, n))) for n in range(3)]

    def test_b62_a_retry_stores_what_the_first_try_did_not(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        stamps = {0: Stamp("p", 0), 1: Stamp("p", 0)}
        log.append({0: entries(numbered(1)), 1: entries(numbered(1))})
        log.append({1: entries(numbered(2, 1))}, stamps)
        assert log.append({0: entries(numbered(2, 1)), 1: entries(numbered(2, 1))}, stamps) == {0: 1, 1: 1}
        assert read_all(log, 0) == read_all(log, 1) == list(enumerate(numbered(3)))

    def test_b62_a_retry_through_another_opener_is_known(self, open_log: OpenLog) -> None:
        first, second = open_log(partitions=1), open_log(create=False)
        batch, stamp = {0: entries(numbered(2, 1))}, {0: Stamp("p", 7)}
        second.append({0: entries(numbered(1))})
        assert first.append(batch, stamp) == {0: 1}
        assert second.append(batch, stamp) == {0: 1}
        assert second.append({0: entries(numbered(1, 3))}, {0: Stamp("p", 8)}) == {0: 3}
        assert first.append(batch, stamp) == {0: 1}
        assert read_all(first, 0) == read_all(second, 0) == list(enumerate(numbered(4)))

    def test_b62_a_retry_after_reopening_is_known(self, open_log: OpenLog) -> None:
        batches = [{0: entries(numbered(2, 2 * number))} for number in range(3)]
        log = open_log(partitions=1)
        for number, batch in enumerate(batches):
            log.append(batch, {0: Stamp("p", number)})
        log.close()
        for number in (1, 2):
            log = open_log(create=False)
            assert log.append(batches[number], {0: Stamp("p", number)}) == {0: 2 * number}
            log.close()
        assert read_all(open_log(create=False), 0) == list(enumerate(numbered(6)))

    def test_b62_a_retry_after_a_trim_is_known(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 4)
        batch, stamp = {0: entries(numbered(3, 12))}, {0: Stamp("p", 0)}
        log.append(batch, stamp)
        log.append({0: entries(numbered(3, 15))})
        start = log.trim(0, 12)
        assert log.append(batch, stamp) == {0: 12}
        assert read_all(log, 0, start) == list(enumerate(numbered(18)))[start:]

    def test_b62_a_refused_batch_does_not_use_up_its_stamp(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        good, stamps = entries(numbered(2)), {0: Stamp("p", 0), 1: Stamp("p", 0)}
        with pytest.raises(Refused):
            log.append({0: good, 1: good.drop_columns(["key"])}, stamps)
        assert log.append({0: good, 1: good}, stamps) == {0: 0, 1: 0}
        assert read_all(log, 0) == read_all(log, 1) == list(enumerate(numbered(2)))

    def test_b62_a_retry_long_after_is_never_swallowed(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        batch, stamp = {0: entries(numbered(3))}, {0: Stamp("p", 0)}
        log.append(batch, stamp)
        fill(log, 20)
        offset = log.append(batch, stamp)[0]
        found = log.read(0, offset, 3)
        assert found is not None and pairs(found) == list(enumerate(numbered(3), offset))
        assert log.bounds(0) in ((0, 63), (0, 66)), "it was stored again as a whole, or not at all"

    def test_b62_other_content_under_a_used_stamp_is_refused_and_nothing_is_stored(self, open_log: OpenLog) -> None:
        log, again = open_log(partitions=2), open_log(create=False)
        first, other = Stamp("p", 0, content="2/a"), Stamp("p", 0, content="2/b")
        assert log.append({0: entries(numbered(2))}, {0: first}) == {0: 0}
        for partition in (0, 1):  # also where it is stored elsewhere
            with pytest.raises(Refused, match="sent other messages as batch 0 before"):
                again.append({partition: entries(numbered(2, 2))}, {0: other, 1: other})
        assert (log.bounds(0), log.bounds(1)) == ((0, 2), (0, 0))
        assert again.append({0: entries(numbered(2))}, {0: first, 1: first}) == {0: 0}

    def test_b62_a_retry_that_says_since_when_is_never_stored_twice(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1, settings=SMALL)
        fill(log, 1)
        batch, stamp = {0: entries(numbered(3, 3))}, {0: Stamp("p", 0, since=3)}
        assert log.append(batch, stamp) == {0: 3}
        fill(log, 20)
        end = log.bounds(0)[1]
        for opened in (log, open_log(create=False)):
            with suppress(Conflict):  # it cannot tell any more
                assert opened.append(batch, stamp) == {0: 3}
        assert log.bounds(0)[1] == end
        assert log.append({0: entries(numbered(3))}, {0: Stamp("p", 1, since=end)}) == {0: end}
