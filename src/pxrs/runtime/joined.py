"""A commit inside of a transaction that holds the output of a batch: both land, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from pxrs.model import Partition
from pxrs.runtime.rows import Rows, Rule
from pxrs.runtime.sink import Transaction


def change_within(
    transaction: Transaction, rows: Rows[int, Partition], rules: Mapping[int, Rule[Partition]], note: str | None
) -> None:
    """Change the rows in the transaction, and commit it.

    An earlier try, whose answer was lost, shows by its note in the very row that is decided on. It may land at any
    moment, and its output must not stand there twice.
    """

    def unless_landed(rule: Rule[Partition], row: Partition) -> Partition:
        if note and row.note == note:
            raise _HasLanded
        return rule(row)

    try:
        rows.over(transaction.store).change_all({n: partial(unless_landed, rule) for n, rule in rules.items()})
        transaction.commit()
    except _HasLanded:
        return
    finally:
        transaction.rollback()


class _HasLanded(Exception):
    """An earlier try of this commit was done."""
