"""``python -m benchmarks list | run NAME [--quick] [--json] [--keep] | all [--quick]``."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.harness import HERE, PeerFailed, Result, load, names
from benchmarks.report import RESULTS, keep, shown, write_table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="one line per benchmark: name, what it compares")
    one = verbs.add_parser("run", help="run one")
    one.add_argument("name", metavar="NAME")
    one.add_argument("--json", action="store_true", help="print the result as one JSON line at the end")
    one.add_argument("--keep", action="store_true", help="also put it into benchmarks/results/, with its picture")
    everything = verbs.add_parser("all", help="run and keep all")
    for verb in (one, everything):
        verb.add_argument("--quick", action="store_true", help="smaller sizes, done within a minute or two")
    chosen = parser.parse_args(arguments)
    if chosen.verb == "list":
        return _list()
    if chosen.verb == "all":
        return _all(chosen.quick)
    return _run(chosen.name, chosen.quick, chosen.json, chosen.keep)


def _list() -> int:
    for name in names():
        print(f"{name:18} {load(name).SUMMARY}")
    return 0


def _run(name: str, quick: bool, as_json: bool, kept: bool) -> int:
    try:
        result: Result = load(name).run(quick)
    except PeerFailed as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 3
    for title, table in (("ours", result.figures), ("peers", result.peers), ("ratios", result.ratios)):
        print(title)
        for what, value in table.items():
            print(f"  {what:52} {shown(value):>14}")
    if as_json:
        print(result.as_json())
    if kept:
        keep(result)
        write_table()
    return 0


def _all(quick: bool) -> int:
    failed = [name for name in names() if not _is_kept(name, quick)]
    print((RESULTS / "table.md").read_text(encoding="utf-8"))
    for name in failed:
        print(f"{name} failed: if it stands in the table, then of an earlier run", file=sys.stderr)
    return 1 if failed else 0


def _is_kept(name: str, quick: bool) -> bool:
    """Run it in a process of its own, so that it inherits no other one's threads, caches or memory."""
    print(f"{name} ...", flush=True)
    command = [sys.executable, "-m", "benchmarks", "run", name, "--keep", *(["--quick"] if quick else [])]
    return subprocess.run(command, cwd=HERE.parent, stdout=subprocess.DEVNULL, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
