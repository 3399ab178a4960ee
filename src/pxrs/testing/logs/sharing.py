"""Promises about several who use one log: threads, openers, readers that watch. Nobody loses or doubles anything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from pxrs.logs.base import Log, Stamp
from pxrs.testing.logs.hooks import LogPromises, OpenLog, entries, numbered, read_all, run_together
from pxrs.testing.stores.hooks import Background

ROUNDS = 12


class SharingPromises(LogPromises):
    def test_what_is_acknowledged_is_seen_by_others_at_once(self, open_log: OpenLog) -> None:
        first, second = open_log(partitions=1), open_log(create=False)
        for number in range(6):
            writer, reader = (first, second) if number % 2 else (second, first)
            assert writer.append({0: entries(numbered(2, 2 * number))}) == {0: 2 * number}
            assert reader.bounds(0) == (0, 2 * number + 2)
            assert read_all(reader, 0) == list(enumerate(numbered(2 * number + 2)))

    def test_what_is_acknowledged_is_there_after_reopening(self, open_log: OpenLog) -> None:
        expected: list[bytes] = []
        for number in range(3):
            log = open_log(partitions=2)
            assert log.append({1: entries(numbered(2, 2 * number))}) == {1: 2 * number}
            expected += numbered(2, 2 * number)
            log.close()
            assert read_all(open_log(create=False), 1) == list(enumerate(expected))

    # ---- several writers --------------------------------------------------------------------------------------------

    def test_threads_append_and_read_through_one_object(self, open_log: OpenLog) -> None:
        log = open_log(partitions=4)

        def work(partition: int) -> None:
            for number in range(ROUNDS):
                log.append({partition: entries([b"%d-%d" % (partition, number)])})
                found = log.read(partition, number)
                assert found is not None, "a thread does not see what it has appended"

        run_together(self.patience, [partial(work, number) for number in range(4)])
        for partition in range(4):
            assert read_all(log, partition) == [(n, b"%d-%d" % (partition, n)) for n in range(ROUNDS)]

    def test_threads_that_append_to_one_partition_stay_dense_and_lose_nothing(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        self._append_together([log] * 4)

    def test_openers_that_append_to_one_partition_stay_dense_and_lose_nothing(self, open_log: OpenLog) -> None:
        first = open_log(partitions=1)
        self._append_together([first, open_log(create=False), first, open_log(create=False)])

    def _append_together(self, logs: list[Log]) -> None:
        """Let each producer append numbered batches; each batch must be at the offset of its receipt, in order."""

        def work(log: Log, producer: int) -> list[int]:
            sent = [entries([b"%d-%d" % (producer, n)] * 3) for n in range(ROUNDS)]
            return [log.append({0: batch}, {0: Stamp(f"p{producer}", n)})[0] for n, batch in enumerate(sent)]

        told = run_together(self.patience, [partial(work, log, number) for number, log in enumerate(logs)])
        expected = {
            offset + row: b"%d-%d" % (producer, number)
            for producer, offsets in enumerate(told)
            for number, offset in enumerate(offsets)
            for row in range(3)
        }
        assert all(offsets == sorted(offsets) for offsets in told), "a producer's batches are out of order"
        assert sorted(expected) == list(range(3 * ROUNDS * len(logs))), "offsets were given twice, or left out"
        for log in logs:
            assert read_all(log, 0) == sorted(expected.items())

    def test_openers_that_append_to_several_partitions_at_once_do_not_stop_each_other(self, open_log: OpenLog) -> None:
        first = open_log(partitions=3)
        logs = [first, open_log(create=False), first]
        orders = [(0, 1, 2), (2, 1, 0), (1, 2, 0)]

        def work(log: Log, order: tuple[int, ...]) -> None:
            for number in range(ROUNDS):
                log.append({partition: entries([b"%d" % number] * 2) for partition in order})

        run_together(self.patience, [partial(work, *pair) for pair in zip(logs, orders, strict=True)])
        for partition in range(3):
            found = read_all(first, partition)
            assert [offset for offset, _ in found] == list(range(6 * ROUNDS))
            assert sorted(value for _, value in found) == sorted([b"%d" % n for n in range(ROUNDS)] * 6)

    def test_readers_see_no_half_batch(self, open_log: OpenLog) -> None:
        log, reader = open_log(partitions=1), open_log(create=False)
        done = threading.Event()

        def look() -> None:
            seen = 0
            while not done.is_set():
                assert reader.bounds(0)[1] % 7 == 0, "the end is inside of a batch"
                seen += len(read_all(reader, 0, seen))
                assert seen % 7 == 0, "a part of a batch was read"

        looking = Background(look)
        try:
            for number in range(4 * ROUNDS):
                log.append({0: entries(numbered(7, 7 * number))})
        finally:
            done.set()
        looking.result(self.patience, "a reader beside a writer")
        assert read_all(reader, 0) == list(enumerate(numbered(28 * ROUNDS)))

    # ---- subscriptions ----------------------------------------------------------------------------------------------

    def test_a_subscriber_hears_of_an_append(self, open_log: OpenLog) -> None:
        log = open_log(partitions=2)
        heard, other = threading.Event(), threading.Event()
        cancels = [log.subscribe(0, heard.set), log.subscribe(1, other.set)]
        log.append({0: entries(numbered(1))})
        assert heard.wait(self.patience)
        assert not other.is_set(), "the subscriber of another partition was woken"
        for cancel in cancels:
            cancel()

    def test_every_subscriber_hears_of_an_append_by_another_opener(self, open_log: OpenLog) -> None:
        log, writer = open_log(partitions=1), open_log(create=False)
        heard = [threading.Event() for _ in range(3)]
        cancels = [log.subscribe(0, event.set) for event in heard]
        writer.append({0: entries(numbered(1))})
        assert [event.wait(self.patience) for event in heard] == [True] * 3
        for cancel in cancels:
            cancel()

    def test_a_reader_that_looks_when_told_misses_nothing(self, open_log: OpenLog) -> None:
        # Two followers play ping-pong: when one appends, the other nearly always sleeps already.
        first, second = open_log(partitions=2), open_log(create=False)
        ping = Background(self._answer, first, 0, 1, ROUNDS)
        pong = Background(self._answer, second, 1, 0, ROUNDS - 1)
        first.append({0: entries(numbered(1))})
        ping.result(2 * self.patience, "a reader that waits for its turn")
        pong.result(2 * self.patience, "a reader that waits for its turn")

    def _answer(self, log: Log, mine: int, theirs: int, turns: int) -> None:
        """Wait for message n of one partition, answer with message n of the other."""
        heard = threading.Semaphore(0)
        cancel = log.subscribe(mine, heard.release)
        for number in range(turns):
            while log.read(mine, number) is None:
                assert heard.acquire(timeout=self.patience), f"not woken for message {number}"
            log.append({theirs: entries(numbered(1, number))})
        cancel()

    def test_a_cancelled_subscription_is_silent(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        silent, heard = threading.Event(), threading.Event()
        cancel, cancel_other = log.subscribe(0, silent.set), log.subscribe(0, heard.set)
        cancel()
        cancel()
        log.append({0: entries(numbered(1))})
        assert heard.wait(self.patience)
        assert not silent.is_set()
        cancel_other()

    def test_a_subscriber_that_fails_harms_nobody(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        heard = threading.Event()

        def fail() -> None:
            raise RuntimeError("on purpose")

        callbacks: list[Callable[[], None]] = [fail, heard.set]
        cancels = [log.subscribe(0, callback) for callback in callbacks]
        assert log.append({0: entries(numbered(1))}) == {0: 0}
        assert heard.wait(self.patience)
        for cancel in cancels:
            cancel()
