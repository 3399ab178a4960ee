"""What an error comes down to, for people and for comparing two of them."""

from __future__ import annotations

import re

_PYTHON_ERROR = re.compile(
    r"^[A-Za-z_][\w.]*(?:Error|Exception|Failed|Refused|Exit|Interrupt|StopConsuming)\b.*", re.MULTILINE
)
_JAVA_CAUSE = re.compile(r"^Caused by: (.*)", re.MULTILINE)


def gist(error: Exception) -> str:
    """What a person wants to read first: Spark's errors are pages long, and the user's own stands deep inside.

    The same for the same mistake: numbers of Java objects, which differ from call to call, are left out.
    """
    text = str(error).strip()
    inner: list[str] = _PYTHON_ERROR.findall(text[text.find("Traceback") :]) if "Traceback" in text else []
    if inner:
        return inner[0]
    caused = _JAVA_CAUSE.findall(text)
    first = caused[-1] if caused else text.splitlines()[0] if text else ""
    return re.sub(r"\bo\d+\.", "", f"{type(error).__name__}: {first}")
