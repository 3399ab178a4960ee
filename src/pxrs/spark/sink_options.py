"""The options of ``write`` and ``writeStream.format("pxrs")``: where to, and what to do if no queue is there.

| option | values | default |
|---|---|---|
| ``path`` or ``pxrs.log`` | the log's URL, as in file:./orders | needed |
| ``partitions`` | create the queue with so many, if it does not exist | it must exist |
| ``hash``, ``reduce`` | of a new queue, as ``pxrs.open`` has them | xxh64-spark, pmod |
| ``topic`` | the queue's name: only a check | |
| ``pxrs.staging`` | where rows wait for the commit: a directory that driver and executors share | a file log's own |
| ``pxrs.producer.name`` | ``write`` only: a write that is repeated under its name is stored once | none |
| ``pxrs.producer.sequence`` | with a name: the number of this write, rising | 0 |
| ``pxrs.`` and a setting | as in pxrs.durability: each of pxrs.Settings, with dots | |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pxrs.errors import BadSetting, masked_url
from pxrs.logs.base import Wish
from pxrs.model import check_name
from pxrs.settings import Settings
from pxrs.spark.columns import nearest

_KNOWN = ("path", "pxrs.log", "partitions", "hash", "reduce", "topic", "pxrs.staging")
_BATCH_ONLY = ("pxrs.producer.name", "pxrs.producer.sequence")
_OF_SPARK = ("checkpointLocation",)
"""Spark hands these on with ours."""
_SETTINGS = {f"pxrs.{name.replace('_', '.')}": (name, type(value)) for name, value in Settings().as_dict().items()}
_MAX_SEQUENCE = 1 << 40


class SinkRequest(NamedTuple):
    """What the options of a write ask for, before the log was looked at."""

    log: str
    wish: Wish
    topic: str | None
    staging: str | None
    producer: str | None
    """The name of a write that may be repeated."""
    sequence: int
    settings: dict[str, Any]

    def __repr__(self) -> str:
        return f"SinkRequest({masked_url(self.log)!r})"  # never a password


def parse_sink(options: Mapping[str, str], is_stream: bool) -> SinkRequest:
    """What these options ask for. A wrong one is refused by its name."""
    texts = _by_name(options, is_stream)
    name = texts.get("pxrs.producer.name")
    if name is None and "pxrs.producer.sequence" in texts:
        raise BadSetting("option 'pxrs.producer.sequence' numbers the writes of a 'pxrs.producer.name': set that too")
    return SinkRequest(
        log=_log(texts),
        wish=Wish(_number(texts, "partitions", 1), texts.get("hash"), texts.get("reduce")),
        topic=texts.get("topic"),
        staging=texts.get("pxrs.staging"),
        producer=None if name is None else check_name("producer", name),
        sequence=_number(texts, "pxrs.producer.sequence", 0) or 0,
        settings=_settings(texts),
    )


def _by_name(options: Mapping[str, str], is_stream: bool) -> dict[str, str]:
    known = (*_KNOWN, *_SETTINGS, *(_OF_SPARK if is_stream else _BATCH_ONLY))
    names = {name.lower(): name for name in known}
    texts = {}
    for key, text in options.items():
        name = names.get(key.lower())
        if name is None:
            raise BadSetting(f"option {key!r} {_why_not(key, is_stream, known)}")
        texts[name] = text
    return texts


def _why_not(key: str, is_stream: bool, known: tuple[str, ...]) -> str:
    if is_stream and key.lower() in _BATCH_ONLY:
        return "is not used here: a stream's batches are numbered by Spark, and its checkpoint names it"
    return f"is not known to a write{nearest(key, known)}"


def _log(texts: Mapping[str, str]) -> str:
    path, log = texts.get("path"), texts.get("pxrs.log")
    if path and log and path != log:
        both = f"options 'path' = {masked_url(path)!r} and 'pxrs.log' = {masked_url(log)!r}"
        raise BadSetting(f"{both} name two logs: leave one out")
    if not (path or log):
        raise BadSetting("option 'path' is missing: name the queue's log, as in .option('path', 'file:./orders')")
    return path or log or ""


def _number(texts: Mapping[str, str], name: str, least: int) -> int | None:
    if name not in texts:
        return None
    try:
        number = int(texts[name])
    except ValueError:
        number = least - 1
    if not least <= number < _MAX_SEQUENCE:
        raise BadSetting(f"option {name!r} = {texts[name]!r}: a whole number from {least} on")
    return number


def _settings(texts: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option, (name, kind) in _SETTINGS.items():
        if option in texts:
            found[name] = _number(texts, option, 0) if kind is int else texts[option]
    return found
