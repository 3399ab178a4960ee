"""Where the rows of a group stand in a store."""

from __future__ import annotations

from pxrs.model import check_name


class Keys:
    """Where the rows of one group stand in the store."""

    def __init__(self, prefix: str, queue: str, group: str) -> None:
        self.name = group
        self.base = f"{prefix}{check_name('queue', queue)}/{check_name('group', group)}/"
        self.group = f"{self.base}group"
        self.members = f"{self.base}member/"
        self.partitions = f"{self.base}partition/"
        self.targets = f"{self.base}target/"
        self.bells = f"{self.base}bell/"

    def partition(self, number: int) -> str:
        return f"{self.partitions}{number:05d}"

    def member(self, name: str) -> str:
        return f"{self.members}{name}"
