"""Promises about logs as wholes: what is recorded of them, their names, the logs beside them, and their end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pxrs.errors import BadName, BadUrl, Closed, Mismatch, NotFound
from pxrs.testing.logs.hooks import LogPromises, OpenLog, entries, existing, numbered, read_all


class NamePromises(LogPromises):
    def test_the_identity_is_recorded_and_kept(self, open_log: OpenLog) -> None:
        made = open_log("orders", partitions=5, hash="sha256", reduce="jump").identity
        assert (made.partitions, made.hash, made.reduce) == (5, "sha256", "jump")
        assert made.name.endswith("orders")
        assert open_log("orders", create=False).identity == made
        assert open_log("orders", partitions=5, hash="sha256").identity == made

    def test_every_log_has_an_id_of_its_own_and_keeps_it(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=1), open_log("other", partitions=1)
        siblings = [existing(log.sibling(name, 1, create=True)) for name in ("a", "b")]
        ids = [found.identity.id for found in (log, other, *siblings)]
        assert len(set(ids)) == 4 and all(ids)
        again = [open_log(create=False), open_log("other"), log.sibling("a", 1, False), log.sibling("b", 1, True)]
        assert [existing(found).identity.id for found in again] == ids

    def test_b67_another_count_or_hash_is_refused(self, open_log: OpenLog) -> None:
        open_log(partitions=8, hash="sha256", reduce="pmod")
        others: list[dict[str, object]] = [{"partitions": 4}, {"hash": "xxh64"}, {"reduce": "jump"}]
        for options in others:
            with pytest.raises(Mismatch, match=r"8|sha256|pmod"):
                open_log(**options)

    def test_a_log_that_is_not_there_is_named(self, open_log: OpenLog) -> None:
        for _ in range(2):
            with pytest.raises(NotFound, match="absent"):
                open_log("absent", create=False)

    def test_logs_of_other_names_are_others(self, open_log: OpenLog) -> None:
        names = ("a", "A", "a-1", "a.1", "a_1")
        for name in names:
            open_log(name, partitions=1).append({0: entries([name.encode()])})
        assert [read_all(open_log(name, create=False), 0) for name in names] == [[(0, n.encode())] for n in names]

    def test_b66_bad_names_are_refused(self, open_log: OpenLog) -> None:
        for name in self.bad_names:
            for create in (True, False):
                with pytest.raises((BadName, BadUrl)):  # a NUL makes no URL, whatever the name is
                    open_log(name, create=create)

    # ---- siblings ---------------------------------------------------------------------------------------------------

    def test_a_sibling_is_a_log_of_its_own(self, open_log: OpenLog) -> None:
        log = open_log(partitions=3)
        assert log.sibling("dead-letters/billing", 1, create=False) is None
        dead = existing(log.sibling("dead-letters/billing", 1, create=True))
        assert dead.identity.partitions == 1
        dead.append({0: entries([b"poison"])})
        other = existing(log.sibling("dead-letters/shipping", 1, create=True))
        assert (other.bounds(0), log.bounds(0)) == ((0, 0), (0, 0))
        log.append({0: entries(numbered(2))})
        assert read_all(dead, 0) == [(0, b"poison")]

    def test_a_sibling_is_found_again_by_others_and_after_reopening(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=1), open_log(create=False)
        existing(log.sibling("side/a", 2, create=True)).append({1: entries([b"kept"])})
        assert read_all(existing(other.sibling("side/a", 2, create=False)), 1) == [(0, b"kept")]
        log.close()
        again = open_log(create=False)
        assert read_all(existing(again.sibling("side/a", 2, create=True)), 1) == [(0, b"kept")]

    def test_a_sibling_belongs_to_its_log(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=1), open_log("other", partitions=1)
        existing(log.sibling("side", 1, create=True)).append({0: entries([b"x"])})
        assert other.sibling("side", 1, create=False) is None
        assert existing(other.sibling("side", 1, create=True)).bounds(0) == (0, 0)

    def test_b66_bad_sibling_names_are_refused(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        for name in self.bad_siblings:
            for create in (True, False):
                with pytest.raises(BadName):
                    log.sibling(name, 1, create)

    def test_b67_a_sibling_with_another_count_is_refused(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.sibling("side", 2, create=True)
        for create in (True, False):
            with pytest.raises(Mismatch):
                log.sibling("side", 3, create)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def test_a_closed_log_says_so(self, open_log: OpenLog) -> None:
        log = open_log(partitions=1)
        log.append({0: entries([b"x"])})
        log.close()
        log.close()
        calls: list[Callable[[], object]] = [
            lambda: log.read(0, 0),
            lambda: log.append({0: entries([b"y"])}),
            lambda: log.bounds(0),
            lambda: log.offset_at(0, 0),
            lambda: log.chunks(0),
            lambda: log.trim(0, 0),
            lambda: log.pieces(0, 0, 1),
            lambda: log.subscribe(0, lambda: None),
        ]
        for call in calls:
            with pytest.raises(Closed, match=log.identity.name):
                call()

    def test_a_closed_log_closes_no_other(self, open_log: OpenLog) -> None:
        log, other = open_log(partitions=1), open_log(create=False)
        log.append({0: entries(numbered(1))})
        log.close()
        assert other.append({0: entries(numbered(1, 1))}) == {0: 1}
        assert read_all(other, 0) == list(enumerate(numbered(2)))
