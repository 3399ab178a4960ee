"""Data directories that take seconds to lay out are laid out once for each Python environment, then copied."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

KEPT = Path(sys.prefix) / "share" / "pxrs-templates"


def lay_out(target: Path, recipe: Sequence[str], make: Callable[[Path], None]) -> None:
    """Fill ``target`` as ``make`` does. The recipe names all that it depends on: versions and options."""
    template = KEPT / hashlib.sha256(repr(list(recipe)).encode()).hexdigest()[:16]
    if not template.is_dir():
        with suppress(OSError):  # an environment that cannot be written to has no templates
            _keep(template, make)
    if template.is_dir():
        shutil.copytree(template, target, symlinks=True)
    else:
        make(target)


def _keep(template: Path, make: Callable[[Path], None]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as directory:
        made = Path(directory) / "made"
        make(made)
        with suppress(OSError):  # another process was faster
            made.rename(template)
