"""The handler that ``pxrs work`` is given as ``module:function``."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pxrs.errors import Refused

_FORM = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")


def split_handler(words: str) -> tuple[str, str]:
    """The module and the name in ``module:function``; anything else is refused."""
    found = _FORM.fullmatch(words)
    path, colon, _ = words.partition(":")
    if colon and (path.endswith(".py") or "/" in path):
        hint = path.removesuffix(".py").strip("./").replace("/", ".")
        raise Refused(f"handler {words!r} names a file: write the module, as in {hint}:{words[len(path) + 1 :]}")
    if found is None:
        raise Refused(f"handler {words!r}: write module:function, as in app:handle")
    return found["module"], found["name"]


def load_handler(words: str) -> Callable[..., Any]:
    """Import the module, which may be in the working directory, and find the function in it."""
    module, name = split_handler(words)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            where = f"module {found.__name__!r}" if isinstance(found, ModuleType) else repr(found)
            raise Refused(f"handler {words!r}: there is no {part!r} in {where}{_nearest(part, found)}")
        found = getattr(found, part)
    if not callable(found):
        kind = type(found).__name__
        raise Refused(f"handler {words!r}: this is {'an' if kind[0] in 'aeiou' else 'a'} {kind}, not a function")
    handler: Callable[..., Any] = found
    return handler


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise Refused(f"there is no module {error.name!r}, neither in {os.getcwd()} nor installed") from None
        raise Refused(f"module {module!r} cannot be imported: {error}{_place(error)}") from error
    except SystemExit as error:
        text = "it ends the program; put that under `if __name__ == '__main__':`"
        raise Refused(f"module {module!r} cannot be imported: {text}{_place(error)}") from error
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise Refused(f"module {module!r} cannot be imported: {text}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """The line of the user's code where it happened; a SyntaxError says that itself."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    theirs = frames[1:]  # the first one is our own
    is_said = isinstance(error, SyntaxError) or not theirs
    return "" if is_said else f" ({theirs[-1].filename}, line {theirs[-1].lineno})"


def _nearest(name: str, found: object) -> str:
    known = [other for other in dir(found) if callable(getattr(found, other, None))]
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
