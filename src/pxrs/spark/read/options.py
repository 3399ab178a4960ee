"""The options of ``spark.read`` and ``spark.readStream.format("pxrs")``, with Kafka's names: what they ask for.

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

A timestamp goes before timestamps by partition, and these before offsets. A stream has no ending, and besides:

| option | values | default |
|---|---|---|
| ``startingOffsets`` | latest too | latest; with a group earliest |
| ``pxrs.group.id`` | take part in this group; without it the stream reads alone | |
| ``pxrs.registry`` | where the group is kept | PXRS_REGISTRY, else beside a file log |
| ``pxrs.member.id`` | this member's name | a random one, kept in Spark's checkpoint |
| ``pxrs.max.batch.ms`` | a JVM that is silent for this long loses its partitions | 300000 |
| ``maxOffsetsPerTrigger`` | at most this many messages in a batch | all there are |
| ``minOffsetsPerTrigger``, ``maxTriggerDelay`` | wait for this many messages, but not longer | no wait, 15m |
| ``pxrs.`` and a setting | as in pxrs.lease.ms: each of pxrs.Settings, with dots | |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from pxrs.errors import BadSetting
from pxrs.spark.read.columns import IDENTITY, NEVER_NULL, PLAIN, TYPES, check_columns, nearest
from pxrs.spark.read.given_options import SETTINGS, GivenOptions

EARLIEST, LATEST = -2, -1


class Bound(NamedTuple):
    """The start or end of reading: offsets (EARLIEST, LATEST) or times in ms, for all partitions or for each."""

    option: str
    value: int | dict[int, int]
    is_time: bool = False


_KNOWN = (
    "path", "pxrs.log", "subscribe", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "includeId",
)  # fmt: skip
_STREAM_ONLY = (
    "pxrs.group.id", "pxrs.registry", "pxrs.member.id", "pxrs.max.batch.ms", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay",
)  # fmt: skip
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM = (*(name for name in _KNOWN if name not in _BATCH_ONLY), *_STREAM_ONLY)
_NOT_IN_BATCH = {name.lower(): f"is not used here: only a stream has {name}" for name in _STREAM_ONLY} | {
    "pxrs.registry": "is not used here: a batch read opens the log only. Leave it out",
    "pxrs.group.id": "is not used here: a batch read takes no part in a group; readStream and pxrs.spark.Pipeline do",
}
_NOT_IN_STREAM = {name.lower(): "is not used here: a stream has no end" for name in _BATCH_ONLY}

MAX_DELAY_MS = 15 * 60_000


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a read, parsed, before the log is looked at."""

    log: str = field(repr=False)  # it may hold a password
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


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """The options of a stream: what to read, how much at a time, and in which group."""

    read: Request
    group: str | None
    registry: str | None = field(repr=False)  # it may hold a password
    member: str | None
    max_rows: int | None
    min_rows: int | None
    max_delay_ms: int
    settings: dict[str, Any]
    """The settings by their names in pxrs.Settings."""


def parse(options: Mapping[str, str]) -> Request:
    """Parse the options of a batch read. A wrong one is refused by its name."""
    given = _ReadOptions(options, _KNOWN, _NOT_IN_BATCH)
    return _request(given, given.bound("starting", EARLIEST), given.bound("ending", LATEST))


def parse_stream(options: Mapping[str, str]) -> StreamRequest:
    """Parse the options of a stream. A wrong one is refused by its name."""
    given = _ReadOptions(options, (*_STREAM, *SETTINGS), _NOT_IN_STREAM)
    group = given.text("pxrs.group.id")
    start = given.bound("starting", LATEST if group is None else EARLIEST, either=True)
    found = StreamRequest(
        read=_request(given, start, Bound("endingOffsets", LATEST)),
        group=group,
        registry=given.text("pxrs.registry"),
        member=given.text("pxrs.member.id"),
        max_rows=given.count("maxOffsetsPerTrigger"),
        min_rows=given.count("minOffsetsPerTrigger"),
        max_delay_ms=given.duration_ms("maxTriggerDelay", MAX_DELAY_MS),
        settings=given.stream_settings(),
    )
    _check_group(found)
    return found


def _check_group(found: StreamRequest) -> None:
    if found.min_rows and found.max_rows and found.min_rows > found.max_rows:
        raise BadSetting(
            f"option 'minOffsetsPerTrigger' = {found.min_rows} is above 'maxOffsetsPerTrigger' = {found.max_rows}"
        )
    if found.group is not None and found.read.partitions is not None:
        raise BadSetting("option 'assign' is for streams that read alone: in a group partitions are shared out")
    if found.group is None and (found.registry or found.member or found.settings):
        raise BadSetting("options 'pxrs.registry', 'pxrs.member.id' and settings need 'pxrs.group.id' beside them")


def check_read(options: Mapping[str, str]) -> Request:
    """Check options before it is known whether the read is a batch or a stream: refused if they fit neither."""
    lowered = {name.lower() for name in options}
    if lowered & {name.lower() for name in (*_STREAM_ONLY, *SETTINGS)}:
        return parse_stream(options).read
    try:
        return parse(options)
    except BadSetting:
        if options.get("startingoffsets", options.get("startingOffsets", "")).strip().lower() != "latest":
            raise
        return parse_stream(options).read


