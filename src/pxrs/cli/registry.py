"""``pxrs registry dump|load``: the rows of a queue's groups as JSON lines, to keep or to move them."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pxrs.cli.options import RegistryUrl, Url, opened
from pxrs.cli.output import note
from pxrs.errors import Conflict, Refused, Unknown
from pxrs.views.tables import counted

if TYPE_CHECKING:
    from pxrs.runtime.queue import Queue
    from pxrs.stores.base import Row, Store, Swap


def dump(url: Url, registry: RegistryUrl = None) -> None:
    """Print every row of the queue's groups, one JSON object per line."""
    with opened(url, registry) as queue:
        queue.tell_of_other_registry()
        for row in queue.store.scan(_base(queue)):
            kind = row.key.removeprefix(_base(queue)).split("/")[1]
            if kind != "bell":  # bells only wake waiting members: they hold nothing
                print(json.dumps({"key": row.key, **_as_json(row.value)}))


def _base(queue: Queue) -> str:
    return f"{queue.settings.prefix}{queue.name}/"


def _as_json(value: bytes) -> dict[str, str]:
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def load(
    url: Url,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What dump has printed; '-' is stdin.")] = "-",
    force: Annotated[bool, typer.Option("--force", help="Overwrite rows that differ.")] = False,
    registry: RegistryUrl = None,
) -> None:
    """Write the rows of a dump back. Stop the group's members first; rows that differ are kept unless --force."""
    with opened(url, registry) as queue:
        wanted = _parsed(_text(file), file, _base(queue))
        present = {row.key: row for row in queue.store.scan(_base(queue))}
        differing = [key for key, value in wanted.items() if key in present and present[key].value != value]
        if differing and not force:
            raise Refused(
                f"rows are there already with other values: {len(differing)}, the first is {differing[0]}; "
                "nothing was written, --force overwrites them"
            )
        changes = _swaps(wanted, present)
        write_rows(queue.store, changes)
        queue.tell_of_other_registry()
    print(f"wrote {counted(len(changes), 'row')}")
    if len(changes) < len(wanted):
        same = len(wanted) - len(changes)
        note(f"{counted(same, 'row')} {'was' if same == 1 else 'were'} the same already")


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"cannot read {file}: {error}") from error


def _parsed(text: str, file: str, base: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{'stdin' if file == '-' else file}, line {number}"
        key, value = _row(line, where)
        if not key.startswith(base):
            raise Refused(f"{where}: {key} is no row of this queue, whose rows begin with {base}")
        if key in found:
            raise Refused(f"{where}: {key} stands twice")
        found[key] = value
    return found


def _row(line: str, where: str) -> tuple[str, bytes]:
    try:
        fields: dict[str, Any] = json.loads(line)
        if "text" in fields:
            return str(fields["key"]), str(fields["text"]).encode()
        return str(fields["key"]), base64.b64decode(fields["base64"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{where} is no row of a dump: {error!r}") from error


def _swaps(wanted: dict[str, bytes], present: dict[str, Row]) -> list[Swap]:
    """Group rows come last: a group row says that all its other rows exist."""
    from pxrs.stores.base import ABSENT, Swap

    ordered = sorted(wanted, key=lambda key: (key.endswith("/group"), key))
    return [
        Swap(key, present[key].version if key in present else ABSENT, wanted[key])
        for key in ordered
        if key not in present or present[key].value != wanted[key]
    ]


def write_rows(store: Store, changes: list[Swap]) -> None:
    """In as few steps as the store allows; each of them all or nothing."""
    from pxrs.stores.base import Verdict

    for start in range(0, len(changes), store.max_atomic):
        outcome = store.swap_all(changes[start : start + store.max_atomic])
        if outcome.verdict is Verdict.CONFLICT:
            raise Conflict("the rows were changed by others meanwhile: stop the group's members, and do it again")
        if outcome.verdict is Verdict.UNKNOWN:
            raise Unknown(f"no answer from the registry ({outcome.reason}): do it again")
