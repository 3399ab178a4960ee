"""Commands are run in this process, as ``pxrs`` runs them; those that consume get a process of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.apps.cli import main
from tests.apps.cli.helpers import Pxrs, Result


@pytest.fixture
def pxrs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pxrs:
    """Run one command in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PXRS_URL", raising=False)

    def run(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        code = main([str(word) for word in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def pxrs_process(tmp_path: Path) -> Callable[..., Result]:
    """Run one command in a process of its own."""

    def run(*arguments: object, stdin: str = "", **environment: str) -> Result:
        command = [sys.executable, "-m", "pxrs.apps.cli", *map(str, arguments)]
        known = {name: value for name, value in os.environ.items() if not name.startswith("PXRS_")}
        ended = subprocess.run(
            command, input=stdin, capture_output=True, text=True, cwd=tmp_path, timeout=120, env=known | environment
        )
        return Result(ended.returncode, ended.stdout, ended.stderr)

    return run
