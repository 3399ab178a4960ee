"""The pages of documentation, and how what they say is done: their code runs, their commands are typed."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).resolve().parents[2]
SPARK = ROOT / "docs" / "spark.md"
DIRECTORIES = ROOT / "docs" / "directories.md"
SEALED = ROOT / "docs" / "reading-sealed.md"
SEALED_SPARK = ROOT / "docs" / "sealed" / "spark.md"
VIRTUAL = ROOT / "docs" / "virtual-partitions.md"
STREAMING = ROOT / "docs" / "streaming.md"
SPARK_USERS = ROOT / "docs" / "spark-users.md"
OPERATE = ROOT / "docs" / "operate.md"
NOT_RUN = "# not run"


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of one language: the line where each begins, and its text."""
    text = text_of(path)
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in found]


def run_blocks(path: Path) -> dict[str, Any]:
    """Run all Python blocks of a page in one namespace; errors show the page's own lines."""
    names: dict[str, Any] = {"__name__": "page"}
    for page in pages_before(path):
        for line, code in blocks(page, "python"):
            if NOT_RUN not in code:
                exec(compile("\n" * line + code, str(page), "exec"), names)
    return names


def pages_before(path: Path) -> list[Path]:
    """The page, and before it the one that it goes on from."""
    return [SEALED, path] if path.parent == SEALED_SPARK.parent else [path]


class Shell:
    """One bash for all commands of a page: what runs in the background goes on from block to block."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._bash.__exit__(None, None, None)  # closes what it reads from, and waits for its end

    def run(self, commands: str) -> None:
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.write(f"{commands}\necho the block ends\n")
        self._bash.stdin.flush()
        while not (line := self._bash.stdout.readline()).endswith("the block ends\n"):
            assert line, f"bash has ended in:\n{commands}"
            print(line, end="", flush=True)
        print(line.removesuffix("the block ends\n"), end="", flush=True)


class Echo(io.StringIO):
    """Keeps what is printed, and passes it on at once."""

    def __init__(self, to: TextIO) -> None:
        super().__init__()
        self._to = to

    def write(self, text: str) -> int:
        self._to.write(text)
        self._to.flush()
        return super().write(text)


def run_blocks_of(name: str) -> None:
    """Run the Python blocks of the page of this name."""
    run_blocks(ROOT / name)


def run_page_of(name: str, changes: dict[str, str]) -> None:
    """Do all that the page of this name says."""
    run_page(ROOT / name, changes)


def run_page(path: Path, changes: dict[str, str]) -> None:
    """Do all that a page says, top to bottom, as its reader would: run code, save files, type commands.

    A block of text is what the block before it prints; … stands for anything.
    """
    names: dict[str, Any] = {"__name__": "page"}
    found = [(*block, language) for language in ("python", "sh", "text") for block in blocks(path, language)]
    printed = ""
    with Shell() as shell:
        for line, code, language in sorted(found):
            for old, new in changes.items():
                code = code.replace(old, new)
            if NOT_RUN in code:
                continue
            if language == "text":
                assert _fits(printed, code), f"{path}:{line}: this is printed:\n{printed}"
                continue
            with redirect_stdout(Echo(sys.stdout)) as said:
                _run_block((path, line), code, language, shell, names)
            printed = said.getvalue()


def _run_block(place: tuple[Path, int], code: str, language: str, shell: Shell, names: dict[str, Any]) -> None:
    path, line = place
    file = re.match(r"# (\w+\.py)\n", code)
    if language == "sh":
        shell.run(code)
    elif file:
        Path(file[1]).write_text(code, encoding="utf-8")
    else:
        exec(compile("\n" * line + code, str(path), "exec"), names)


def _fits(printed: str, expected: str) -> bool:
    pattern = re.escape(expected.strip()).replace("…", ".*")
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
