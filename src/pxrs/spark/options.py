"""The options of ``spark.read.format("pxrs")``, with Kafka's names: from texts to what is asked for.

| option | values | default |
|---|---|---|
| ``path`` or ``pxrs.log`` | the log's URL, as in file:./orders | needed |
| ``subscribe`` | the queue's name: only a check | |
| ``assign`` | ``{"orders": [0, 1]}`` | all partitions |
| ``startingOffsets`` | earliest, or ``{"orders": {"0": 23, "1": -2}}`` (-2: earliest) | earliest |
| ``endingOffsets`` | latest, or ``{"orders": {"0": 50, "1": -1}}`` (-1: latest) | latest |
| ``startingTimestamp``, ``endingTimestamp`` | milliseconds since 1970 | |
| ``startingOffsetsByTimestamp``, ``endingOffsetsByTimestamp`` | ``{"orders": {"0": 1700000000000}}`` | |
| ``startingOffsetsByTimestampStrategy`` | error, latest: where no message is that young | error |
| ``minPartitions``, ``maxRecordsPerPartition`` | split long ranges over more tasks | one task per partition |
| ``failOnDataLoss`` | true, false: read what is left | true |
| ``includeHeaders`` | true, false: the column headers | false |
| ``includeId`` | true, false: the columns id, tenant, epoch | false |

A timestamp goes before timestamps by partition, and these before offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from pxrs.errors import BadSetting
from pxrs.spark.columns import IDENTITY, NEVER_NULL, PLAIN, TYPES, check_columns, nearest

EARLIEST, LATEST = -2, -1


class Bound(NamedTuple):
    """Where reading starts or ends: offsets (EARLIEST, LATEST) or times in ms, for all partitions or for each."""

    option: str
    value: int | dict[int, int]
    is_time: bool = False


_KNOWN = (
    "path", "pxrs.log", "subscribe", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "includeId",
)  # fmt: skip
_NOT_HERE = {
    "pxrs.registry": "is not used here: a batch read opens the log only. Leave it out",
    "pxrs.group.id": "is not used here: a batch read takes no part in a group; pxrs.spark.Pipeline does",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What the options ask for, before the log was looked at."""

    log: str
    topics: dict[str, str]
    """The name that each option has for the queue."""
    partitions: tuple[int, ...] | None
    start: Bound
    end: Bound
    must_find_time: bool
    """Whether it is an error that no message is as young as the starting time."""
    min_tasks: int | None
    max_rows: int | None
    fail_on_loss: bool
    columns: tuple[str, ...]


def parse(options: Mapping[str, str]) -> Request:
    """What these options ask for. A wrong one is refused by its name."""
    given = _Given(options)
    headers, identity = given.flag("includeHeaders", False), given.flag("includeId", False)
    return Request(
        log=given.log(),
        partitions=given.partitions(),
        start=given.bound("starting", EARLIEST),
        end=given.bound("ending", LATEST),
        must_find_time=given.word("startingOffsetsByTimestampStrategy", ("error", "latest")) == "error",
        min_tasks=given.count("minPartitions"),
        max_rows=given.count("maxRecordsPerPartition"),
        fail_on_loss=given.flag("failOnDataLoss", True),
        columns=(*PLAIN, *(("headers",) if headers else ()), *(IDENTITY if identity else ())),
        topics=given.topics,
    )


