"""The checker on small histories written by hand: it names the promise, and is silent where none broke."""

from __future__ import annotations

from pxrs.model import Cause, Group, Owner, Partition, Range
from pxrs.testing.faults.checker import Event, Planned, Processed, Rested, Sent, Shown, Stored, Waived, Withdrawn, check

A, A2, B = Owner("A", "1"), Owner("A", "2"), Owner("B", "1")


def row(owner: Owner | None, epoch: int, checkpoint: int | None = None, cause: Cause = Cause.CLAIM) -> Partition:
    return Partition(0, owner, epoch, checkpoint, cause)


def promises(*history: Event) -> set[str]:
    return {violation.promise for violation in check(history)}


CLAIM = Stored(0, A, row(A, 1))
DONE = Processed(0, 0, A, 1)
CLEAN: list[Event] = [Sent(0, 0), CLAIM, DONE, Stored(0, A, row(None, 2, 1, Cause.RELEASE)), Stored(0, B, row(B, 3, 1))]


def test_a_clean_hand_over_breaks_nothing() -> None:
    assert promises(*CLEAN, Rested((B,), {0: 1}, 0)) == set()


def test_a_crash_may_repeat_what_was_not_committed() -> None:
    forced = Stored(0, B, row(None, 2, None, Cause.FORCED))
    assert promises(Sent(0, 0), CLAIM, DONE, forced, Stored(0, B, row(B, 3)), Processed(0, 0, B, 3)) == set()


def test_a_repeat_after_a_clean_hand_over_is_named() -> None:
    released = Stored(0, A, row(None, 2, None, Cause.RELEASE))
    assert promises(CLAIM, DONE, released, Stored(0, B, row(B, 3)), Processed(0, 0, B, 3)) == {"bounded repeats"}


def test_processing_after_the_own_release_is_named() -> None:
    assert promises(*CLEAN, Processed(0, 1, A, 1)) == {"bounded repeats"}


def test_a_message_below_the_stored_checkpoint_is_named() -> None:
    assert "bounded repeats" in promises(*CLEAN, Processed(0, 0, B, 3))


def test_epochs_and_checkpoints_that_go_back_are_named() -> None:
    assert "monotone" in promises(*CLEAN, Stored(0, B, row(B, 2, 1)))
    assert promises(*CLEAN, Stored(0, B, row(B, 3, 0))) == {"monotone"}
    assert promises(*CLEAN, Stored(0, B, row(None, 4, 0, Cause.SEEK))) == set(), "a seek may go back"


def test_a_write_under_an_epoch_that_was_not_granted_is_named() -> None:
    assert "fenced" in promises(CLAIM, DONE, Stored(0, B, row(A, 1, 1)))
    assert "fenced" in promises(CLAIM, Stored(0, A2, row(None, 2, None, Cause.RELEASE)))


def test_a_change_of_owner_without_a_new_epoch_is_named() -> None:
    assert "single owner" in promises(CLAIM, Stored(0, B, row(B, 1)))


def test_a_claim_over_a_living_owner_is_named() -> None:
    assert promises(CLAIM, Stored(0, B, row(B, 2))) == {"single owner"}
    assert promises(CLAIM, Stored(0, A2, row(A2, 2))) == set(), "a newer life of the same member"


def test_work_without_a_grant_is_named() -> None:
    assert promises(CLAIM, Processed(0, 0, B, 1)) == {"single owner"}


def test_a_checkpoint_that_passes_a_message_nobody_processed_is_named() -> None:
    assert promises(CLAIM, Stored(0, A, row(A, 1, 1))) == {"no loss"}


def test_after_a_seek_earlier_work_does_not_count() -> None:
    sought: list[Event] = [
        CLAIM,
        DONE,
        Stored(0, A, row(A, 1, 1)),
        Stored(0, B, row(None, 2, 0, Cause.SEEK)),
        Stored(0, A, row(A, 3, 0)),
    ]
    assert promises(*sought, Stored(0, A, row(A, 3, 1))) == {"no loss"}
    assert promises(*sought, Processed(0, 0, A, 3), Stored(0, A, row(A, 3, 1))) == set()


def test_skipping_and_reordering_are_named() -> None:
    assert promises(CLAIM, Processed(0, 1, A, 1)) == {"order"}
    assert promises(CLAIM, DONE, Processed(0, 0, A, 1)) == {"order"}


