"""A few messages go without Arrow, there and back: the bytes and the messages are the same."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pxrs
from pxrs.errors import Damaged, Refused
from pxrs.logs.base import ENTRY_SCHEMA, FewRows, Stamp
from pxrs.logs.batches import with_offsets
from pxrs.logs.formats.few_rows import FEW, decode_rows, encode_rows
from pxrs.logs.formats.segment import decode, encode, intact, read_header
from pxrs.runtime.delivery import messages_of
from tests.logs.conftest import OpenFile
from tests.logs.helpers import entries, numbered, read_all

BASES = st.integers(0, 2**62)
STAMPS = st.none() | st.builds(Stamp, st.text(min_size=1, max_size=40), st.integers(0, 2**62))
MESSAGES = st.lists(
    st.tuples(
        st.integers(-(2**62), 2**62),
        st.none() | st.binary(max_size=20),
        st.binary(max_size=40),
        st.binary(min_size=16, max_size=16),
    ),
    min_size=1,
    max_size=40,
)


def rows(messages: list[tuple[int, bytes | None, bytes, bytes]]) -> FewRows:
    times, keys, values, ids = (list(column) for column in zip(*messages, strict=True))
    return FewRows(times, keys, values, b"".join(ids))


@settings(deadline=None)
@given(MESSAGES, BASES, STAMPS)
def test_rows_are_encoded_as_arrow_encodes_them_byte_for_byte(
    messages: list[tuple[int, bytes | None, bytes, bytes]], base: int, stamp: Stamp | None
) -> None:
    given_rows = rows(messages)
    message, header = encode_rows(given_rows, base, stamp)
    by_arrow, its_header = encode(with_offsets(given_rows.batch(), base), stamp)
    assert message == bytes(by_arrow)
    assert header == its_header == read_header(message)
    assert intact(pa.py_buffer(message))


@settings(deadline=None)
@given(MESSAGES, BASES, STAMPS)
def test_rows_are_decoded_as_arrow_decodes_them(
    messages: list[tuple[int, bytes | None, bytes, bytes]], base: int, stamp: Stamp | None
) -> None:
    message, _ = encode_rows(rows(messages), base, stamp)
    found = decode_rows(message, 5)
    assert found is not None
    assert list(messages_of(found, 5)) == list(messages_of(decode(pa.py_buffer(message)), 5))


@pytest.mark.parametrize("what", ["headers", "tenant", "no id", "compressed", "many"])
def test_what_is_more_than_key_and_value_is_left_to_arrow(what: str) -> None:
    message = {
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "key": b"k",
        "value": b"v" * 100,
        "headers": [{"key": "a", "value": b"b"}] if what == "headers" else None,
        "id": None if what == "no id" else b"i" * 16,
        "tenant": "t" if what == "tenant" else None,
    }
    batch = pa.RecordBatch.from_pylist([message] * (FEW + 1 if what == "many" else 2), schema=ENTRY_SCHEMA)
    encoded, _ = encode(with_offsets(batch, 0), None, "lz4" if what == "compressed" else "none")
    assert decode_rows(bytes(encoded), 0) is None


def test_rows_are_appended_once_and_take_the_next_offsets(open_file: OpenFile) -> None:
    log, stamp = open_file(2), Stamp("p", 0)
    few = FewRows([1, 2], [b"a", None], [b"v0", b"v1"], bytes(32))
    assert log.append({0: entries(numbered(3))}) == {0: 0}
    assert log.append_rows({0: few, 1: few}, {0: stamp, 1: stamp}) == {0: 3, 1: 0}
    assert open_file(2).append_rows({0: few}, {0: stamp}) == {0: 3}, "a retry"
    with pytest.raises(Refused, match="2 messages before, and with 1 now"):
        log.append_rows({0: FewRows([1], [None], [b"x"], bytes(16))}, {0: stamp})
    assert read_all(open_file(2), 0) == [*enumerate(numbered(3)), (3, b"v0"), (4, b"v1")]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_reader_that_keeps_up_gets_the_same_messages_as_one_that_comes_later(
    open_file: OpenFile, compression: str
) -> None:
    writer, reader, found = open_file(compression=compression), open_file(), []
    for number in range(5):
        few = FewRows([number, number], [b"a", None], [b"v%d" % number, b""], bytes(range(32)))
        writer.append_rows({0: few}, {0: Stamp("p", number)})
        seen = reader.read_rows(0, 2 * number)
        assert isinstance(seen, list) == (compression == "none")
        found += list(messages_of(seen, 0))
        assert reader.read_rows(0, 2 * number + 2) is None
    later = open_file().read(0, 0, 1)
    assert later is not None and found[0] == next(messages_of(later, 0))
    with pxrs.open(f"file:{writer.directory}") as queue:
        assert queue.read(0, 0, 100) == found


def test_a_reader_that_asks_for_less_or_for_the_middle_gets_it(open_file: OpenFile) -> None:
    writer, reader = open_file(), open_file()
    writer.append_rows({0: FewRows([1] * 4, [None] * 4, [b"v%d" % n for n in range(4)], bytes(64))})
    for offset, limit, expected in ((0, 2, [b"v0", b"v1"]), (2, 10, [b"v2", b"v3"]), (1, 1, [b"v1"])):
        seen = reader.read_rows(0, offset, limit)
        assert seen is not None
        assert [message.value for message in messages_of(seen, 0)] == expected


def test_what_a_writer_has_taken_back_is_never_read_in_the_place_of_what_came_after(
    open_file: OpenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not durable yet, it stands behind the end for a moment. A reader may see its bytes, and must forget them."""
    reader, other = open_file(), open_file()
    other.append_rows({0: rows([(1, None, b"first", bytes(16))])})
    real = os.fdatasync

    def fails(fd: int) -> None:
        assert reader.read_rows(0, 0) is not None and reader.read_rows(0, 1) is None
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(Damaged):
        other.append_rows({0: rows([(1, None, b"XXXXX", bytes(16))])})
    monkeypatch.setattr(os, "fdatasync", real)
    reader.append_rows({0: rows([(1, None, b"YYYYY", bytes(16))])})
    found = reader.read(0, 1)
    assert found is not None and found.column("value").to_pylist() == [b"YYYYY"]
