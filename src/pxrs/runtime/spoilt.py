"""Partitions of one member whose registry rows cannot be read: they are left alone, told once, and looked at again."""

from __future__ import annotations

from collections.abc import Mapping

from pxrs.errors import Damaged
from pxrs.model import Partition
from pxrs.runtime.report import Report
from pxrs.runtime.rows import Held


class Spoilt(dict[int, Damaged]):
    """The damaged rows that were found at the last look, with the reason for each."""

    def __init__(self, member: str, report: Report) -> None:
        super().__init__()
        self._member = member
        self._report = report

    def sort_out(self, found: Mapping[int, Held[Partition] | Damaged]) -> dict[int, Held[Partition]]:
        """The rows that can be read. What the others hold can be neither claimed nor committed: they wait."""
        known = set(self)
        self.clear()
        self.update((number, error) for number, error in found.items() if isinstance(error, Damaged))
        for number, error in self.items():
            if number not in known:
                self._report("damaged", {"member": self._member, "partition": number, "error": str(error)})
        return {number: held for number, held in found.items() if isinstance(held, Held)}
