"""Settings from outside the program: a YAML file and the environment."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from pxrs.errors import BadSetting
from pxrs.settings import Settings, check_names, from_environment, shown


class _StrictLoader(yaml.SafeLoader):
    """YAML in which a repeated key is an error, not a silent last-one-wins."""


def _mapping(loader: _StrictLoader, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key, line = loader.construct_object(key_node, deep=deep), key_node.start_mark.line + 1
        if not isinstance(key, Hashable):
            raise BadSetting(f"line {line}: a {type(key).__name__} cannot be a name: write NAME: VALUE")
        if key in seen:
            raise BadSetting(f"{shown(key)} is there twice (line {line})")
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_settings(path: str | None = None, environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Defaults, then the YAML file (or the one that PXRS_SETTINGS names), then the environment, then the arguments."""
    if path is not None and not isinstance(path, str | os.PathLike):
        raise BadSetting(f"path = {shown(path)}: must be the name of a YAML file, as 'pxrs.yaml' is")
    if environ is not None and not isinstance(environ, Mapping):
        raise BadSetting(f"environ = {shown(environ)}: must be a mapping of texts, as os.environ is")
    environ = os.environ if environ is None else environ
    path = path or environ.get("PXRS_SETTINGS")
    from_file = read_yaml(path) if path else {}
    check_names(from_file, path or "")
    from_outside = from_environment(environ)
    try:
        return Settings.from_mapping({**from_file, **from_outside, **arguments})
    except BadSetting as error:
        raise BadSetting(f"{path}: {error}" if path else str(error)) from None


def read_yaml(path: str) -> dict[str, Any]:
    """A YAML file that holds a mapping; anything else is refused with the file's name in the text."""
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.load(file, Loader=_StrictLoader)
    except OSError as error:
        raise BadSetting(f"{path}: {error.strerror}") from error
    except RecursionError:
        raise BadSetting(f"{path} is nested too deeply: settings are one list of NAME: VALUE") from None
    except BadSetting as error:
        raise BadSetting(f"{path}: {error}") from error
    except Exception as error:  # YAML's own errors, and whatever its constructors of numbers and dates stumble over
        raise BadSetting(f"{path!r} is not readable as YAML: {str(error) or type(error).__name__}") from error
    if found is None:  # empty, or comments only: that says nothing, and so contradicts nothing
        return {}
    if not isinstance(found, dict):
        raise BadSetting(f"{path}: expected names with values, found {type(found).__name__}")
    return found
