"""The page on registries: what each store guarantees, and which tests have shown it on a real server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.tools.store_results import SCENARIOS, STORES, Outcomes, cell

from pxrs.drivers import find_driver
from pxrs.stores.base import Guarantee

RESULTS = Path(__file__).resolve().parent / "registry-results.json"
PROOFS: dict[Guarantee, list[tuple[str, str]]] = {
    Guarantee.DURABLE: [("demo", "")],
    Guarantee.LINEARIZABLE: [
        ("conformance", "test_a_read_sees_every_write_that_was_answered"),
        ("conformance", "test_a_delete_that_was_answered_is_seen"),
    ],
    Guarantee.ACROSS_PROCESSES: [
        ("conformance", "test_a_forked_child_shares_the_store_or_is_refused"),
        ("test_b03_eight_processes_race_for_256_partitions", ""),
    ],
    Guarantee.ACROSS_HOSTS: [("test_reply_lost_after_the_write", "")],
    Guarantee.NATIVE_EXPIRY: [("conformance", "test_a_row_with_a_time_to_live_vanishes_where_that_is_promised")],
    Guarantee.WATCH: [
        ("conformance", "test_a_wait_is_woken_by_a_change_made_during_it"),
        ("test_the_watch_alone_wakes", ""),
    ],
    Guarantee.ATOMIC_ROWS: [
        ("conformance", "test_swap_all_does_all"),
        ("conformance", "test_swap_all_is_never_seen_half_done"),
    ],
}
"""Which scenario, and which test of it, shows that a store keeps a guarantee."""
URLS = {
    "memory": "memory:",
    "sqlite": "sqlite:PATH",
    "lockfiles": "lockfiles:DIR",
    "postgresql": "postgresql://host/db",
    "mysql": "mysql://host/db",
    "etcd": "etcd://h1,h2,h3/prefix",
    "redis": "redis://host/0",
    "nats": "nats://host/bucket",
}
PAGES = {
    "lockfiles": "registry-lockfiles.md",
    "postgresql": "registry-sql.md",
    "mysql": "registry-sql.md",
    "etcd": "registry-etcd.md",
    "redis": "registry-redis.md",
    "nats": "registry-nats.md",
}


def page(note: str) -> str:
    found: Outcomes = json.loads(RESULTS.read_text(encoding="utf-8"))
    parts = [note, _HEAD, _guarantees(found), _MEANINGS, *_meanings(), _SCENARIOS, _scenarios(found), _FOOT]
    return "".join(parts)


def _guarantees(found: Outcomes) -> str:
    names = [guarantee.name.lower().replace("_", " ") for guarantee in Guarantee]
    lines = [f"| registry | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"]
    for store in STORES:
        declared = find_driver("pxrs.stores", f"{store}:").guarantees
        cells = ["yes" if _is_proved(one, store, found) else "no" for one in Guarantee]
        claimed = ["yes" if one in declared else "no" for one in Guarantee]
        assert cells == claimed, f"{store} declares {claimed}, and the tests have shown {cells}"
        name = f"[`{URLS[store]}`]({PAGES[store]})" if store in PAGES else f"`{URLS[store]}`"
        lines.append(f"| {name} | {' | '.join(cells)} |\n")
    return "".join(lines)


def _is_proved(guarantee: Guarantee, store: str, found: Outcomes) -> bool:
    """Declared, and every test that shows it has passed on that store."""
    if guarantee not in find_driver("pxrs.stores", f"{store}:").guarantees:
        return False
    return all(_passed(found.get(store, {}).get(scenario, {}), test) for scenario, test in PROOFS[guarantee])


def _passed(tests: dict[str, str], name: str) -> bool:
    wanted = [outcome for test, outcome in tests.items() if name in ("", test)]
    return bool(wanted) and set(wanted) == {"passed"}


def _meanings() -> list[str]:
    return [f"- *{one.name.lower().replace('_', ' ')}*: {one.value}\n" for one in Guarantee]


def _scenarios(found: Outcomes) -> str:
    lines = [f"| scenario | {' | '.join(STORES)} |\n|---|{'---|' * len(STORES)}\n"]
    for scenario, words in SCENARIOS.items():
        cells = [cell(found.get(store, {}).get(scenario, {})) for store in STORES]
        lines.append(f"| {words} | {' | '.join(cells)} |\n")
    return "".join(lines)


_HEAD = """# Registries

The registry holds a few rows for each group: who owns which partition, under which epoch, how far it is. Take the store
that the team already runs; nothing but the URL changes.

```python
import pxrs

queue = pxrs.open(log="file:./orders", registry="sqlite:./registry.db", partitions=8)
queue.close()
pxrs.open(log="file:./orders", registry="sqlite:./registry.db", require=["durable", "across processes"]).close()
```

`require=` refuses a store that lacks a guarantee, before anything is created; one alone is one word,
`require="durable"`. A store guarantees what it
declares *and* what the tests below have shown on it; this table is made from their results:

"""
_MEANINGS = "\n"
_SCENARIOS = """
Tests make these faults on each store, on real servers (PostgreSQL, MariaDB, etcd, Valkey, NATS). After each, nothing
was lost, every partition had one owner again, and order was kept. A dash: that cannot happen there.

"""
_FOOT = """
`oracle://` uses the statements of `mysql://` and `postgresql://`, compiled for Oracle. No server was in reach to run
them on: they are compiled and parsed in tests, and nothing more. Redis means Valkey here, MySQL means MariaDB.

## A log knows its registry

With the first group a random id is written to both: to the log, and to the registry. From then on the log belongs to
this registry, also if it is the one beside the log. A program that forgets to name it does not begin again from the
first message, and does not delete what the real groups have still to read: it is refused, with
an error that names the right registry.

```python
with pxrs.open(log="file:./orders", registry="sqlite:./registry.db") as queue:
    queue.consumer("billing", print).start().stop()
with pxrs.open("file:./orders") as forgetful:
    try:
        forgetful.consumer("billing", print)
    except pxrs.errors.Mismatch as error:
        print(error)
```

- Name it once for all programs of a machine: `PXRS_REGISTRY=sqlite:/srv/registry.db` counts in Python and in the
  shell wherever no registry is named, except for queues in memory.
- Opening, sending and looking need no registry and make none. It is made and recorded by the first member that starts,
  or before that by `pxrs init --registry URL`.
- Under another registry members are refused, `pxrs health` fails, and nothing is deleted. A look at groups goes on,
  with a warning; a dump without a row is refused.
- `memory:` is never recorded beside a log that outlives the process, and deletes nothing there.
- `pxrs registry adopt LOG --registry URL` lets the log belong to another registry from now on: after a loss, or on
  purpose. Checkpoints do not come along. A new group in it says in a warning that the log has had groups before.
- `pxrs registry copy FROM TO` moves stopped groups from one store to another, with epochs and checkpoints, and with
  the id if all groups of a queue go. With `--move` FROM keeps nothing. Without it, and after `pxrs registry dump` and
  `load`, two registries have the id: nothing is deleted from the log until the first member starts with one of them.
  The log then belongs to that one, and the other is refused; `adopt` is the way back.
- A queue of version 0.5 has no id yet. The first member that starts writes it; until then nothing is deleted. If its
  dead letters or staged output show a group, and the registry has none, the start is refused: name the registry of
  that group, or adopt.
- Version 0.5 does not know the id, so it is not refused: update the programs that may forget their registry first.

The id is the row `PREFIX/QUEUE/_registry/id`; the log keeps it in `registry.json`, or in a message of the stream
([why](decisions/0027-a-log-knows-its-registry.md)).
"""
