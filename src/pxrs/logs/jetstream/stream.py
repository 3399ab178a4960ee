"""Requests about one stream: create, publish, get, purge. Coroutines, awaited in the loop of the client.

Every stored message is either a batch (the bytes of ``pxrs.logs.formats.segment``) or an end marker: a few bytes
without messages that hold the next offset of a partition from which everything was trimmed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import xxhash
from nats.aio.msg import Msg

from pxrs.errors import Damaged, NewerFormat, Refused, Unavailable
from pxrs.io.nats.client import ApiError, Client, NobodyAnswers, checked, nobody_answers, patiently, status_of
from pxrs.logs.base import DEAD_LETTERS, LogIdentity, OwnRegistry, Stamp
from pxrs.logs.formats.segment import NotAHeader, decode, intact, read_header
from pxrs.logs.jetstream.names import RECORDED, from_metadata, stream_of, subject_of, to_metadata

T = TypeVar("T")

OVERHEAD = 4_096
"""The part of the server's largest message that is left for headers."""
ABOUT = "Pxrs-Batch"
"""The header with base, rows and newest time of a batch, for readers of headers only."""
CONTENT = "Pxrs-Content"
"""The header with what a batch holds, if its stamp says so."""
READY_SECONDS = 5.0
"""In a cluster a new stream or consumer is not known everywhere at once: so long it is asked again."""

_END_MARKER = b"pxrs-mark "
_STREAM_NOT_FOUND, _NAME_IN_USE, _NOT_CLUSTERED, _NO_PEERS = 10059, 10058, 10074, 10005
_WRONG_LAST = (10071, 10164)
_DUPLICATE, _DUPLICATE_UNDER_WAY, _INCOMPLETE = 10201, 10158, 10176
_GONE_SECONDS = 1.0
_CLOCKS_APART = timedelta(seconds=1)  # of two servers of a cluster


class WrongLast(Exception):
    """Another process has published to this subject since: read its last message again."""


class Duplicate(Exception):
    """The server knows the id of one of these messages, and has stored none of them now."""


class StoredMessage(NamedTuple):
    """A message as it is stored: its sequence, and the facts in its headers."""

    sequence: int
    base: int
    rows: int
    last_us: int | None
    stamp: Stamp | None
    data: bytes

    @property
    def end(self) -> int:
        return self.base + self.rows


class Ack(NamedTuple):
    """The server has stored it under this sequence, now or before."""

    sequence: int
    duplicate: bool


