"""A delivered message is a message like any other, however it was made."""

from __future__ import annotations

import copy
import pickle

from pxrs.model import Message
from pxrs.runtime.delivery import as_message

FIELDS = (3, 14, b"k", b"v", 1_000_000, b"i" * 16, None, None)


def test_a_delivered_message_is_a_message_in_every_respect() -> None:
    delivered, message = as_message(FIELDS), Message(*FIELDS)
    assert type(delivered) is Message
    assert delivered == message and hash(delivered) == hash(message) and repr(delivered) == repr(message)
    assert delivered.id == message.id and delivered.text == "v" and delivered.timestamp == message.timestamp
    assert delivered._replace(key=b"other") == message._replace(key=b"other")
    assert delivered._asdict() == message._asdict()
    match delivered:
        case Message(partition=3, key=key):
            assert key == b"k"
        case _:
            raise AssertionError("it does not match its own class")


def test_copies_of_a_delivered_message_are_messages() -> None:
    delivered = as_message(FIELDS)
    for twin in (pickle.loads(pickle.dumps(delivered)), copy.copy(delivered), copy.deepcopy(delivered)):
        assert type(twin) is Message and twin == delivered
