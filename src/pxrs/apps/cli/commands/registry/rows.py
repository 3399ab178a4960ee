"""``pxrs registry dump|load``: the rows of a queue's groups as JSON lines, to keep or to move them."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pxrs.apps.cli.options import RegistryUrl, Url, opened
from pxrs.apps.cli.output import note
from pxrs.errors import Conflict, Damaged, Refused, Unknown
from pxrs.runtime.views.tables import counted
from pxrs.stores.base import ABSENT, Row, Store, Swap, Verdict

if TYPE_CHECKING:
    from pxrs.runtime.queue.queue import Queue

_PART = "[^/]+"
_KEYS = re.compile(
    rf"_registry/id|{_PART}/(?:group|member/{_PART}|partition/\d{{5,}}|target/{_PART}|dead-letters(?:-\d{{5,}})?)"
)
"""The part of a key behind the queue's name, in the keys that a dump prints."""


def dump(url: Url, registry: RegistryUrl = None) -> None:
    """Print every row of the queue's groups, one JSON object per line."""
    with opened(url, registry) as queue:
        # Bells only wake waiting members: they hold nothing.
        rows = [row for row in queue.store.scan(_base(queue)) if row.key.split("/")[-2] != "bell"]
        if not rows:
            queue.check_registry()  # an empty dump of a registry that is not the log's would pass for a copy
            note(f"queue {queue.name!r} has had no group yet: there is nothing to dump")
        queue.tell_of_other_registry()
    for row in rows:
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
        _share_id(wanted, present, queue)
        differing = [key for key, value in wanted.items() if key in present and present[key].value != value]
        if differing and not force:
            raise Refused(
                f"rows are there already with other values: {len(differing)}, the first is {differing[0]}; "
                "nothing was written, --force overwrites them"
            )
        changes = swaps_to(wanted, present)
        write_rows(queue.store, changes)
        queue.tell_of_other_registry()
    print(f"wrote {counted(len(changes), 'row')}")
    if len(changes) < len(wanted):
        same = len(wanted) - len(changes)
        note(f"{counted(same, 'row')} {'was' if same == 1 else 'were'} the same already")


def _share_id(wanted: dict[str, bytes], present: dict[str, Row], queue: Queue) -> None:
    """The registry that was dumped may still be there, with its id: the first one with a consumer counts then."""
    from pxrs.runtime.queue.log_registry import as_copied, id_key

    key = id_key(queue.settings.prefix, queue.name)
    if key in wanted:
        there = present.get(key)
        is_same = there is not None and as_copied(there.value) == as_copied(wanted[key])
        wanted[key] = there.value if there is not None and is_same else as_copied(wanted[key])


def _text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot read {'stdin' if file == '-' else file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Refused(
            f"{'stdin' if file == '-' else file} is not UTF-8 text, as `pxrs registry dump` prints it: {error}"
        ) from error


def _parsed(text: str, file: str, base: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{'stdin' if file == '-' else file}, line {number}"
        try:
            key, value = _row(line)
            _check_row(key, value, base)
        except (ValueError, RecursionError, Damaged) as error:
            looks = json.dumps({"key": f"{base}GROUP/group", "text": "..."})
            raise Refused(f"{where} is no row of a dump: {error}; a line looks like {looks}") from error
        if key in found:
            raise Refused(f"{where}: {key} is there twice")
        found[key] = value
    return found


def _row(line: str) -> tuple[str, bytes]:
    fields: Any = json.loads(line)
    if not isinstance(fields, dict) or sorted(fields) not in (["key", "text"], ["base64", "key"]):
        raise ValueError("it has not just a key, and a text or base64")
    for name, value in fields.items():
        if not isinstance(value, str):
            raise ValueError(f"{name} is {json.dumps(value)[:40]}, which is no text")
    value = fields["text"].encode() if "text" in fields else base64.b64decode(fields["base64"], validate=True)
    return fields["key"], value


def _check_row(key: str, value: bytes, base: str) -> None:
    """Refuse what no version of PXRS writes: such a row would stop those who read all of them."""
    from pxrs.rules.row_format import decode_group, decode_member, decode_partition

    if not key.startswith(base):
        raise ValueError(f"{key} is no row of this queue, whose rows begin with {base}")
    if not _KEYS.fullmatch(key.removeprefix(base)):
        raise ValueError(f"no row of a queue has the key {key}")
    parts = key.removeprefix(base).split("/")
    if parts[1] == "group":
        decode_group(parts[0], value)
    elif parts[1] == "member":
        decode_member(parts[2], value)
    elif parts[1] == "partition":
        decode_partition(int(parts[2]), value)


def swaps_to(wanted: dict[str, bytes], present: dict[str, Row]) -> list[Swap]:
    """Group rows come last: a group row says that all its other rows exist."""
    ordered = sorted(wanted, key=lambda key: (key.endswith("/group"), key))
    return [
        Swap(key, present[key].version if key in present else ABSENT, wanted[key])
        for key in ordered
        if key not in present or present[key].value != wanted[key]
    ]


def write_rows(store: Store, changes: list[Swap]) -> None:
    """In as few steps as the store allows; each of them all or nothing."""
    for start in range(0, len(changes), store.max_atomic):
        outcome = store.swap_all(changes[start : start + store.max_atomic])
        if outcome.verdict is Verdict.CONFLICT:
            raise Conflict("the rows were changed by others meanwhile: stop the group's members, and do it again")
        if outcome.verdict is Verdict.UNKNOWN:
            raise Unknown(f"no answer from the registry ({outcome.reason}): do it again")
