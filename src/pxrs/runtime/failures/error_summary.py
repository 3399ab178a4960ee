"""Summaries of errors, for people and for comparing two of them: text that can always be made and stored."""

from __future__ import annotations

import re
import traceback

TEXT_BYTES = 4_096
STACK_BYTES = 16_384

_PYTHON_ERROR = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Failed|Refused|Exit|Interrupt|StopConsuming)\b.*", re.MULTILINE
)
_JAVA_CAUSE = re.compile(r"^Caused by: (.*)", re.MULTILINE)
_CUT = "…"


def error_text(error: BaseException) -> str:
    """The type and the text of an error: at most 4 KB, always UTF-8, whatever the error does when it is asked."""
    text = _own_text(error)
    return beginning(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def error_stack(error: BaseException) -> str:
    """The stack of an error as Python prints it: at most 16 KB of UTF-8, its end kept."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as trouble:
        text = f"{error_text(error)} (its stack cannot be shown: {type(trouble).__name__})"
    return ending(text)


def error_summary(error: BaseException) -> str:
    """The line that a person wants to read first: Spark's errors are pages long, with the user's own deep inside.

    The same for the same mistake: numbers of Java objects, which differ from call to call, are left out.
    """
    text = _own_text(error).strip()
    inner: list[str] = _PYTHON_ERROR.findall(text[text.find("Traceback") :]) if "Traceback" in text else []
    if inner:
        return beginning(inner[0])
    caused = _JAVA_CAUSE.findall(text)
    first = caused[-1] if caused else text.splitlines()[0] if text else ""
    return beginning(re.sub(r"\bo\d+\.", "", f"{type(error).__name__}: {first}"))


def beginning(text: str) -> str:
    """The first 4 KB of a text, as UTF-8 can hold it."""
    found = _encoded(text)
    if len(found) > TEXT_BYTES:
        found = found[: TEXT_BYTES - len(_CUT.encode())]
        return found.decode(errors="ignore") + _CUT  # half a character at the cut is left out
    return found.decode()


def ending(text: str) -> str:
    """The last 16 KB of a text, as UTF-8 can hold it: where a stack says what was raised."""
    found = _encoded(text)
    if len(found) > STACK_BYTES:
        found = found[len(_CUT.encode()) - STACK_BYTES :]
        return _CUT + found.decode(errors="ignore")
    return found.decode()


def _own_text(error: BaseException) -> str:
    """The error's own text. Its ``__str__`` is foreign code, and may raise anything."""
    try:
        return _encoded(str(error)).decode()
    except BaseException as trouble:
        return f"(its text cannot be shown: {type(trouble).__name__})"


def _encoded(text: str) -> bytes:
    """Lone surrogates, which have no UTF-8 form, are written as Python's source would: \\udc80."""
    return str.encode(text, errors="backslashreplace")
