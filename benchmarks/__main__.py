"""``python -m benchmarks list | run NAME [--quick] [--json] | all [--quick]``."""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.harness import HERE, PeerFailed, Result, load, names
from benchmarks.report import draw, shown, write_table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="one line per benchmark: name, what it compares")
    one = verbs.add_parser("run", help="run one")
    one.add_argument("name", metavar="NAME")
    one.add_argument("--json", action="store_true", help="print the result as one JSON line at the end")
    everything = verbs.add_parser("all", help="run all; table and pictures go to benchmarks/results/")
    for verb in (one, everything):
        verb.add_argument("--quick", action="store_true", help="smaller sizes, done within a minute or two")
    chosen = parser.parse_args(arguments)
    if chosen.verb == "list":
        return _list()
    return _run(chosen.name, chosen.quick, chosen.json) if chosen.verb == "run" else _all(chosen.quick)


def _list() -> int:
    for name in names():
        print(f"{name:18} {load(name).SUMMARY}")
    return 0


def _run(name: str, quick: bool, as_json: bool) -> int:
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
    return 0


def _all(quick: bool) -> int:
    made = HERE / "results"
    made.mkdir(exist_ok=True)
    results, failed = [], []
    for name in names():
        print(f"{name} ...", flush=True)
        result = _in_own_process(name, quick)
        if result is None:
            failed.append(name)
            continue
        results.append(result)
        draw(result, made / f"{name}.png")
    write_table(results, failed, made / "table.md")
    print((made / "table.md").read_text(encoding="utf-8"))
    return 1 if failed else 0


def _in_own_process(name: str, quick: bool) -> Result | None:
    """So that no benchmark inherits another one's threads, caches or memory."""
    command = [sys.executable, "-m", "benchmarks", "run", name, "--json", *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False)
    return Result.from_json(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
