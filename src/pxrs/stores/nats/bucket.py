"""The bucket behind a registry in NATS: one stream, how it is made, and how rows are read from it.

It is what ``nats kv`` knows as a bucket: stream ``KV_<bucket>``, one message for each key, a marker where a key was
deleted or has expired. Coroutines, awaited in the loop of the client.

Only the leader of a stream knows everything that was answered. Single rows are read from it. Many rows are read from
any replica, in one go, and count only if that replica has come as far as the leader was when the read began.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from nats.aio.msg import Msg

from pxrs.errors import Mismatch, NewerFormat, PxrsError, Refused, Unavailable, WentBack
from pxrs.io.nats.client import ApiError, Client, checked, nobody_answers, patiently
from pxrs.io.nats.requests import Send, status_of
from pxrs.stores.base import Row, encoded_key

FORMAT = 1
EXPECT, STAMP, REST = "Nats-Expected-Last-Subject-Sequence", "Pxrs-Swap", "Pxrs-Rest"
BATCH_ID, TTL, OPERATION, EXPIRED = "Nats-Batch-Id", "Nats-TTL", "KV-Operation", "Nats-Marker-Reason"
MARKER_SECONDS = 60
"""A deleted row leaves a marker for so long: for those who watch."""
NOT_FOUND, NAME_IN_USE, NOT_CLUSTERED, NO_MESSAGE = 10059, 10058, 10074, 10037
_FEW = 16
_CHUNK = 256
_ALL = 10_000_000
_BEHIND_SECONDS = 0.005
_ASK_SECONDS = 3.0


class StoredKey(NamedTuple):
    """The last message of a key: a row, or a marker (``value`` is None) that there is none any more."""

    key: str
    version: int
    value: bytes | None
    stamp: str = ""
    """The random stamp of the write."""
    until: int = 0
    """The sequence at which the swap of several rows ends that it belongs to."""

    @property
    def row(self) -> Row | None:
        return None if self.value is None else Row(self.key, self.value, self.version)


class Bucket:
    """One bucket of the server."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.stream = f"KV_{name}"
        self.subjects = Subjects(name)

    def __str__(self) -> str:
        return f"{self.client.address}: bucket {self.name!r}"

    # --- the stream itself

    async def prepare(self, replicas: int | None, seconds: float) -> None:
        """Find it, or make it. Refused if it is not one of ours, or not any more as it must be.

        Each question may be asked again: a cluster that chooses a leader just then may never answer it.
        """
        await patiently(lambda: self._prepare(replicas, min(seconds, _ASK_SECONDS)), seconds)

    async def _prepare(self, replicas: int | None, seconds: float) -> None:
        info = await self._info(seconds)
        if info is None:
            await self._create(replicas or 1, seconds)
            info = await self._info(seconds)
        if info is None:
            raise Unavailable(f"{self} was created, but the server still says that it does not exist: try again")
        self._check(info["config"], replicas)

    async def _info(self, seconds: float) -> dict[str, Any] | None:
        try:
            return await self.api("STREAM.INFO", None, seconds)
        except ApiError as error:
            if error.number == NOT_FOUND:
                return None
            raise self.refused(error) from None

    async def _create(self, replicas: int, seconds: float) -> None:
        config = {
            "name": self.stream,
            "description": "PXRS registry",
            "subjects": [self.subjects.everything],
            "storage": "file",
            "num_replicas": replicas,
            "discard": "new",
            "metadata": {"pxrs.registry": str(FORMAT)},
            **_NEEDED,
        }
        try:
            await self.api("STREAM.CREATE", config, seconds)
        except ApiError as error:
            if error.number != NAME_IN_USE:  # else somebody was faster
                raise self.refused(error) from None

    def _check(self, config: Mapping[str, Any], replicas: int | None) -> None:
        recorded = str((config.get("metadata") or {}).get("pxrs.registry", ""))
        if not recorded.isdigit():
            raise Refused(f"{self} is there and is no registry of PXRS: name one that PXRS can make")
        if int(recorded) > FORMAT:
            raise NewerFormat(f"{self} has format {recorded}; this version of PXRS knows up to {FORMAT}")
        wrong = [f"{name} = {config.get(name)}" for name, value in _NEEDED.items() if config.get(name) != value]
        wrong += [f"{name} = {config[name]}" for name in _LIMITS if config.get(name, 0) > 0]
        if wrong:
            raise Refused(f"{self} was changed and cannot hold a registry: {', '.join(wrong)}. Set it back")
        if replicas not in (None, config["num_replicas"]):
            raise Mismatch(
                f"{self} has {config['num_replicas']} replicas, and is opened with replicas={replicas}: leave it out, "
                f"or change the stream first (nats stream edit {self.stream} --replicas {replicas})"
            )

    def refused(self, error: ApiError) -> PxrsError:
        """The error for what JetStream has refused."""
        text = f"{self}: {error} ({error.number})"
        if error.number == NOT_FOUND:
            return WentBack(f"{self} is gone: it was deleted, or the server has lost its data. Open it again")
        if error.number == NOT_CLUSTERED:
            return Refused(f"{text}: replicas need a cluster of nats-servers")
        return Unavailable(text)

    # --- asking

    def request(self, verb: str, body: Mapping[str, Any] | None = None, name: str = "") -> Send:
        """A question to JetStream's API about this stream."""
        subject = f"$JS.API.{verb}.{self.stream}{'.' + name if name else ''}"
        return Send(subject, json.dumps(body).encode() if body else b"")

    async def api(self, verb: str, body: Mapping[str, Any] | None, seconds: float, name: str = "") -> dict[str, Any]:
        """Ask the API; ApiError when it refuses."""
        [answer] = await self.client.burst([self.request(verb, body, name)], seconds)
        return checked(self.answered(answer).data)

    def answered(self, answer: Msg | None) -> Msg:
        """The answer; Unavailable if there is none."""
        if answer is None:
            raise Unavailable(f"{self} did not answer in time, or the connection broke")
        if status_of(answer) == "503":
            raise nobody_answers(self.client.address)
        return answer

    async def refuse_if_gone(self, seconds: float) -> None:
        """Raise an error if the stream is gone; a server that is starting does not answer its subjects either."""
        if await self._info(seconds) is None:
            raise self.refused(ApiError(404, NOT_FOUND, ""))

    # --- reading

    async def last(self, keys: Sequence[str], seconds: float) -> list[StoredKey | None]:
        """The last message of each of these keys, row or marker, as the leader has it."""
        subjects = [self.subjects.of(key) for key in keys]
        sends = [self.request("STREAM.MSG.GET", {"last_by_subj": subject}) for subject in subjects]
        return [self._of_leader(answer) for answer in await self.client.burst(sends, seconds)]

    def _of_leader(self, answer: Msg | None) -> StoredKey | None:
        try:
            found = checked(self.answered(answer).data)["message"]
        except ApiError as error:
            if error.number == NO_MESSAGE:
                return None
            raise self.refused(error) from None
        headers = _parsed(base64.b64decode(found.get("hdrs", "")))
        return self._stored(found["subject"], int(found["seq"]), headers, base64.b64decode(found.get("data", "")))

    def _stored(self, subject: str, sequence: int, headers: Mapping[str, str], data: bytes) -> StoredKey:
        gone = OPERATION in headers or EXPIRED in headers
        return StoredKey(
            self.subjects.key_of(subject),
            sequence,
            None if gone else data,
            headers.get(STAMP) or headers.get(BATCH_ID, ""),
            sequence + int(headers.get(REST, "0")),
        )

    async def rows(self, keys: Sequence[str], seconds: float) -> dict[str, Row]:
        """The rows of these keys, as far as there are any."""
        if len(keys) <= _FEW:
            return _rows(await self.last(keys, seconds))
        newest = await self._newest_under(self.subjects.everything, seconds)
        if newest is None:
            return {}
        chunks = [keys[start : start + _CHUNK] for start in range(0, len(keys), _CHUNK)]
        found = await asyncio.gather(*(self._chunk(chunk, newest, seconds) for chunk in chunks))
        return {key: row for rows in found for key, row in rows.items()}

    async def _chunk(self, keys: Sequence[str], newest: StoredKey, seconds: float) -> dict[str, Row]:
        """Read from any replica that has the leader's newest message, else one by one from the leader."""
        wanted = {*keys, newest.key}  # the newest is there: without any result a replica does not say how far it is
        answers = await self._direct({"multi_last": [self.subjects.of(key) for key in wanted], "batch": len(wanted)})
        end = answers[-1].headers or {}
        whole = status_of(answers[-1]) == "204" and end.get("Nats-Num-Pending") == "0"
        if not whole or int(end.get("Nats-UpTo-Sequence", "0")) < newest.version:
            return _rows(await self.last(keys, seconds))
        return _rows([self._of_replica(answer) for answer in answers[:-1]])

    async def _last_sequence(self, seconds: float) -> int:
        """The last that the leader has given out, though its message may be gone."""
        try:
            return int((await self.api("STREAM.INFO", None, seconds))["state"]["last_seq"])
        except ApiError as error:
            raise self.refused(error) from None

    async def scan(self, prefix: str, seconds: float) -> list[Row]:
        """All rows under a prefix as they were at one moment, after everything that was answered before."""
        walk, under = _BucketScan(), self.subjects.under(prefix)
        complete_to = 0  # swaps of several rows that end here or before are seen whole
        while True:
            last = await self._newest_under(under, seconds)
            newest = last.version if last else 0
            if walk.position < newest:
                await self._go_on(walk, under)
            if walk.position < newest:
                await asyncio.sleep(_BEHIND_SECONDS)  # that replica is behind
            elif walk.until > max(walk.position, complete_to):
                complete_to = await self._last_sequence(seconds)
            else:
                return sorted(row for key, row in _rows(walk.found.values()).items() if key.startswith(prefix))

    async def _go_on(self, walk: _BucketScan, under: str) -> None:
        """Read on to the end, on any replica that answers; a single answer is not larger than the server allows."""
        while True:
            answers = await self._direct({"seq": walk.position + 1, "next_by_subj": under, "batch": _ALL})
            walk.take([self._of_replica(answer) for answer in answers[:-1]])
            if (answers[-1].headers or {}).get("Nats-Num-Pending", "0") == "0":
                return

    async def _newest_under(self, subject: str, seconds: float) -> StoredKey | None:
        """The newest message under a filter, as the leader has it."""
        [answer] = await self.client.burst([self.request("STREAM.MSG.GET", {"last_by_subj": subject})], seconds)
        return self._of_leader(answer)

    async def _direct(self, what: Mapping[str, Any]) -> list[Msg]:
        """Messages from any replica; the last answer is how it ended."""
        subject = f"$JS.API.DIRECT.GET.{self.stream}"
        answers = await self.client.collect(lambda inbox: self.client.ask(subject, what, inbox), _ALL)
        self.answered(answers[-1])
        return answers

    def _of_replica(self, answer: Msg) -> StoredKey:
        headers = answer.headers or {}
        return self._stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), headers, answer.data)


