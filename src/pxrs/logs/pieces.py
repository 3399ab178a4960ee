"""Reading pieces of a log in any process, with nothing but their description: what a Spark task does.

Imports little on purpose: no registry, no driver, no credential.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pxrs.errors import Damaged, Refused
from pxrs.logs.base import Piece
from pxrs.logs.segment import Place, header_at, read_batch


def read_range(pieces: Sequence[Piece], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The messages of exactly ``[start, end)``, in order, checksums verified; Damaged if one of them is missing."""
    reached = start
    for piece in pieces:
        for batch in read_piece(piece, start, end):
            first = batch.column("offset")[0].as_py()
            if first != reached:
                raise Damaged(f"{piece.path}: offset {reached} is missing; {first} follows")
            reached += batch.num_rows
            yield batch
    if reached != end:
        raise Damaged(f"the pieces end at offset {reached}, {end} was asked for: {[piece.path for piece in pieces]}")


def read_piece(piece: Piece, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The messages of ``[start, end)`` that this one piece holds."""
    if piece.kind != "arrow":
        raise Refused(f"{piece.path}: a piece of kind {piece.kind!r} is not read here")
    try:
        with pa.memory_map(piece.path) as file:
            stored = file.read_buffer()
    except OSError as error:
        raise Damaged(f"a part of the log is gone: {error}") from error
    position = piece.position
    while position < piece.position + piece.length:
        header = header_at(stored, position, piece.path)
        low, high = max(start, header.base), min(end, header.end)
        if low < high:
            place = Place(header.base, position, header.length)
            yield read_batch(stored, place, piece.path).slice(low - header.base, high - low)
        position += header.length
