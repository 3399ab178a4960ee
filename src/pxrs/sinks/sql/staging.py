"""Stages output for a table whose database does not hold the checkpoints. Three tables are beside it:

    <table>_pxrs_staged(batch, seq, log, grp, epochs, data)   rows as Arrow streams; whose they are; until published
    <table>_pxrs_guard(log, grp, part, epoch)                 the highest epoch that has come by, for each partition
    <table>_pxrs_meta(name, value)                            the version of this layout, and an id of this place

What is staged under an epoch that was overtaken can never be committed. The guard keeps a late owner from staging at
all. Every call here is one transaction or a part of one, and can be repeated.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import xxhash
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.dialects.mysql import LONGBLOB, VARCHAR

from pxrs.errors import Damaged, Fenced, NewerFormat
from pxrs.model import Batch, Grant
from pxrs.runtime.ports.sink import Overtaken

FORMAT = "1"
_LONGEST_NAME = 40
"""The longest name of a table: with what is added to it, and within what PostgreSQL takes (63)."""
_NAME = String(300).with_variant(VARCHAR(300, charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
_DATA = LargeBinary().with_variant(LONGBLOB(), "mysql")


class SqlStaging:
    """The tables beside one target table."""

    def __init__(self, table: str, schema: str | None) -> None:
        short = (
            table if len(table) <= _LONGEST_NAME else f"{table[:24]}_{xxhash.xxh3_64_hexdigest(table.encode())[:12]}"
        )
        self.metadata = MetaData(schema=schema)
        self.staged = self._table(
            f"{short}_pxrs_staged",
            Column("batch", _NAME, primary_key=True),
            Column("seq", Integer, primary_key=True, autoincrement=False),
            Column("log", _NAME, nullable=False),
            Column("grp", _NAME, nullable=False),
            Column("epochs", _DATA, nullable=False),
            Column("data", _DATA, nullable=False),
        )
        self.guard = self._table(
            f"{short}_pxrs_guard",
            Column("log", _NAME, primary_key=True),
            Column("grp", _NAME, primary_key=True),
            Column("part", Integer, primary_key=True, autoincrement=False),
            Column("epoch", BigInteger, nullable=False),
        )
        self.meta = self._table(
            f"{short}_pxrs_meta", Column("name", _NAME, primary_key=True), Column("value", String(100), nullable=False)
        )

    def _table(self, name: str, *columns: Column[Any]) -> Table:
        return Table(name, self.metadata, *columns, mysql_engine="InnoDB")

    def prepare(self, connection: Connection) -> str:
        """Make the missing tables. Returns the id of this place."""
        self.metadata.create_all(connection)
        for name, value in (("format", FORMAT), ("id", secrets.token_hex(8))):
            if not self._meta(connection, name):
                connection.execute(insert(self.meta).values(name=name, value=value))
        return self._check(connection)

    def find(self, connection: Connection) -> str | None:
        """The id of this place, if it has one."""
        there = connection.dialect.has_table(connection, self.meta.name, schema=self.meta.schema)
        return self._check(connection) if there else None

    def _check(self, connection: Connection) -> str:
        found = self._meta(connection, "format")
        if found != FORMAT:
            raise NewerFormat(f"{self.meta.fullname} has format {found!r}, of another version of PXRS: update this one")
        return self._meta(connection, "id") or ""

    def _meta(self, connection: Connection, name: str) -> str | None:
        return connection.execute(select(self.meta.c.value).where(self.meta.c.name == name)).scalar()

    # ---- the guard ----------------------------------------------------------------------------------------------

    def pass_guard(self, connection: Connection, batch: Batch) -> None:
        """Raise the guard to the epochs of a batch, or refuse it. The rows stay locked until the commit: a process that
        takes over meanwhile waits, and then sees what was staged.
        """
        mine = {part.partition: part.epoch for part in batch.ranges}
        self._raise(connection, batch.log, batch.group, mine)

    def raise_guard(self, connection: Connection, log: str, group: str, grant: Grant) -> None:
        try:
            self._raise(connection, log, group, {grant.partition: grant.epoch})
        except Fenced as error:
            advice = f"If that was on purpose, delete the rows of group {group!r} from {self.guard.fullname}"
            raise Overtaken(str(error), advice) from error

    def _raise(self, connection: Connection, log: str, group: str, mine: Mapping[int, int]) -> None:
        c = self.guard.c
        whose = (c.log == log) & (c.grp == group)
        rows = select(c.part, c.epoch).where(whose, c.part.in_(sorted(mine))).order_by(c.part).with_for_update()
        stand: dict[int, int] = {row.part: row.epoch for row in connection.execute(rows)}
        for part, epoch in sorted(mine.items()):
            if stand.get(part, -1) > epoch:
                raise Fenced(
                    f"{self.guard.fullname} has seen epoch {stand[part]} of partition {part}, and not only {epoch}"
                )
            if part not in stand:
                connection.execute(insert(self.guard).values(log=log, grp=group, part=part, epoch=epoch))
            elif stand[part] < epoch:
                connection.execute(update(self.guard).where(whose, c.part == part).values(epoch=epoch))

    # ---- staged output ------------------------------------------------------------------------------------------

    def keep(self, connection: Connection, batch: Batch, chunks: Iterable[pa.Table]) -> None:
        """Write the output of a batch aside, in place of an earlier try's."""
        self.drop(connection, [batch.name])
        epochs = json.dumps({str(part.partition): part.epoch for part in batch.ranges}).encode()
        whose = {"batch": batch.name, "log": batch.log, "grp": batch.group}
        for seq, chunk in enumerate(chunks):
            connection.execute(insert(self.staged).values(**whose, seq=seq, epochs=epochs, data=_packed(chunk)))

    def hold(self, connection: Connection, batch: str) -> list[int]:
        """Lock what is staged for a batch, and say how it is numbered. Nothing: it was published, or removed."""
        c = self.staged.c
        rows = select(c.seq).where(c.batch == batch).order_by(c.seq).with_for_update()
        return list(connection.execute(rows).scalars())

    def chunks(self, connection: Connection, batch: str, numbers: Iterable[int]) -> Iterator[pa.Table]:
        """The staged rows, one piece at a time."""
        c = self.staged.c
        for number in numbers:
            data = connection.execute(select(c.data).where(c.batch == batch, c.seq == number)).scalar_one()
            yield _unpacked(data, f"{self.staged.fullname}, batch {batch}")

    def drop(self, connection: Connection, batches: Iterable[str]) -> None:
        for batch in batches:
            connection.execute(delete(self.staged).where(self.staged.c.batch == batch))

    def dead(self, connection: Connection, log: str, group: str, grant: Grant) -> list[str]:
        """Batches that have this partition under an older epoch: nobody can commit them any more."""
        c = self.staged.c
        rows = select(c.batch, c.epochs).where(c.log == log, c.grp == group, c.seq == 0)
        found = ((batch, json.loads(epochs)) for batch, epochs in connection.execute(rows))
        return [batch for batch, epochs in found if epochs.get(str(grant.partition), grant.epoch) < grant.epoch]


def _packed(chunk: pa.Table) -> bytes:
    data = io.BytesIO()
    with pa.ipc.new_stream(data, chunk.schema) as writer:
        writer.write_table(chunk)
    return data.getvalue()


def _unpacked(data: bytes, where: str) -> pa.Table:
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except pa.ArrowInvalid as error:
        raise Damaged(f"{where}, which is committed and not shown yet, cannot be read: {error}") from error
