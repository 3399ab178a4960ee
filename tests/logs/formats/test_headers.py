"""Headers that are laid out alike are read by comparison; all others, and those of other writers, all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pxrs.logs.base import Stamp
from pxrs.logs.batches import with_offsets
from pxrs.logs.formats import segment
from pxrs.logs.formats.segment import NotAHeader, Room, decode, encode, intact, read_header
from tests.logs.helpers import entries, numbered

KINDS = [
    (Stamp("a" * 16, 5), "none"),
    (Stamp("b", 2**40), "lz4"),  # its header is as long as the one before, and another
    (None, "none"),
    (None, "zstd"),
    (Stamp("a" * 15, 5), "none"),
    (Stamp("ü" * 8, 5), "none"),
]


@pytest.fixture(autouse=True)
def _no_layouts() -> Iterator[None]:
    segment._latest.clear()
    yield
    segment._latest.clear()


def test_headers_of_all_layouts_are_read_in_any_order() -> None:
    made = []
    for number, (stamp, compression) in enumerate(KINDS):
        batch = with_offsets(entries(numbered(3 + number)), 10 * number)
        message, header = encode(batch, stamp, compression)
        made.append((bytes(message), header, batch))
    assert len({header.size for _, header, _ in made}) < len(made), "some are as long as others"
    for message, header, batch in [*made, *reversed(made), *made]:
        assert read_header(message) == header
        assert header.length == len(message)
        assert intact(pa.py_buffer(message))
        assert decode(pa.py_buffer(message)).equals(batch)


def test_a_batch_is_found_intact_wherever_its_checksum_is() -> None:
    """It is looked for where the last header of that length had it, and that may have been another layout."""
    made = []
    for stamp, compression in KINDS:
        made.append(bytes(encode(with_offsets(entries(numbered(3)), 0), stamp, compression)[0]))
        read_header(made[-1])  # the last of those that are equally long decides where is looked first
    for message in made:
        assert intact(pa.py_buffer(message))
        spoilt = bytearray(message)
        spoilt[-1] ^= 1
        assert not intact(pa.py_buffer(bytes(spoilt)))


def test_every_flipped_bit_of_a_batch_is_noticed_by_its_checksum_alone() -> None:
    message, header = encode(with_offsets(entries(numbered(2)), 7), Stamp("a" * 16, 5))
    whole = bytes(message)
    assert read_header(whole) == header
    at = segment.custom_metadata(whole[: header.size])[b"pxrs.head"][0]
    for bit in range(8 * len(whole)):
        spoilt = bytearray(whole)
        spoilt[bit // 8] ^= 1 << bit % 8
        not_covered = at <= bit // 8 < at + 16  # the checksum of the header alone: who walks over headers reads that
        assert intact(pa.py_buffer(bytes(spoilt))) == not_covered, f"byte {bit // 8}"


def is_header(data: bytes) -> bool:
    try:
        read_header(data)
    except NotAHeader:
        return False
    return True


def test_every_flipped_bit_of_a_header_is_noticed_also_by_comparison() -> None:
    message, header = encode(with_offsets(entries(numbered(2)), 7), Stamp("a" * 16, 5))
    whole = bytes(message)
    assert read_header(whole) == header
    for bit in range(8 * header.size):
        spoilt = bytearray(whole)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert not (is_header(bytes(spoilt)) and intact(pa.py_buffer(bytes(spoilt)))), f"byte {bit // 8}"
    assert read_header(whole) == header


def test_batches_that_share_a_room_stand_in_it_one_after_the_other() -> None:
    room = Room()
    batches = [with_offsets(entries(numbered(rows)), rows) for rows in (5, 500, 1)]
    for batch in batches:
        message, header = encode(batch, None, room=room)
        alone = bytes(encode(batch, None)[0])
        assert bytes(message) == alone
        assert read_header(alone) == header
