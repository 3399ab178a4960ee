"""A user's own code for ``pxrs run``: files that become modules, functions that are named in text.

Spark's workers do not know the directory of that code. So its functions travel by value, as those of a program do;
what is installed travels by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pxrs.errors import BadSetting

_EXTRA = {"pyspark", "py4j", "pandas"}


def module_of(path: str) -> ModuleType:
    """Run a Python file, once, as a module that is not ``__main__``."""
    name = f"pxrs_run_{os.path.splitext(os.path.basename(path))[0]}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None or not os.path.isfile(path):
        raise BadSetting(f"{path}: there is no such file")
    module = importlib.util.module_from_spec(found)
    with _beside(os.path.dirname(os.path.abspath(path)), path):
        sys.modules[name] = module
        found.loader.exec_module(module)
    return module


def function_of(words: str, directory: str, where: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; the module may stand in ``directory``. ``where`` is for errors."""
    module, colon, name = words.partition(":")
    if not (module and colon and name):
        raise BadSetting(f"{where} = {words!r}: write module:function")
    with _beside(os.path.abspath(directory), where):
        found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadSetting(f"{where} = {words!r}: there is no {name!r} in {module}")
        found = getattr(found, part)
    if not callable(found):
        raise BadSetting(f"{where} = {words!r}: this is a {type(found).__name__}, not a function")
    called: Callable[..., Any] = found
    return called


@contextmanager
def _beside(directory: str, where: str) -> Iterator[None]:
    """Imports find what stands in this directory, now and later; what is loaded from it travels by value."""
    before = set(sys.modules)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        yield
    except Exception as error:
        missing = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and missing in _EXTRA:
            raise BadSetting(f"{where}: {missing} is not installed: pip install 'pxrs[spark]'") from error
        raise BadSetting(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    _let_travel([sys.modules[name] for name in set(sys.modules) - before if "." not in name], directory)


def _let_travel(modules: list[ModuleType], directory: str) -> None:
    own = [module for module in modules if _is_in(module, directory)]
    if not own:
        return
    try:
        from pyspark import cloudpickle
    except ModuleNotFoundError as error:
        raise BadSetting(f"{error.name} is not installed: pip install 'pxrs[spark]'") from error
    for module in own:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types


def _is_in(module: ModuleType, directory: str) -> bool:
    """Whether a module, or a package, stands directly in a directory."""
    path = os.path.abspath(getattr(module, "__file__", None) or "")
    home = os.path.dirname(path)
    return directory == (os.path.dirname(home) if os.path.basename(path) == "__init__.py" else home)
