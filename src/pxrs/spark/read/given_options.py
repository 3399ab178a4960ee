"""The options of a read, a stream or a write as Spark hands them over: texts by name, checked one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pxrs.errors import BadSetting, masked_url
from pxrs.settings import Settings

SETTINGS = {f"pxrs.{name.replace('_', '.')}": (name, type(value)) for name, value in Settings().as_dict().items()}
"""Each of pxrs.Settings as an option: its name there, and its type."""
_UNITS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000}


class GivenOptions:
    """The texts by name. Spark hands the names over in lower case."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], why_not: Callable[[str], str]) -> None:
        """``why_not`` says why an option cannot be given here, behind "option 'x'"."""
        names = {name.lower(): name for name in known}
        self.texts: dict[str, str] = {}
        for key, text in options.items():
            name = names.get(key.lower())
            if name is None:
                raise BadSetting(f"option {key!r} {why_not(key)}")
            self.texts[name] = text

    def bad(self, name: str, wanted: str) -> BadSetting:
        return BadSetting(f"option {name!r} = {self.texts[name]!r}: {wanted}")

    def log(self, advice: str) -> str:
        """The log's URL, under either of its names."""
        path, log = self.texts.get("path"), self.texts.get("pxrs.log")
        if path and log and path != log:
            both = f"options 'path' = {masked_url(path)!r} and 'pxrs.log' = {masked_url(log)!r}"
            raise BadSetting(f"{both} name two logs: leave one out")
        if not (path or log):
            raise BadSetting(f"option 'path' is missing: {advice}")
        return path or log or ""

    def text(self, name: str) -> str | None:
        if name in self.texts and not self.texts[name].strip():
            raise self.bad(name, "must not be empty; leave it out")
        return self.texts.get(name)

    def word(self, name: str, words: tuple[str, ...]) -> str:
        """One of these words; the first if none is given."""
        text = self.texts.get(name, words[0]).strip().lower()
        if text not in words:
            raise self.bad(name, " or ".join(words))
        return text

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str, least: int = 1, below: int | None = None) -> int | None:
        """A whole number from ``least`` on; None if there is none."""
        if name not in self.texts:
            return None
        return self.number(name, least, f"a whole number from {least} on", below)

    def number(self, name: str, least: int, wanted: str, below: int | None = None) -> int:
        try:
            number = int(self.texts[name])
        except ValueError as error:
            raise self.bad(name, wanted) from error
        if number < least or (below is not None and number >= below):
            raise self.bad(name, wanted)
        return number

    def duration_ms(self, name: str, default: int) -> int:
        """A time such as 500ms, 30s or 15m; a number alone is milliseconds."""
        if name not in self.texts:
            return default
        found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", self.texts[name].lower())
        if found is None or found[2] not in _UNITS:
            raise self.bad(name, "a time such as 500ms, 30s or 15m")
        return int(found[1]) * _UNITS[found[2]]

    def settings(self) -> dict[str, Any]:
        """The settings among the options, by their own names."""
        given = {option: found for option, found in SETTINGS.items() if option in self.texts}
        return {
            name: self.number(option, 0, "a whole number from 0 on") if kind is int else self.texts[option]
            for option, (name, kind) in given.items()
        }