class _BucketScan:
    """A walk over the messages under a filter, in the order of their sequences, to the end.

    A row that is written during the walk moves to the end, and is met there again: so the last message met of each key
    is what was there when the end was reached, however long the walk took. Only the last swap of several rows may have
    been met in part: ``until`` is where it ends.
    """

    def __init__(self) -> None:
        self.found: dict[str, StoredKey] = {}
        self.position = 0
        self.until = 0

    def take(self, messages: Sequence[StoredKey]) -> None:
        for message in messages:
            self.found[message.key] = message
            self.position = max(self.position, message.version)
            self.until = max(self.until, message.until)


_NEEDED = {
    "max_msgs_per_subject": 1,
    "allow_atomic": True,
    "allow_msg_ttl": True,
    "allow_direct": True,
    "subject_delete_marker_ttl": MARKER_SECONDS * 1_000_000_000,
}
_LIMITS = ("max_age", "max_bytes", "max_msgs")


def _rows(found: Any) -> dict[str, Row]:
    return {stored.key: stored.row for stored in found if stored is not None and stored.row is not None}


def _parsed(raw: bytes) -> dict[str, str]:
    """The headers of a message."""
    lines = raw.decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines if ": " in line)


# ---- keys of rows as NATS takes them --------------------------------------------------------------------------------
#     /pxrs/orders/billing/partition/00007  is stored as  =.pxrs.orders.billing.partition.00007
#
# What a bucket's key cannot hold is written as its bytes, each as '=' and two digits ('=2E' is a dot); a part without
# characters is a single '='. So any key has one form, and the form has one key.


