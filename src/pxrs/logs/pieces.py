"""Reading pieces of a log in any process, with nothing but their description: what a Spark task does.

Imports little on purpose: no registry, no credential, and a driver only for pieces that live in a server.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from pxrs.errors import Damaged, Refused, Unavailable
from pxrs.logs.base import SCHEMA, OpenOptions, Piece
from pxrs.logs.formats.segment import BatchPosition, message_at, read_batch


def read_range(
    pieces: Sequence[Piece], start: int, end: int, columns: Collection[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages of exactly ``[start, end)``, in order, checksums verified; Damaged if one of them is missing.

    Of sealed pieces only these columns are read, and ``offset``; others are mapped, and cost nothing.
    """
    reached = start
    for piece in pieces:
        for batch in read_piece(piece, start, end, columns):
            first = batch.column("offset")[0].as_py()
            if first != reached:
                raise Damaged(f"{piece.path}: offset {reached} is missing; {first} follows")
            reached += batch.num_rows
            yield batch
    if reached != end:
        raise Damaged(f"the pieces end at offset {reached}, {end} was asked for: {[piece.path for piece in pieces]}")


def read_piece(piece: Piece, start: int, end: int, columns: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The messages of ``[start, end)`` that this one piece holds."""
    if piece.kind == "log":
        yield from _read_log(piece, start, end)
        return
    if piece.kind not in ("arrow", "parquet"):
        raise Refused(f"{piece.path}: a piece of kind {piece.kind!r} is not read here")
    try:
        stored = _mapped(piece)
        if stored is None:
            yield from _read_sealed(piece, start, end, columns)
        else:
            yield from _read_segment(stored, piece, start, end)
    except FileNotFoundError as error:
        raise Damaged(f"a part of the log is gone: {error}") from error
    except OSError as error:
        raise Unavailable(f"the log cannot be read: {error}") from error


def _read_log(piece: Piece, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Through the driver of a server: its path is the log's URL, and behind a # the partition."""
    from pxrs.drivers import find_driver  # most tasks read files, and need neither
    from pxrs.settings import Settings

    url, _, partition = piece.path.rpartition("#")
    low, high = max(start, piece.start), min(end, piece.end)
    with closing(find_driver("pxrs.logs", url).open(url, OpenOptions(), Settings(), False)) as log:
        while low < high:
            batch = log.read(int(partition), low, high - low)
            if batch is None:
                raise Damaged(f"{piece.path}: offset {low} is missing")
            yield batch
            low += batch.num_rows


def _mapped(piece: Piece) -> pa.Buffer | None:
    """The bytes of a segment; None for a sealed piece, also if it was sealed after it was planned."""
    if piece.kind == "parquet":
        return None
    try:
        with pa.memory_map(piece.path) as file:
            return file.read_buffer()
    except FileNotFoundError:
        if os.path.exists(_sealed_path(piece)):
            return None
        raise


def _sealed_path(piece: Piece) -> str:
    return piece.path.removesuffix(".arrow").removesuffix(".parquet") + ".parquet"


def _read_sealed(piece: Piece, start: int, end: int, columns: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    from pxrs.logs.formats.sealed_parquet import SealedFile  # a task that reads none does without Parquet

    base = int(os.path.basename(piece.path).partition(".")[0])
    file = SealedFile(_sealed_path(piece), base)
    wanted = None if columns is None else [name for name in SCHEMA.names if name in columns or name == "offset"]
    low, high = max(start, piece.start), min(end, piece.end)
    for group in file.groups(low, high):
        first, batch = file.load(group, wanted)
        begin, stop = max(low - first, 0), min(high - first, batch.num_rows)
        if begin < stop:
            yield batch.slice(begin, stop - begin)


def _read_segment(stored: pa.Buffer, piece: Piece, start: int, end: int) -> Iterator[pa.RecordBatch]:
    position = piece.position
    while position < piece.position + piece.length:
        opened = message_at(stored, position, piece.path)
        header = opened.header
        low, high = max(start, header.base), min(end, header.end)
        if low < high:
            place = BatchPosition(header.base, position, header.length)
            message = stored.slice(place.position, place.length)
            batch = read_batch(message, place, piece.path, opened.fits)
            yield batch if high - low == header.rows else batch.slice(low - header.base, high - low)
        position += header.length