def test_a_plan_of_a_member_that_does_not_lead_is_named() -> None:
    group = Group(1, "h", "r", leader=B, leader_epoch=2)
    stale = Group(1, "h", "r", leader=B, leader_epoch=2, generation=1)
    assert promises(Planned(B, group), Planned(A, stale)) == {"single owner"}
    assert promises(Planned(B, group), Planned(B, stale)) == set()
    older = Group(1, "h", "r", leader=B, leader_epoch=1)
    assert promises(Planned(B, stale), Planned(B, older)) == {"monotone"}


def test_a_rest_that_is_none_is_named() -> None:
    assert promises(CLAIM, Rested((A,), {0: 0}, 0)) == set()
    assert promises(CLAIM, Rested((B,), {0: 0}, 0)) == {"convergence"}, "the owner is not alive"
    assert promises(Rested((A,), {0: 0}, 0)) == {"convergence"}, "nobody owns it"
    assert promises(CLAIM, Rested((A,), {0: 0}, 3)) == {"convergence"}, "partitions still move"
    assert promises(CLAIM, Rested((A,), {0: 5}, 0)) == {"no loss"}, "messages are left"
    both = [Stored(p, A, Partition(p, A, 1, None, Cause.CLAIM)) for p in (0, 1)]
    assert promises(*both, Rested((A, B), {0: 0, 1: 0}, 0)) == {"convergence"}, "unfair"


COMMITTED: list[Event] = [Sent(0, 0), CLAIM, DONE, Stored(0, A, row(A, 1, 1))]
END = Rested((A,), {0: 1}, 0, shows=True)


def test_output_that_is_seen_once_breaks_nothing() -> None:
    assert promises(*COMMITTED, Shown(0, 0, 1), END) == set()
    assert promises(*COMMITTED, Waived(0, 0), END) == set(), "it stands in the dead letters, or has no output"
    assert promises(*COMMITTED, Rested((A,), {0: 1}, 0)) == set(), "a history without output"


def test_output_that_is_seen_twice_never_or_too_early_is_named() -> None:
    assert promises(*COMMITTED, Shown(0, 0, 1), Shown(0, 0, 1)) == {"visible once"}
    assert promises(*COMMITTED, END) == {"visible once"}
    assert promises(CLAIM, DONE, Shown(0, 0, 1)) == {"visible once"}, "nothing is committed yet"


def test_output_that_is_seen_in_the_wrong_order_is_named() -> None:
    both: list[Event] = [CLAIM, DONE, Processed(0, 1, A, 1), Stored(0, A, row(A, 1, 2))]
    assert promises(*both, Shown(0, 0, 1), Shown(0, 1, 1)) == set()
    assert promises(*both, Shown(0, 1, 1), Shown(0, 0, 1)) == {"order"}


def test_a_seek_begins_a_new_count_of_what_is_seen() -> None:
    sought: list[Event] = [*COMMITTED, Stored(0, B, row(None, 2, 0, Cause.SEEK)), Stored(0, A, row(A, 3, 0))]
    again: list[Event] = [*sought, Processed(0, 0, A, 3), Stored(0, A, row(A, 3, 1))]
    assert promises(*again, Shown(0, 0, 1), Shown(0, 0, 3), END) == set(), "seen again, as was wished for"
    assert promises(*again, Shown(0, 0, 3), END) == {"visible once"}, "what was committed before the seek is missing"
    assert promises(*again, Shown(0, 0, 1), Shown(0, 0, 3), Shown(0, 0, 3), END) == {"visible once"}


def test_what_a_refused_batch_processed_does_not_count() -> None:
    part = Range(0, 0, 1, epoch=1)
    lost = Stored(0, B, row(None, 2, None, Cause.FORCED))
    assert promises(CLAIM, DONE, lost, Withdrawn((part,), failed=False)) == set()
    failed = Withdrawn((part,), failed=True)
    assert promises(CLAIM, DONE, failed, DONE, Stored(0, A, row(A, 1, 1))) == set(), "it may be processed again"
    assert promises(CLAIM, DONE, failed, Stored(0, A, row(A, 1, 1))) == {"no loss"}
    assert promises(CLAIM, DONE, Withdrawn((part,), failed=False)) == {"bounded repeats"}, "it had lost nothing"