MAX_SUBJECT = 2_000
"""The longest subject: the server takes lines of 4,096 bytes, and an answer's subject is in them as well."""


@lru_cache(maxsize=16_384)  # the same few keys are written all the time
def stored_key(key: str) -> str:
    """The form in which a bucket holds the key; Refused if there is none."""
    encoded_key(key)
    return ".".join(_escaped(part) for part in key.split("/"))


def key_of(stored: str) -> str:
    """The key behind a bucket's key."""
    return "/".join(unquote(part.replace("=", "%")) if part != "=" else "" for part in stored.split("."))


def _escaped(part: str) -> str:
    if not part:
        return "="
    return quote(part, safe="").replace(".", "%2E").replace("~", "%7E").replace("%", "=")


class Subjects:
    """The subjects on which the keys of one bucket are published."""

    def __init__(self, bucket: str) -> None:
        self._root = f"$KV.{bucket}."

    @property
    def everything(self) -> str:
        return f"{self._root}>"

    def of(self, key: str) -> str:
        subject = self._root + stored_key(key)
        if len(subject) > MAX_SUBJECT:
            raise Refused(f"key {key[:60]!r}… is too long for NATS: {len(subject)} bytes, at most {MAX_SUBJECT}")
        return subject

    def under(self, prefix: str) -> str:
        """A filter for all keys that begin with the prefix, and for some more if it ends inside of a part."""
        parts = prefix.split("/")[:-1]
        return self._root + "".join(f"{stored_key(part)}." for part in parts) + ">"

    def key_of(self, subject: str) -> str:
        return key_of(subject.removeprefix(self._root))


