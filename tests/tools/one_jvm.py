"""Programs on Spark run one after another in one process, so that all of them share one Java machine.

A Java machine takes seconds to start, and is slow until it is warm. Each program here still makes its own Spark
session and ends it, as it does for its reader; only the machine below it is the same. What a program prints is what
it would print alone. All run in one directory, which is emptied before each.

    def test_the_example_runs(one_jvm):
        assert one_jvm.run("runpy:run_path", "examples/count_per_account.py", None, "__main__") == "..."
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class OneJvm:
    """The process, as a test sees it. It is started with the first program, and again after one that failed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def run(self, function: str, *arguments: Any, strict: bool = False, **env: str) -> str:
        """Call ``"module:function"`` in the empty directory, with these variables; returns what it printed.

        ``strict``: a warning is an error.
        """
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps([function, arguments, strict, env]) + "\n")
            process.stdin.flush()
            told = json.loads(process.stdout.readline() or '{"error": "the process has ended"}')
        except BaseException:
            self.close()
            raise
        if told.get("error"):
            self.close()  # what failed may have left anything behind
            said = (self._directory / "stderr").read_text(encoding="utf-8", errors="replace")
            raise AssertionError(
                f"{told['error']}\nprinted:\n{told.get('printed', '')}\nstderr ends with:\n{said[-4000:]}"
            )
        return str(told["printed"])

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            work = self._directory / "work"
            work.mkdir(parents=True, exist_ok=True)
            programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            env = os.environ | QUICK | {"PATH": programs, "PYTHONPATH": f"{ROOT}{os.pathsep}."}
            with open(self._directory / "stderr", "wb") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__], cwd=work, env=env, text=True, start_new_session=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                )  # fmt: skip
        return self._process

    def close(self) -> None:
        """End the process, and whatever its programs have left running."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.__exit__(None, None, None)
            self._process = None


@pytest.fixture(scope="session")
def one_jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneJvm]:
    """One Java machine for all programs of this process. Tests with it are of the group "spark"."""
    machine = OneJvm(tmp_path_factory.mktemp("one-jvm"))
    yield machine
    machine.close()


# ---- in the process -------------------------------------------------------------------------------------------------


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the Java machine inherits it: nothing of it comes between the answers
    for line in sys.stdin:
        answers.write(json.dumps(_answer(*json.loads(line))) + "\n")
        answers.flush()


def _answer(function: str, arguments: list[Any], strict: bool, env: dict[str, str]) -> dict[str, str]:
    _empty(Path.cwd())
    before = dict(os.environ)
    os.environ.update(env)
    with redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        if strict:
            warnings.simplefilter("error")
        error = _error_of(function, arguments)
    os.environ.clear()
    os.environ.update(before)
    return {"printed": printed.getvalue(), "error": error}


def _error_of(function: str, arguments: list[Any]) -> str:
    """Make the call, and end its session and its modules."""
    from pyspark import SparkContext  # tests that only name this module do not need it

    module, _, name = function.partition(":")
    known = set(sys.modules)
    try:
        getattr(import_module(module), name)(*arguments)
    except (Exception, SystemExit):
        return traceback.format_exc()
    finally:
        if SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()
        for name in set(sys.modules) - known:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(Path.cwd()):
                del sys.modules[name]
    return ""


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


if __name__ == "__main__":
    main()
