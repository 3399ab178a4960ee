"""What every log must do. A test class inherits ``LogContract`` and gives a fixture ``open_log``:
``open_log(name="q", create=True, settings=None, **wish)`` opens the same place for the same name."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from pxrs.errors import BadName, BeyondEnd, Closed, Expired, Mismatch, NotFound, Refused
from pxrs.logs.base import SCHEMA, Stamp

from .helpers import OpenLog, entries, numbered, pairs, read_all


class LogContract:
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

    def test_every_column_comes_back(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        batch = entries(numbered(3), time_us=7)
        log.append({0: batch})
        read = log.read(0, 0)
        assert read is not None
        assert read.schema.equals(SCHEMA)
        assert read.select(batch.schema.names).to_pylist() == batch.to_pylist()

    def test_reads_start_inside_a_batch_and_keep_to_max_rows(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(10))})
        read = log.read(0, 4, max_rows=3)
        assert read is not None
        assert pairs(read) == list(enumerate(numbered(10)))[4:7]
        assert read_all(log, 0, max_rows=3) == list(enumerate(numbered(10)))

    def test_an_empty_batch_stores_nothing(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(2))})
        assert log.append({0: entries([])}) == {0: 2}
        assert log.bounds(0) == (0, 2)

    def test_b27_an_offset_beyond_the_end_is_an_error_not_a_wait(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(2))})
        assert log.read(0, 2) is None
        with pytest.raises(BeyondEnd, match=r"offset 3 .* ends at 2"):
            log.read(0, 3)

    def test_an_offset_below_the_start_names_the_gap(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(2))})
        with pytest.raises(Expired, match="-5 to -1"):
            log.read(0, -5)

    def test_b62_the_same_stamp_is_stored_once(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        first = {0: Stamp("p", 0), 1: Stamp("p", 0)}
        batches = {0: entries(numbered(2)), 1: entries(numbered(3))}
        assert log.append(batches, first) == {0: 0, 1: 0}
        assert log.append({0: entries(numbered(2, 2))}, {0: Stamp("p", 1)}) == {0: 2}
        assert log.append(batches, first) == {0: 0, 1: 0}
        assert read_all(log, 0) == list(enumerate(numbered(4)))
        assert log.bounds(1) == (0, 3)

    def test_b62_another_producer_or_sequence_is_another_batch(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        for stamp in (Stamp("p", 0), Stamp("q", 0), Stamp("p", 1)):
            log.append({0: entries([b"x"])}, {0: stamp})
        assert log.bounds(0) == (0, 3)

    def test_finds_an_offset_by_time(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(3), time_us=100, step_us=10)})
        log.append({0: entries(numbered(3), time_us=200, step_us=10)})
        asked = [0, 100, 101, 120, 121, 220, 221]
        assert [log.offset_at(0, time_us) for time_us in asked] == [0, 0, 1, 2, 3, 5, 6]

    def test_finds_an_offset_by_time_where_times_do_not_rise(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries(numbered(2), time_us=500, step_us=-400)})
        log.append({0: entries(numbered(2), time_us=300, step_us=10)})
        assert [log.offset_at(0, time_us) for time_us in (50, 310, 501)] == [0, 0, 4]

    def test_a_subscriber_hears_of_an_append_until_it_cancels(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        heard, other = threading.Semaphore(0), threading.Event()
        cancel = log.subscribe(0, heard.release)
        cancel_other = log.subscribe(1, other.set)
        log.append({0: entries(numbered(1))})
        assert heard.acquire(timeout=10)
        assert not other.is_set()
        cancel()
        cancel()
        cancel_other()

    def test_a_subscriber_that_fails_harms_nobody(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        heard = threading.Event()

        def fail() -> None:
            raise RuntimeError("on purpose")

        cancels = [log.subscribe(0, fail), log.subscribe(0, heard.set)]
        assert log.append({0: entries(numbered(1))}) == {0: 0}
        assert heard.wait(10)
        for cancel in cancels:
            cancel()

    def test_threads_append_and_read_through_one_object(self, open_log: OpenLog) -> None:
        log = open_log(partitions=4)

        def work(partition: int) -> None:
            for number in range(20):
                log.append({partition: entries([b"%d-%d" % (partition, number)])})
                log.read(partition, number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for partition in range(4):
            assert read_all(log, partition) == [(n, b"%d-%d" % (partition, n)) for n in range(20)]

    def test_threads_append_to_one_partition(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        firsts: list[int] = []

        def work() -> None:
            firsts.extend(log.append({0: entries(numbered(3))})[0] for _ in range(10))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(firsts) == list(range(0, 120, 3))
        assert [offset for offset, _ in read_all(log, 0)] == list(range(120))

    def test_the_identity_is_recorded_and_kept(self, open_log: OpenLog) -> None:
        made = open_log(partitions=5, hash="sha256", reduce="jump").identity
        assert (made.name, made.partitions, made.hash, made.reduce) == ("q", 5, "sha256", "jump")
        assert open_log(create=False).identity == made

    def test_every_log_has_an_id_of_its_own_and_keeps_it(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=1), open_log("other", partitions=1)
        siblings = [log.sibling(name, 1, create=True) for name in ("a", "b")]
        ids = [found.identity.id for found in (log, other, *siblings) if found is not None]
        assert len(set(ids)) == 4 and all(ids)
        again = [open_log(create=False), open_log("other"), log.sibling("a", 1, False), log.sibling("b", 1, True)]
        assert [found.identity.id for found in again if found is not None] == ids

    @pytest.mark.parametrize("wish", [{"partitions": 4}, {"hash": "xxh64"}, {"reduce": "jump"}])
    def test_b67_another_count_or_hash_is_refused(self, open_log: OpenLog, wish: dict[str, object]) -> None:
        open_log(partitions=8, hash="sha256", reduce="pmod")
        with pytest.raises(Mismatch, match=r"8|sha256|pmod"):
            open_log(**wish)

    def test_a_log_that_is_not_there_is_named(self, open_log: OpenLog) -> None:
        with pytest.raises(NotFound, match="absent"):
            open_log("absent", create=False)

    @pytest.mark.parametrize("name", ["a" * 300, ".", "..", "a\0b", "a.", "-a", "C:\\x", "a b"])
    def test_b66_bad_names_are_refused(self, open_log: OpenLog, name: str) -> None:
        for create in (True, False):
            with pytest.raises(BadName):
                open_log(name, create=create)

    def test_a_sibling_is_a_log_of_its_own(self, open_log: OpenLog) -> None:
        log = open_log(partitions=3)
        assert log.sibling("dead-letters/billing", 1, create=False) is None
        dead = log.sibling("dead-letters/billing", 1, create=True)
        assert dead is not None and dead.identity.partitions == 1
        dead.append({0: entries([b"poison"])})
        again = log.sibling("dead-letters/billing", 1, create=False)
        assert again is not None and read_all(again, 0) == [(0, b"poison")]
        assert log.bounds(0) == (0, 0)
        other = log.sibling("dead-letters/shipping", 1, create=True)
        assert other is not None and other.bounds(0) == (0, 0)

    @pytest.mark.parametrize("name", ["", "../x", "a/../b", "/etc", "a//b", "a/", ".", "a\0"])
    def test_b66_bad_sibling_names_are_refused(self, open_log: OpenLog, name: str) -> None:
        log = open_log(partitions=1)
        for create in (True, False):
            with pytest.raises(BadName):
                log.sibling(name, 1, create)

    def test_b67_a_sibling_with_another_count_is_refused(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.sibling("side", 2, create=True)
        with pytest.raises(Mismatch):
            log.sibling("side", 3, create=True)

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
        assert log.bounds(0) == (0, 0)

    def test_a_closed_log_says_so(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.close()
        log.close()
        with pytest.raises(Closed, match="'q'"):
            log.read(0, 0)