# ---- a prefix that is watched ---------------------------------------------------------------------------------------
# It is a hint. Whenever something might have been missed - the consumer was deleted, the connection broke, the server
# went quiet - those who wait are woken, just in case, and a new consumer goes on from then.


logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 4
SILENCE_SECONDS = 10.0
"""A consumer that has not even sent a heartbeat for so long is given up."""
_WATCH_AGAIN_SECONDS = (0.1, 2.0)
_PULL = {"batch": 1_000, "expires": 60_000_000_000, "idle_heartbeat": HEARTBEAT_SECONDS * 1_000_000_000}
_UNUSED_NS = 30_000_000_000
_LEAVE_SECONDS = 1.0
_ALIVE, _PULL_IS_OVER = "100", "408"


class PrefixWatch:
    """One prefix, watched for all threads of a store. ``wait`` is for threads; all coroutines are for the loop."""

    def __init__(self, bucket: Bucket, prefix: str, seconds: float) -> None:
        self._bucket = bucket
        self._subject = bucket.subjects.under(prefix)
        self._seconds = seconds
        self._changed = threading.Condition()
        self._mark = 1 + secrets.randbelow(2**48)  # a mark from elsewhere, as from before a fork, is not this one
        self._ended = False
        self._tried = threading.Event()
        self._left = asyncio.Event()
        self._task: Future[None] = bucket.client.start(self._run())

    def wait(self, after: int, timeout: float) -> int:
        self._tried.wait(self._seconds)  # a mark may only be given out when changes after it are heard
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._mark != after, timeout)
            return self._mark

    def end(self, seconds: float) -> None:
        """End the waits, and the watching."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._tried.set()
        self._task.cancel()
        with suppress(Unavailable):
            self._bucket.client.run(self._left.wait(), seconds)

    def _ring(self) -> None:
        with self._changed:
            self._mark += 1
            self._changed.notify_all()

    async def _run(self) -> None:
        pause, longest = _WATCH_AGAIN_SECONDS
        try:
            while True:
                try:
                    await self._follow()
                    pause = _WATCH_AGAIN_SECONDS[0]
                except Exception as error:  # of whatever kind: a watch goes on as long as its store
                    logger.debug("%s: no watch under %s for now: %s", self._bucket, self._subject, error)
                    pause = min(2 * pause, longest)
                self._tried.set()
                await asyncio.sleep(pause)
        finally:
            self._left.set()

    async def _follow(self) -> None:
        """Make a consumer and listen to it, until there is a doubt that it tells everything."""
        client, heard = self._bucket.client, asyncio.Queue[Msg | None]()
        inbox = await client.new_inbox()
        stop = await client.listen(inbox, heard.put_nowait)
        stop_reconnects = client.on_reconnect(lambda: heard.put_nowait(None))
        name = f"pxrs-{secrets.token_hex(8)}"
        try:
            await self._bucket.api("CONSUMER.CREATE", self._consumer(name), self._seconds, name)
            self._ring()  # changes that came before wake waiters now
            self._tried.set()
            await self._listen(name, inbox, heard)
        finally:
            stop_reconnects()
            await self._leave(name)
            await stop()

    def _consumer(self, name: str) -> dict[str, object]:
        config = {
            "name": name,
            "deliver_policy": "new",
            "ack_policy": "none",
            "filter_subject": self._subject,
            "headers_only": True,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _UNUSED_NS,
        }
        return {"stream_name": self._bucket.stream, "config": config, "action": "create"}

    async def _listen(self, name: str, inbox: str, heard: asyncio.Queue[Msg | None]) -> None:
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._bucket.stream}.{name}"
        left = 0
        while True:
            if not left:
                await self._bucket.client.ask(subject, _PULL, inbox)
                left = int(str(_PULL["batch"]))
            try:
                message = await asyncio.wait_for(heard.get(), SILENCE_SECONDS)
            except TimeoutError:
                return
            status = status_of(message) if message is not None else "reconnected"
            if status is None:
                left -= 1
                self._ring()
            elif status == _PULL_IS_OVER:
                left = 0
            elif status != _ALIVE:
                return

    async def _leave(self, name: str) -> None:
        """The server forgets an unused consumer by and by; this is only to be polite."""
        with suppress(PxrsError, ApiError):
            await self._bucket.api("CONSUMER.DELETE", None, _LEAVE_SECONDS, name)
