"""The table and the pictures of a whole run."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import HERE, Result, load, names

RESULTS = HERE / "results"
FAR_APART = 8


def keep(result: Result) -> None:
    """Its figures and its picture, in the place of those of an earlier run."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{result.name}.json").write_text(result.as_json(indent=1) + "\n", encoding="utf-8")
    draw(result, RESULTS / f"{result.name}.png")


def write_table() -> None:
    """All figures that are kept, as Markdown."""
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    lines = ["# Benchmarks", "", f"{machine}. A ratio above 1 is better for us.", ""]
    for path in (RESULTS / f"{name}.json" for name in names()):
        if path.exists():
            result = Result.from_json(path.read_text(encoding="utf-8"))
            lines += [f"## {result.name}", "", load(result.name).SUMMARY, "", *_rows(result), ""]
    (RESULTS / "table.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _rows(result: Result) -> list[str]:
    kinds = {"ours": result.figures, "peer": result.peers, "ratio": result.ratios}
    rows = [f"| {kind} | {what} | {shown(value)} |" for kind, table in kinds.items() for what, value in table.items()]
    return ["| | what | value |", "|---|---|---:|", *rows]


def shown(value: float) -> str:
    """A number as people read it: three digits that count."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def draw(result: Result, path: Path) -> None:
    """The benchmark's own picture, or its ratios as bars."""
    own = getattr(load(result.name), "picture", None)
    if own is not None:
        own(result, path)
    else:
        bars(f"{result.name}: ours against a peer (1 = equal)", result.ratios, path)


def bars(title: str, values: Mapping[str, float], path: Path, line: float | None = 1.0) -> None:
    """Horizontal bars with a line where both sides are equal; on a logarithmic scale if they differ very much."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.4 * len(values)))
    drawn = axes.barh(list(values), list(values.values()), color="#3b7a9e")
    axes.bar_label(drawn, [shown(value) for value in values.values()], padding=3)
    axes.set_title(title, loc="right")  # room for long ones is to the left, above the names
    axes.set(xscale="log" if max(values.values()) > FAR_APART * min(values.values()) else "linear")
    axes.tick_params(axis="x", which="minor", labelbottom=False)  # they would stand on each other; the bars have labels
    axes.invert_yaxis()
    axes.margins(x=0.15)
    if line is not None:
        axes.axvline(line, color="#999999", linewidth=1)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
