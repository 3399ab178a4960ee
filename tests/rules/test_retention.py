"""Retention by age, by size, by consumption; never what a group needs, never the last two chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxrs.rules.retention import KEPT_CHUNKS, Policy, RetainedPart, RetentionDecision, judge

SECOND = 1_000_000
CHUNKS = [RetainedPart(10 * n, 10 * n + 10, 100, n * SECOND) for n in range(6)]
"""Six chunks of ten messages and 100 bytes, each a second newer than the one before it."""

BY_AGE = Policy(age_ms=1_000)
BY_SIZE = Policy(bytes=350)
BY_USE = Policy(until_consumed=True)


def test_without_a_rule_everything_stays() -> None:
    assert judge(CHUNKS, Policy(), None, 10**18) == RetentionDecision(0, 0)
    assert not Policy().is_any and BY_AGE.is_any and BY_SIZE.is_any and BY_USE.is_any


def test_an_empty_partition_has_nothing_to_delete() -> None:
    assert judge([], BY_AGE, None, 10**18) == RetentionDecision(0, 0)


@pytest.mark.parametrize(
    ("now", "start"), [(1 * SECOND, 0), (1 * SECOND + 1, 10), (3 * SECOND, 20), (3 * SECOND + 1, 30)]
)
def test_a_chunk_goes_when_its_newest_message_is_too_old(now: int, start: int) -> None:
    assert judge(CHUNKS, BY_AGE, None, now) == RetentionDecision(start, start)


def test_the_last_two_chunks_stay_however_old_and_large_they_are() -> None:
    assert judge(CHUNKS, BY_AGE, None, 10**18) == RetentionDecision(40, 40)
    assert judge(CHUNKS, Policy(bytes=1), None, 0) == RetentionDecision(40, 40)
    assert judge(CHUNKS, BY_USE, 60, 0) == RetentionDecision(40, 40)
    assert judge(CHUNKS[-2:], Policy(bytes=1), None, 0) == RetentionDecision(40, 40)


def test_a_chunk_of_unknown_age_is_not_too_old() -> None:
    unknown = [CHUNKS[0], CHUNKS[1]._replace(last_us=None), *CHUNKS[2:]]
    assert judge(unknown, BY_AGE, None, 10**18) == RetentionDecision(10, 10)


def test_as_many_chunks_go_as_the_size_asks_for_and_no_more() -> None:
    assert judge(CHUNKS, BY_SIZE, None, 0) == RetentionDecision(30, 30)
    assert judge(CHUNKS, Policy(bytes=600), None, 0) == RetentionDecision(0, 0)
    assert judge(CHUNKS, Policy(bytes=599), None, 0) == RetentionDecision(10, 10)


def test_what_all_groups_have_consumed_goes_and_nothing_goes_without_a_group() -> None:
    assert judge(CHUNKS, BY_USE, 29, 0) == RetentionDecision(20, 20)
    assert judge(CHUNKS, BY_USE, 30, 0) == RetentionDecision(30, 30)
    assert judge(CHUNKS, BY_USE, None, 10**18) == RetentionDecision(0, 0)


@pytest.mark.parametrize("policy", [BY_AGE, BY_SIZE])
def test_age_and_size_stop_at_the_slowest_group_and_say_that_it_holds_them(policy: Policy) -> None:
    now = 3 * SECOND + 1
    assert judge(CHUNKS, policy, 19, now) == RetentionDecision(10, 30)
    assert judge(CHUNKS, policy, 0, now) == RetentionDecision(0, 30)
    assert judge(CHUNKS, policy, 45, now) == RetentionDecision(30, 30)


def test_a_partition_that_was_trimmed_before_never_starts_earlier_again() -> None:
    assert judge(CHUNKS[2:], BY_USE, 5, 0) == RetentionDecision(20, 20)
    assert judge(CHUNKS[2:], BY_AGE, 5, 10**18) == RetentionDecision(20, 40)


sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.none() | st.integers(0, 50)), max_size=8)
policies = st.builds(Policy, st.integers(0, 20), st.integers(0, 30), st.booleans())


@given(sizes, st.integers(0, 9), policies, st.none() | st.integers(0, 60), st.integers(0, 40_000))
def test_whatever_is_stored_nothing_that_is_needed_goes(
    sizes: list[tuple[int, int, int | None]], first: int, policy: Policy, checkpoint: int | None, now_us: int
) -> None:
    chunks: list[RetainedPart] = []
    for rows, size, last_us in sizes:
        start = chunks[-1].end if chunks else first
        chunks.append(RetainedPart(start, start + rows, size, last_us))
    start, wanted = judge(chunks, policy, checkpoint, now_us)
    borders = [chunk.start for chunk in chunks[: -KEPT_CHUNKS + 1]] or [chunks[0].start if chunks else 0]
    assert start in borders and wanted in borders and start <= wanted
    if checkpoint is not None:
        assert start <= max(checkpoint, borders[0])
    if not policy.is_any:
        assert start == borders[0]