class _Given:
    """The texts by name. Spark hands the names over in lower case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        names = {name.lower(): name for name in _KNOWN}
        self._texts: dict[str, str] = {}
        for key, text in options.items():
            name = names.get(key.lower())
            if name is None:
                why = _NOT_HERE.get(key.lower()) or f"is not known{nearest(key, _KNOWN)}"
                raise BadSetting(f"option {key!r} {why}")
            self._texts[name] = text
        self.topics = {"subscribe": self._texts["subscribe"]} if "subscribe" in self._texts else {}

    def _bad(self, name: str, wanted: str) -> BadSetting:
        return BadSetting(f"option {name!r} = {self._texts[name]!r}: {wanted}")

    def log(self) -> str:
        path, log = self._texts.get("path"), self._texts.get("pxrs.log")
        if path and log and path != log:
            raise BadSetting(f"options 'path' = {path!r} and 'pxrs.log' = {log!r} name two logs: leave one out")
        if not (path or log):
            raise BadSetting("option 'path' is missing: name the log, as in .load('file:./orders')")
        return path or log or ""

    # ---- single values -------------------------------------------------------------------------------------------

    def word(self, name: str, words: tuple[str, ...]) -> str:
        """One of these words; the first if there is none."""
        text = self._texts.get(name, words[0]).strip().lower()
        if text not in words:
            raise self._bad(name, " or ".join(words))
        return text

    def flag(self, name: str, default: bool) -> bool:
        return self.word(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str) -> int | None:
        return self._number(name, 1, "a whole number from 1 on") if name in self._texts else None

    def _number(self, name: str, least: int, wanted: str) -> int:
        try:
            number = int(self._texts[name])
        except ValueError as error:
            raise self._bad(name, wanted) from error
        if number < least:
            raise self._bad(name, wanted)
        return number

    # ---- partitions and bounds -------------------------------------------------------------------------------------

    def partitions(self) -> tuple[int, ...] | None:
        """Those that are assigned; None for all."""
        if "assign" not in self._texts:
            return None
        if "subscribe" in self._texts:
            raise BadSetting("options 'assign' and 'subscribe' exclude each other: leave one out")
        example = '{"orders": [0, 1]}'
        found = self._of_topic("assign", example)
        if not isinstance(found, list) or not found or not all(type(one) is int and one >= 0 for one in found):
            raise self._bad("assign", f"a list of partitions is needed, as in {example}")
        return tuple(sorted(set(found)))

    def bound(self, which: Literal["starting", "ending"], default: int) -> Bound:
        """Where to start or end. All that is given is checked, also what something else goes before."""
        offsets = self._offsets(f"{which}Offsets", default)
        by_partition, everywhere = f"{which}OffsetsByTimestamp", f"{which}Timestamp"
        found: Bound = Bound(f"{which}Offsets", offsets)
        if by_partition in self._texts:
            found = Bound(by_partition, self._by_partition(by_partition, 0, "times in milliseconds"), is_time=True)
        if everywhere in self._texts:
            time = self._number(everywhere, 0, "a time in milliseconds since 1970")
            found = Bound(everywhere, time, is_time=True)
        return found

    def _offsets(self, name: str, default: int) -> int | dict[int, int]:
        word = {EARLIEST: "earliest", LATEST: "latest"}[default]
        text = self._texts.get(name, word).strip().lower()
        if text == word:
            return default
        wanted = f"{word}, or offsets (from 0 on; {default} is {word})"
        if text in ("earliest", "latest"):
            raise self._bad(name, f"nothing would be read; {wanted}")
        offsets = self._by_partition(name, EARLIEST, wanted)
        if any(offset < 0 and offset != default for offset in offsets.values()):
            raise self._bad(name, wanted)
        return offsets

    def _by_partition(self, name: str, least: int, wanted: str) -> dict[int, int]:
        example = '{"orders": {"0": 23}}'
        found = self._of_topic(name, example)
        if not isinstance(found, dict) or not all(_is_pair(key, value, least) for key, value in found.items()):
            raise self._bad(name, f"{wanted} by partition, as in {example}")
        return {int(key): value for key, value in found.items()}

    def _of_topic(self, name: str, example: str) -> Any:
        """What the JSON text of an option says about its one queue."""
        try:
            content = json.loads(self._texts[name])
        except ValueError as error:
            raise self._bad(name, f"JSON such as {example} is needed ({error})") from error
        if not isinstance(content, dict) or len(content) != 1:
            raise self._bad(name, f"JSON with one queue is needed, as in {example}")
        [(self.topics[name], found)] = content.items()
        return found


def _is_pair(key: str, value: object, least: int) -> bool:
    return key.isdecimal() and type(value) is int and value >= least


def check_selection(schema: pa.Schema) -> tuple[str, ...]:
    """The columns of a schema that the user gave with ``.schema(...)``: of those there are, with their own types."""
    columns = check_columns(schema.names)
    for field in schema:
        if not field.type.equals(TYPES[field.name]):
            raise BadSetting(f"column {field.name!r} is {TYPES[field.name]} in a queue, and {field.type} in .schema()")
        if not field.nullable and field.name not in NEVER_NULL:
            raise BadSetting(f"column {field.name!r} is declared NOT NULL in .schema(), and can be null in a queue")
    return columns