class Stream:
    """A stream of the server. One subject for each partition."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.replicas = 1

    def subject(self, partition: int) -> str:
        return subject_of(self.name, partition)

    def place(self, partition: int, sequence: int) -> str:
        """The name of a message in errors."""
        return f"{self.client.address}: stream {self.name}, subject {self.subject(partition)}, sequence {sequence}"

    # --- the stream itself

    async def info(self) -> dict[str, Any] | None:
        """The server's description of the stream; None if there is none."""
        try:
            return await self.client.api(f"STREAM.INFO.{self.name}")
        except ApiError as error:
            if error.number == _STREAM_NOT_FOUND:
                return None
            raise self.refused(error) from None

    async def identity(self) -> LogIdentity | None:
        """The identity that the stream records; None if there is no stream."""
        found = await self.info()
        if found is None:
            return None
        config = found["config"]
        self.replicas = int(config["num_replicas"])
        identity = from_metadata(self.name, config.get("metadata"))
        self._refuse_limits(config)
        return identity

    def _refuse_limits(self, config: Mapping[str, Any]) -> None:
        """The last message of a subject says what the next offset is: the server must not delete it by itself."""
        limits = ("max_age", "max_bytes", "max_msgs", "max_msgs_per_subject")
        found = [f"{name} = {config[name]}" for name in limits if config.get(name, 0) > 0]
        if found or config.get("retention") != "limits":
            raise Refused(
                f"stream {self.name!r} has {', '.join(found) or 'retention = ' + str(config.get('retention'))}: the "
                "server would delete messages that PXRS needs. Take it off (nats stream edit), and use retention_ms "
                "or retention_bytes of PXRS"
            )

    async def create(self, identity: LogIdentity, replicas: int, window_ms: int) -> bool:
        """Make it, with its identity, in one step; False if somebody else was faster."""
        config = {
            "name": self.name,
            "description": f"PXRS queue {identity.name}",
            "subjects": [subject_of(self.name, "*")],
            "retention": "limits",
            "discard": "new",
            "storage": "file",
            "num_replicas": replicas,
            "duplicate_window": window_ms * 1_000_000,
            "allow_direct": True,
            "allow_atomic": True,
            "metadata": to_metadata(identity),
        }
        try:
            await self.client.api(f"STREAM.CREATE.{self.name}", config)
        except ApiError as error:
            if error.number == _NAME_IN_USE:
                return False
            raise self.refused(error) from None
        self.replicas = replicas
        return True

    async def window_start(self) -> datetime:
        """The server knows the ids of all messages that were stored since then, by its own clock."""
        found = await self.info()
        if found is None:
            raise Damaged(f"{self.client.address}: stream {self.name!r} is gone: it was deleted")
        window = timedelta(microseconds=int(found["config"]["duplicate_window"]) // 1_000)
        return datetime.fromisoformat(found["ts"]) - window - _CLOCKS_APART

    def refused(self, error: ApiError) -> Exception:
        """The error for what JetStream has refused."""
        text = f"{self.client.address}: stream {self.name!r}: {error} ({error.number})"
        if error.number == _STREAM_NOT_FOUND:
            return Damaged(f"{text}: it was deleted")
        if error.number == _NOT_CLUSTERED:
            return Refused(f"{text}: replicas need a cluster of nats-servers")
        if error.number == _INCOMPLETE:  # a part got lost with a connection, and the server took none
            return Unavailable(f"{text}: nothing was stored")
        if error.status == 400 and error.number != _NO_PEERS:
            return Refused(text)
        return Unavailable(text)

    # --- publishing

    async def publish(self, partition: int, messages: Sequence[bytes], headers: Sequence[Mapping[str, str]]) -> Ack:
        """Store these messages, next to each other, all or none; WrongLast or Duplicate if they are not wanted."""
        subject = self.subject(partition)
        batch = _batch_headers(len(messages))
        for number, message in enumerate(messages[:-1]):
            await self.client.publish(subject, message, {**headers[number], **batch[number]})
        answer = await self._asked(self.client.request(subject, messages[-1], {**headers[-1], **batch[-1]}))
        try:
            found = checked(answer.data)
        except ApiError as error:
            if error.number in _WRONG_LAST:
                raise WrongLast from None
            if error.number in (_DUPLICATE, _DUPLICATE_UNDER_WAY):
                raise Duplicate from None
            raise self.refused(error) from None
        return Ack(int(found["seq"]), bool(found.get("duplicate")))

    async def purge(self, partition: int, sequence: int) -> None:
        """Delete the partition's messages below this sequence."""
        try:
            await self.client.api(f"STREAM.PURGE.{self.name}", {"filter": self.subject(partition), "seq": sequence})
        except ApiError as error:
            raise self.refused(error) from None

    # --- getting

    async def last(self, partition: int) -> StoredMessage | None:
        """The newest message of a partition."""
        return await self._get(partition, {"last_by_subj": self.subject(partition)})

    async def next(self, partition: int, sequence: int) -> StoredMessage | None:
        """The first message of a partition at or after a sequence."""
        return await self._get(partition, {"seq": sequence, "next_by_subj": self.subject(partition)})

    async def _get(self, partition: int, what: Mapping[str, Any]) -> StoredMessage | None:
        # Any replica answers a direct get, also one that is behind. The leader is slower, and knows.
        if self.replicas > 1:
            return await self._get_from_leader(partition, what)
        subject, body = f"$JS.API.DIRECT.GET.{self.name}", json.dumps(what).encode()
        return self._stored(partition, await self._read(lambda: self.client.request(subject, body)))

    async def _get_from_leader(self, partition: int, what: Mapping[str, Any]) -> StoredMessage | None:
        found = await self.message(what)
        if found is None:
            return None
        return self.parse(partition, int(found["seq"]), base64.b64decode(found.get("data", "")))

    async def message(self, what: Mapping[str, Any]) -> dict[str, Any] | None:
        """One message as it is stored, by the leader of the stream, which knows; None if there is none."""
        try:
            found: dict[str, Any] = (await self.client.api(f"STREAM.MSG.GET.{self.name}", what))["message"]
        except ApiError as error:
            if error.status == 404 and error.number != _STREAM_NOT_FOUND:
                return None
            raise self.refused(error) from None
        return found

    async def run(self, partition: int, sequence: int, count: int, size: int) -> tuple[list[StoredMessage], bool]:
        """Messages from a sequence on, about ``size`` bytes of them, in one request; and whether there are more."""
        what = {"seq": sequence, "next_by_subj": self.subject(partition), "batch": count, "max_bytes": size}
        answers = await self._read(lambda: self._collected(what, count + 1))
        found = [stored for answer in answers if (stored := self._stored(partition, answer)) is not None]
        pending = (answers[-1].headers or {}).get("Nats-Num-Pending", "0")
        return found, bool(found) and pending != "0"

    async def _collected(self, what: Mapping[str, Any], limit: int) -> list[Msg]:
        subject = f"$JS.API.DIRECT.GET.{self.name}"
        answers = await self.client.collect(lambda inbox: self.client.ask(subject, what, inbox), limit)
        if status_of(answers[-1]) == "503":
            raise nobody_answers(self.client.address)
        return answers

    async def _read(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Read from any replica."""
        return await patiently(lambda: self._asked(ask()), READY_SECONDS, NobodyAnswers)

    async def _asked(self, work: Coroutine[Any, Any, T]) -> T:
        """An answer of the stream. If nobody answers, it may be because the stream is gone."""
        try:
            return await work
        except NobodyAnswers:
            if await self._is_gone():
                raise Damaged(f"{self.client.address}: stream {self.name!r} is gone: it was deleted") from None
            raise

    async def _is_gone(self) -> bool:
        try:
            return await asyncio.wait_for(self.info(), _GONE_SECONDS) is None
        except (TimeoutError, Unavailable):
            return False  # a cluster without a leader knows nothing for a while

    def _stored(self, partition: int, answer: Msg) -> StoredMessage | None:
        status = status_of(answer)
        if status in ("404", "204"):
            return None
        headers = answer.headers or {}
        if status is not None or "Nats-Sequence" not in headers:
            raise Unavailable(f"{self.client.address}: stream {self.name!r}: {headers.get('Description') or status}")
        return self.parse(partition, int(headers["Nats-Sequence"]), answer.data)

    # --- what is in a message

    def parse(self, partition: int, sequence: int, data: bytes) -> StoredMessage:
        """Parse a message; Damaged if it is neither a batch nor an end marker."""
        if data.startswith(_END_MARKER):
            return StoredMessage(sequence, self._marked_end(partition, sequence, data), 0, None, None, data)
        try:
            header = read_header(data)
        except NotAHeader as error:
            raise Damaged(f"{self.place(partition, sequence)}: no intact batch: {error}") from None
        return StoredMessage(sequence, header.base, header.rows, header.last_us, header.stamp, data)

    def _marked_end(self, partition: int, sequence: int, data: bytes) -> int:
        words = data[len(_END_MARKER) :].split()
        if len(words) != 2 or end_marker(int(words[0])) != data:
            raise Damaged(f"{self.place(partition, sequence)}: the marker of the next offset is not intact")
        return int(words[0])

    def batch(self, partition: int, stored: StoredMessage) -> pa.RecordBatch:
        """The messages in a stored batch, checksum verified."""
        content = pa.py_buffer(stored.data)
        if not intact(content):
            where = self.place(partition, stored.sequence)
            raise Damaged(f"{where}: the batch of offset {stored.base} fails its checksum")
        return decode(content)


def _batch_headers(count: int) -> list[dict[str, str]]:
    """The headers that make several publishes one: none for a single one."""
    if count == 1:
        return [{}]
    name = secrets.token_hex(8)
    made = [{"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number + 1)} for number in range(count)]
    made[-1]["Nats-Batch-Commit"] = "1"
    return made


def end_marker(offset: int) -> bytes:
    """A message that holds nothing but the next offset."""
    text = b"%d" % offset
    return _END_MARKER + text + b" " + xxhash.xxh3_64_hexdigest(text).encode()


# ---- which registry a stream belongs to -----------------------------------------------------------------------------
# The last message of a subject of its own, compared and set by the server. The metadata of the stream could hold it
# too, but the server does not compare what it replaces there.


REGISTRY_FORMAT = 1
_SUBJECT = "registry"


async def read_registry(stream: Stream) -> OwnRegistry | None:
    """Read the recorded registry; None for a stream that is older than the record, whose groups are unknown."""
    found, _ = await _last(stream)
    if found is not None:
        return found
    info = await stream.info() or {}
    return OwnRegistry() if RECORDED in (info.get("config", {}).get("metadata") or ()) else None


async def write_registry(stream: Stream, wanted: OwnRegistry, instead_of: str | None) -> OwnRegistry:
    """Record it, if the recorded id is ``instead_of`` (None: whatever it is); returns what is recorded then."""
    content = json.dumps({"format": REGISTRY_FORMAT, **wanted._asdict()}).encode()
    while True:
        try:
            found, sequence = await _last(stream)
        except Damaged:
            if instead_of is not None:
                raise
            found, sequence = None, await _last_sequence(stream)
        if instead_of is not None and (found or OwnRegistry()).id != instead_of:
            return found or OwnRegistry()
        if await _published(stream, content, sequence):
            return wanted


async def groups_seen(stream: Stream, queue: str) -> list[str]:
    """Groups that have a stream of dead letters."""
    start = stream_of(queue, DEAD_LETTERS.rstrip("/"), "")
    return sorted(name.removeprefix(start).replace("~", ".") for name in await _names(stream) if name.startswith(start))


async def _names(stream: Stream) -> list[str]:
    """The names of all streams of the server, page by page."""
    names: list[str] = []
    while True:
        try:
            page = await stream.client.api("STREAM.NAMES", {"offset": len(names)})
        except ApiError as error:
            raise stream.refused(error) from None
        new = page.get("streams") or []
        names += new
        if not new or len(names) >= int(page["total"]):
            return names


async def _published(stream: Stream, content: bytes, after: int) -> bool:
    """Whether it was stored: not if somebody else has written since."""
    expected = {"Nats-Expected-Last-Subject-Sequence": str(after)}
    answer = await stream.client.request(subject_of(stream.name, _SUBJECT), content, expected)
    try:
        checked(answer.data)
    except ApiError as error:
        if error.number in _WRONG_LAST:
            return False
        raise stream.refused(error) from None
    return True


async def _last(stream: Stream) -> tuple[OwnRegistry | None, int]:
    """The record and its sequence; None and 0 if there is none."""
    message = await _message(stream)
    if message is None:
        return None, 0
    sequence = int(message["seq"])
    try:
        values = json.loads(base64.b64decode(message.get("data", "")))
        form, fields = values["format"], [values[name] for name in ("id", "where", "before")]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(stream, sequence, repr(error)) from error
    if type(form) is int and form > REGISTRY_FORMAT:
        raise NewerFormat(
            f"stream {stream.name!r}: its registry is recorded in format {form}, this knows {REGISTRY_FORMAT}"
        )
    if not all(isinstance(field, str) for field in fields) or not fields[0]:
        raise _damaged(stream, sequence, "it names no registry")
    return OwnRegistry(*fields), sequence


async def _last_sequence(stream: Stream) -> int:
    return int((await _message(stream) or {"seq": 0})["seq"])


async def _message(stream: Stream) -> dict[str, Any] | None:
    """The newest message of the subject."""
    return await stream.message({"last_by_subj": subject_of(stream.name, _SUBJECT)})


def _damaged(stream: Stream, sequence: int, why: str) -> Damaged:
    return Damaged(
        f"{stream.client.address}: stream {stream.name}, subject {subject_of(stream.name, _SUBJECT)}, sequence "
        f"{sequence}: no record of a registry: {why}; write it anew with `pxrs registry adopt`"
    )
