"""Whether a write of which no answer came was done: the rows that stand there now tell it, without any server here."""

from __future__ import annotations

from typing import Any

import pytest

from pxrs.stores.base import Swap
from pxrs.stores.etcd.grpc_channel import messages
from pxrs.stores.etcd.store import MAX_OPERATIONS, NONCE_LENGTH, EtcdSwap, SwapTransaction, waves


def answer_with(value: bytes, revision: int) -> Any:
    row = messages.RangeResponse(kvs=[{"key": b"a", "value": value, "mod_revision": revision}])
    return messages.TxnResponse(responses=[messages.ResponseOp(response_range=row)])


@pytest.mark.parametrize("value", [b"ours", b"theirs"])
def test_only_a_row_with_its_own_nonce_proves_that_a_transaction_was_done(value: bytes) -> None:
    """Another owner may have written the very same bytes meanwhile."""
    asked = SwapTransaction([EtcdSwap(0, b"a", Swap("a", 7, b"ours"), 0)])
    [put] = asked.request(ask_revisions=False).success
    written: bytes = put.request_put.value
    assert asked.revision_if_mine(answer_with(written, 9)) == 9
    assert asked.revision_if_mine(answer_with(value + b"0" * NONCE_LENGTH, 9)) is None


def test_what_is_last_of_many_is_sent_when_the_others_are_done() -> None:
    """It may ring: whoever hears it must find the rest."""
    wishes = [
        EtcdSwap(number, b"%d" % number, Swap(f"{number}", 7, b""), 0) for number in range(2 * MAX_OPERATIONS + 1)
    ]
    sent = [[[wish.place for wish in one.writes] for one in wave] for wave in waves(wishes)]
    places = list(range(2 * MAX_OPERATIONS + 1))
    assert sent == [[places[:MAX_OPERATIONS], places[MAX_OPERATIONS:-1]], [places[-1:]]]
