"""``pxrs registry adopt``: say which registry a log belongs to, where that was lost, or changes on purpose."""

from __future__ import annotations

from pxrs.apps.cli.options import RegistryUrl, Url, opened
from pxrs.apps.cli.output import note


def adopt(url: Url, registry: RegistryUrl = None) -> None:
    """Let the log belong to this registry from now on: to the one of --registry, or of PXRS_REGISTRY, or beside it.

    Members that use another registry are refused at their next start, and delete nothing from now on. Checkpoints do
    not come along: `pxrs registry copy` or `load` brings them, `pxrs group seek` sets them.
    """
    with opened(url, registry) as queue:
        now, before = queue.adopt_registry()
        groups = queue.groups()
    if before == now:
        print(f"queue {queue.name!r} belongs to {now.where} (id {now.id}) already")
        return
    print(f"queue {queue.name!r} belongs to {now.where} (id {now.id}) now")
    if before is not None and before.id == now.id:
        note(f"it is the one that was at {before.where} before, under the same id")
    elif before is not None and before.id:
        note(
            f"before, it belonged to {before.where} (id {before.id}): groups there are refused from now on. Stop the "
            "members that still run with it: they go on until they end"
        )
    if not groups:
        note("there is no group of this queue in it yet: a new one starts without checkpoints")
