"""Prints a message as its value, as a JSON object, or by a template such as ``"%p %o %k %v"``."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pxrs.apps.cli.options import WrongUsage
from pxrs.apps.cli.values import timestamp

if TYPE_CHECKING:
    from pxrs.model import Message

FORMAT_HELP = "value, json, or a template: %p partition, %o offset, %k key, %v value, %t time, %h headers, %i id."
Shape = Callable[["Message"], bytes]

_FIELDS: dict[str, Shape] = {
    "p": lambda message: str(message.partition).encode(),
    "o": lambda message: str(message.offset).encode(),
    "k": lambda message: message.key or b"",
    "v": lambda message: message.value,
    "s": lambda message: message.value,
    "t": lambda message: timestamp(message.timestamp_us).encode(),
    "h": lambda message: b",".join(b"%s=%s" % (name.encode(), value or b"") for name, value in message.headers.items()),
    "i": lambda message: message.id.encode(),
    "%": lambda _: b"%",
}
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


def shape(form: str, *others: str) -> Shape:
    """The function that turns a message into the line to print; ``others`` are forms that the caller knows besides."""
    if form == "value":
        return lambda message: message.value
    if form == "json":
        return lambda message: json.dumps(as_object(message)).encode()
    if "%" in form:
        return _template(form)
    known = ", ".join((*others, "value", "json"))
    raise WrongUsage(f"format {form!r} is not known: {known}, or a template such as '%p %o %k %v'")


def _template(form: str) -> Shape:
    parts: list[bytes | Shape] = []
    for piece in re.split(r"(%.|\\[nt\\])", form):
        if piece.startswith("%"):
            if piece[1:] not in _FIELDS:
                raise WrongUsage(f"format {form!r}: {piece} is not known; there are %{' %'.join(_FIELDS)}")
            parts.append(_FIELDS[piece[1:]])
        else:
            parts.append(_ESCAPES.get(piece, piece).encode())
    return lambda message: b"".join(part if isinstance(part, bytes) else part(message) for part in parts)


def as_object(message: Message) -> dict[str, Any]:
    """A message as JSON has it. Bytes that are no text become base64, under a name that says so."""
    return {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": timestamp(message.timestamp_us),
        **_bytes("key", message.key),
        **_bytes("value", message.value),
        "headers": {name: printable(value) for name, value in message.headers.items()},
        "id": message.id,
        "tenant": message.tenant,
    }


def _bytes(name: str, value: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if value is None else value.decode()}
    except UnicodeDecodeError:
        assert value is not None
        return {f"{name}_base64": base64.b64encode(value).decode()}


def printable(value: bytes | None) -> str | None:
    """Bytes as text, for a table: what is no UTF-8 is shown escaped."""
    return None if value is None else value.decode(errors="backslashreplace")


def shortened(value: bytes | None, limit: int = 60) -> str | None:
    text = printable(value if value is None else value[: limit + 1])
    return text if text is None or len(text) <= limit else text[: limit - 3] + "..."
