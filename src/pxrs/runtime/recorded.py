"""What a group was made with stays as it is: whoever opens it with other values is refused."""

from __future__ import annotations

from pxrs.errors import Mismatch
from pxrs.model import Group


def check_recorded(found: Group, opened: Group, queue: str, name: str) -> None:
    """Refuse to open a group with another partition count, hash or assignor, or over another log, than recorded."""
    for what in ("partitions", "hash", "reduce", "assignor"):
        recorded, wanted = getattr(found, what), getattr(opened, what)
        if wanted != recorded:
            raise Mismatch(f"group {name!r} was created with {what} = {recorded!r}, and is opened with {wanted!r}")
    if opened.log and found.log and found.log != opened.log:
        raise Mismatch(
            f"group {name!r} has consumed another log named {queue!r} (id {found.log!r}, this one has {opened.log!r}): "
            "its checkpoints mean nothing here. Give each queue a registry or prefix of its own, or delete the group"
        )