def _request(given: _ReadOptions, start: Bound, end: Bound) -> Request:
    headers, identity = given.flag("includeHeaders", False), given.flag("includeId", False)
    return Request(
        log=given.log("name the log, as in .load('file:./orders')"),
        partitions=given.partitions(),
        start=start,
        end=end,
        must_find_time=given.word("startingOffsetsByTimestampStrategy", ("error", "latest")) == "error",
        min_tasks=given.count("minPartitions"),
        max_rows=given.count("maxRecordsPerPartition"),
        fail_on_loss=given.flag("failOnDataLoss", True),
        columns=(*PLAIN, *(("headers",) if headers else ()), *(IDENTITY if identity else ())),
        topics=given.topics,
    )


class _ReadOptions(GivenOptions):
    """The options of a read: single values, and which offsets of which partitions."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], elsewhere: Mapping[str, str]) -> None:
        names = tuple(known)
        super().__init__(options, names, lambda key: elsewhere.get(key.lower()) or f"is not known{nearest(key, names)}")
        self.topics = {"subscribe": self.texts["subscribe"]} if "subscribe" in self.texts else {}

    def stream_settings(self) -> dict[str, Any]:
        """Settings of the member. The longest batch is how long it may show no progress."""
        found = self.settings()
        if "pxrs.max.batch.ms" in self.texts:
            found["progress_limit_ms"] = self.number("pxrs.max.batch.ms", 1, "a time in milliseconds")
        return found

    # ---- partitions and bounds -------------------------------------------------------------------------------------

    def partitions(self) -> tuple[int, ...] | None:
        """Those that are assigned; None for all."""
        if "assign" not in self.texts:
            return None
        if "subscribe" in self.texts:
            raise BadSetting("options 'assign' and 'subscribe' exclude each other: leave one out")
        example = '{"orders": [0, 1]}'
        found = self._of_topic("assign", example)
        if not isinstance(found, list) or not found or not all(type(one) is int and one >= 0 for one in found):
            raise self.bad("assign", f"a list of partitions is needed, as in {example}")
        return tuple(sorted(set(found)))

    def bound(self, which: Literal["starting", "ending"], default: int, either: bool = False) -> Bound:
        """The start or the end of reading. All options are checked, also those that another one overrides."""
        offsets = self._offsets(f"{which}Offsets", default, {default} if not either else {EARLIEST, LATEST})
        by_partition, everywhere = f"{which}OffsetsByTimestamp", f"{which}Timestamp"
        found: Bound = Bound(f"{which}Offsets", offsets)
        if by_partition in self.texts:
            found = Bound(by_partition, self._by_partition(by_partition, 0, "times in milliseconds"), is_time=True)
        if everywhere in self.texts:
            time = self.number(everywhere, 0, "a time in milliseconds since 1970")
            found = Bound(everywhere, time, is_time=True)
        return found

    def _offsets(self, name: str, default: int, allowed: set[int]) -> int | dict[int, int]:
        words = {"earliest": EARLIEST, "latest": LATEST}
        text = self.texts.get(name, "").strip().lower()
        if name not in self.texts:
            return default
        shown = [word for word, value in words.items() if value in allowed]
        meanings = " and ".join(f"{words[word]} is {word}" for word in shown)
        wanted = f"{' or '.join(shown)}, or offsets (from 0 on; {meanings})"
        if text in words:
            if words[text] not in allowed:
                raise self.bad(name, f"nothing would be read; {wanted}")
            return words[text]
        offsets = self._by_partition(name, EARLIEST, wanted)
        if any(offset < 0 and offset not in allowed for offset in offsets.values()):
            raise self.bad(name, wanted)
        return offsets

    def _by_partition(self, name: str, least: int, wanted: str) -> dict[int, int]:
        example = '{"orders": {"0": 23}}'
        found = self._of_topic(name, example)
        if not isinstance(found, dict) or not all(_is_pair(key, value, least) for key, value in found.items()):
            raise self.bad(name, f"{wanted} by partition, as in {example}")
        return {int(key): value for key, value in found.items()}

    def _of_topic(self, name: str, example: str) -> Any:
        """The value for its one queue in the JSON text of an option."""
        try:
            content = json.loads(self.texts[name])
        except ValueError as error:
            raise self.bad(name, f"JSON such as {example} is needed ({error})") from error
        if not isinstance(content, dict) or len(content) != 1:
            raise self.bad(name, f"JSON with one queue is needed, as in {example}")
        [(self.topics[name], found)] = content.items()
        return found


def _is_pair(key: str, value: object, least: int) -> bool:
    return key.isdecimal() and type(value) is int and value >= least


def check_selection(schema: pa.Schema) -> tuple[str, ...]:
    """The columns of a schema that the user gave with ``.schema(...)``: of those there are, with their own types."""
    columns = check_columns(schema.names)
    for one in schema:
        if not one.type.equals(TYPES[one.name]):
            raise BadSetting(f"column {one.name!r} is {TYPES[one.name]} in a queue, and {one.type} in .schema()")
        if not one.nullable and one.name not in NEVER_NULL:
            raise BadSetting(f"column {one.name!r} is declared NOT NULL in .schema(), and can be null in a queue")
    return columns
