"""Planning of batches: fair, complete, and never larger than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxrs.errors import HandlerFailed, Refused
from pxrs.model import Batch, Grant, Owner, Range
from pxrs.rules.policies import (
    ENOUGH,
    GROWTH,
    PROOF_ROWS,
    Pace,
    halves,
    is_proved,
    needs_proof,
    share_out,
    singles_after,
    take_turns,
)

WAITING = st.dictionaries(st.integers(0, 20), st.integers(0, 1000), max_size=12)
RANGES = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 50)), min_size=1, max_size=10).map(
    lambda pairs: [Range(p, start, start + rows, 7) for p, (start, rows) in enumerate(pairs)]
)


def messages(ranges: list[Range] | tuple[Range, ...]) -> list[tuple[int, int]]:
    return [(part.partition, offset) for part in ranges for offset in range(part.start, part.end)]


@given(WAITING, st.integers(1, 5000))
def test_all_that_fits_is_given_and_never_more(waiting: dict[int, int], limit: int) -> None:
    shares = share_out(waiting, limit)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 < count <= waiting[p] for p, count in shares.items())


@given(WAITING, st.integers(1, 5000))
def test_nobody_gives_less_than_another_unless_it_is_emptied(waiting: dict[int, int], limit: int) -> None:
    shares = share_out(waiting, limit)
    most = max(shares.values(), default=0)
    assert all(shares.get(p, 0) >= most - 1 for p, count in waiting.items() if count > shares.get(p, 0))


@given(RANGES)
def test_halves_are_the_whole_in_order(ranges: list[Range]) -> None:
    first, second = halves(ranges)
    assert messages(first) + messages(second) == messages(ranges)
    assert abs(len(messages(first)) - len(messages(second))) <= 1
    assert {part.epoch for part in (*first, *second)} == {7}


def test_two_messages_are_cut_into_one_and_one() -> None:
    assert halves([Range(3, 5, 7)]) == ((Range(3, 5, 6),), (Range(3, 6, 7),))


@pytest.mark.parametrize(
    ("rows", "seconds", "expected"),
    [
        (100_000, 1.0, 100_000),  # as wished
        (100_000, 0.5, 200_000),  # twice as quick
        (100_000, 2.0, 50_000),
        (100_000, 0.001, 100_000 * GROWTH),  # never too much at once
        (100_000, 100.0, 100_000 / GROWTH),
        (100_000, 0.0, 100_000 * GROWTH),
        (10, 0.01, 100_000),  # it was not full: nothing is learned
        (80_000, 2.0, 40_000),  # not full, and yet too slow
        (8, 4.5, 100_000 / GROWTH),  # a hiccup of a small batch does not ruin the next ones
    ],
)
def test_pace(rows: int, seconds: float, expected: float) -> None:
    assert Pace(100_000, 1.0, 1_000_000).after(rows, seconds).rows == expected


def test_pace_stays_within_its_bounds() -> None:
    assert Pace(1000, 1.0, 1500).after(1000, 0.1).rows == 1500
    assert Pace(2, 1.0, 1500).after(2, 100).rows == 1


def test_where_the_fixed_cost_of_a_batch_is_above_the_target_batches_do_not_dwindle() -> None:
    pace = Pace(100_000, 1.0, 1_000_000)
    for _ in range(20):
        pace = pace.after(pace.rows, 1.2 + pace.rows * 1e-6)
    assert pace.rows == ENOUGH


def test_a_really_slow_function_gets_small_batches_and_larger_ones_when_it_recovers() -> None:
    pace = Pace(100_000, 1.0, 1_000_000)
    for _ in range(20):
        pace = pace.after(pace.rows, pace.rows * 0.01)
    assert pace.rows == 100
    for _ in range(20):
        pace = pace.after(pace.rows, pace.rows * 1e-6)
    assert pace.rows == 1_000_000


def test_a_batch_tells_its_name_rows_and_partitions() -> None:
    batch = Batch("orders", "id", "billing", Owner("A", "0123456789abcdef"), 12, (Range(0, 5, 9, 3), Range(4, 0, 1, 8)))
    assert batch.name == "billing-0123456789ab-000012.1"
    assert (batch.member, batch.rows, batch.partitions) == ("A", 5, (0, 4))


def test_a_sink_is_proved_by_what_it_took_or_by_one_of_the_next_messages() -> None:
    tried: list[int] = []

    def trial(part: Range) -> bool:
        tried.append(part.start)
        return part.start == 9

    refused = Range(3, 7, 8, 1)
    assert is_proved(True, map(trial, singles_after(refused, 100))) and tried == [], "it is tried only if need be"
    assert is_proved(False, map(trial, singles_after(refused, 100))) and tried == [8, 9]
    assert not is_proved(False, map(trial, singles_after(refused, 9)))
    assert [part.start for part in singles_after(refused, 100)] == list(range(8, 8 + PROOF_ROWS))
    assert {(part.partition, part.rows, part.epoch) for part in singles_after(refused, 100)} == {(3, 1, 1)}
    assert needs_proof(Refused("no")) and not needs_proof(HandlerFailed("a value does not fit"))


def test_of_more_partitions_than_a_commit_can_hold_each_has_its_turn() -> None:
    grants, turn, chosen = [Grant(number, Owner("A", "life"), 1) for number in (3, 1, 0, 2, 4)], 0, []
    for _ in range(3):
        some, turn = take_turns(grants, 2, turn)
        chosen.append([grant.partition for grant in some])
    assert chosen == [[0, 1], [2, 3], [0, 4]]
    assert [grant.partition for grant in take_turns(grants, 5, turn)[0]] == [0, 1, 2, 3, 4]
