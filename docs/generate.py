"""Writes the pages that are made from the code: settings, errors, metrics, and the index of decisions.

python -m docs.generate

``tests/house/test_docs.py`` fails when a page differs from what this would write.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from docs import registries

from pxrs import errors, settings
from pxrs.runtime.telemetry import metric_names as metrics

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Made by docs/generate.py. Do not edit. -->\n"


class Setting(NamedTuple):
    """One line of the table: ``section`` is the comment above it in the source."""

    section: str
    name: str
    default: Any
    meaning: str
    choices: tuple[str, ...] = ()


def read_settings() -> Iterator[Setting]:
    """The fields in the order of the source, with the string below each."""
    source = inspect.getsource(settings.Settings)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    lines = source.splitlines()
    kinds = get_type_hints(settings.Settings)
    section = ""
    for node, below in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
            continue
        above = lines[node.lineno - 2].strip()
        section = above.removeprefix("# ") if above.startswith("# ") else section
        kind = kinds[node.target.id]
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        yield Setting(section, node.target.id, ast.literal_eval(node.value), _text(below), choices)


def _text(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(text.split())
    return ""


def settings_page() -> str:
    parts = [NOTE, "# Settings\n", _SETTINGS_HEAD]
    section = ""
    for setting in read_settings():
        if setting.section != section:
            section = setting.section
            parts.append(f"\n## {section}\n\n| setting | default | meaning |\n|---|---|---|\n")
        shown = f"{setting.default:_}" if type(setting.default) is int else repr(setting.default)
        choices = f" One of {', '.join(f'`{choice!r}`' for choice in setting.choices)}." if setting.choices else ""
        parts.append(f"| `{setting.name}` | `{shown}` | {setting.meaning}{choices} |\n")
    return "".join(parts)


_SETTINGS_HEAD = """
One frozen object, `pxrs.Settings`. The later wins: defaults, a YAML file (named by `PXRS_SETTINGS`), the environment
(`PXRS_` and the name in capitals, as in `PXRS_LEASE_MS=2000`), arguments in code. Durations end in `_ms`: milliseconds.
Unknown names, values of the wrong kind, and settings that contradict each other are refused with `BadSetting`. In the
environment, where other programs may have names that begin with `PXRS_` too, an unknown name is refused only if it is
close to that of a setting (`PXRS_RETENTION_BYTE`); others are left alone.
"""


def errors_page() -> str:
    tree = inspect.getdoc(errors) or ""
    lines = [NOTE, "# Errors\n\n", "Named by what the caller does next. All are in `pxrs.errors`.\n\n"]
    lines.append(f"```\n{tree.partition(chr(10))[2].strip()}\n```\n\n")
    for name, kind in vars(errors).items():
        if inspect.isclass(kind):
            lines.append(f"- **{name}**: {' '.join((kind.__doc__ or '').split())}\n")
    return "".join(lines)


def metrics_page() -> str:
    head = """The names are stable. A consumer or pipeline serves its own metrics as Prometheus text, when
`metrics_port` is set, on `metrics_host`. `pxrs metrics URL` prints, and with `--listen` serves, the metrics that begin
with `pxrs_group_`: of all groups, from the registry and the log, also of partitions without an owner. Dead letters are
on both pages, because the leader of a group reports them, too. Series of a partition have no label `member`, so they
go on when the partition moves; `pxrs_owner_epoch` names the owner."""
    rows = [f"| `{m.name}` | {m.kind} | {m.help} | {', '.join(m.labels)} |\n" for m in metrics.ALL]
    return "".join([NOTE, f"# Metrics\n\n{head}\n\n| metric | kind | meaning | labels |\n|---|---|---|---|\n", *rows])


def decisions_page() -> str:
    lines = [
        NOTE,
        "# Decisions\n\nWhy PXRS is as it is, and how to check that it still is. Superseded, not edited.\n\n",
    ]
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        heading, _, status = path.read_text(encoding="utf-8").splitlines()[:3]
        title = re.sub(r"^#\s*(\d+[.:]?\s*)?", "", heading)
        later = re.match(r"Superseded by \[(\d+)\]", status)
        note = f" (superseded by {later[1]})" if later else ""
        lines.append(f"- [{path.stem[:4]}]({path.name}) {title}{note}\n")
    return "".join(lines)


def pages() -> dict[str, str]:
    """Path below docs → text."""
    return {
        "registries.md": registries.page(NOTE),
        "settings.md": settings_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "decisions/README.md": decisions_page(),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
