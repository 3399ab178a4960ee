"""Connections to NATS from ordinary threads: one event loop in a daemon thread, made lazily for each process.

A ``Client`` is what a driver holds. Clients of the same address share one connection. A forked child finds an empty
table and connects anew; its parent's sockets are left alone. A time-out, or a connection that breaks while an answer
is awaited, becomes ``Unavailable``: whether the request was carried out is then unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable
from pxrs.io.async_thread import LoopThread
from pxrs.io.fork import after_fork
from pxrs.io.nats.address import NatsAddress
from pxrs.io.process_exit import Stage, at_exit

try:
    import nats.errors
    from nats.aio.client import Client as NatsConnection
    from nats.aio.msg import Msg

    from pxrs.io.nats.requests import Mailbox, Send, collect, status_of
except ModuleNotFoundError as error:
    raise BadUrl("nats:// needs the package nats-py: pip install 'pxrs[nats]'") from error

__all__ = [
    "ApiError",
    "Client",
    "NatsAddress",
    "NobodyAnswers",
    "NotDoneInTime",
    "Send",
    "checked",
    "nobody_answers",
    "patiently",
    "status_of",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Hear = Callable[[Msg], None]
"""The function that is called for a message on a subject, in the loop's thread."""

OLDEST_SERVER = (2, 12)
"""Batches of direct gets came with 2.11, atomic batches of publishes with 2.12."""
CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 5.0
_NEVER = 600.0  # the library's own time-outs: ``answer`` gives up long before
_RECONNECT_SECONDS = 0.1
_PING_SECONDS = 5
_CLOSE_SECONDS = 2.0
_AGAIN_SECONDS = 0.1


class _Link(NatsConnection):
    """The library's connection, which must not fall back to plain text where TLS was asked for.

    It also closes a socket over which no connection came about; the library would leave that to the garbage collector.
    """

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # the library's
            raise

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise nats.errors.Error("the server does not offer TLS; nothing was sent to it")
        return super()._connect_command()


class _ProcessConnections:
    """The loop and the connections by address of one process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: LoopThread | None = None
        self.connections: dict[NatsAddress, _Connection] = {}

    def running(self) -> LoopThread:
        with self.lock:
            if self.loop is None:
                self.loop = LoopThread("pxrs-nats")
            return self.loop

    def connection(self, address: NatsAddress, user: Client) -> _Connection:
        with self.lock:
            found = self.connections.setdefault(address, _Connection(address))
            found.users.add(user)
            return found

    def leave(self, address: NatsAddress, user: Client) -> _Connection | None:
        """Returns the connection if nobody uses it any more."""
        with self.lock:
            found = self.connections.get(address)
            if found is None:
                return None
            found.users.discard(user)
            return None if found.users else self.connections.pop(address)

    def end(self) -> None:
        for connection in list(self.connections.values()):
            if self.loop is not None:
                with suppress(Exception):
                    self.loop.submit(connection.close(), _CLOSE_SECONDS)
        if self.loop is not None:
            self.loop.end()


class _Connection:
    """One connection. Everything but ``users`` is touched by the loop's thread only."""

    def __init__(self, address: NatsAddress) -> None:
        self.address = address
        self.users: set[Client] = set()
        self.reconnected: dict[object, Callable[[], None]] = {}
        self._nats: NatsConnection | None = None
        self._connecting = asyncio.Lock()
        self._up = asyncio.Event()
        self._lost: asyncio.Future[None] | None = None
        self._last_error: BaseException | None = None
        self._denied = False
        self._mailbox: Mailbox | None = None

    async def ready(self, seconds: float | None = None) -> NatsConnection:
        """The live connection; Unavailable when there is none for a while."""
        if self._nats is not None and self._nats.is_connected and self._up.is_set():
            return self._nats
        limit = CONNECT_SECONDS if seconds is None else min(seconds, CONNECT_SECONDS)
        async with self._connecting:
            if self._nats is None or self._nats.is_closed:
                self._nats = await self._connect(limit)
        try:
            await asyncio.wait_for(self._up.wait(), limit)
        except TimeoutError:
            raise self._away("does not answer") from None
        return self._nats

    async def _connect(self, seconds: float) -> NatsConnection:
        made = _Link()
        self._last_error, self._denied = None, False
        try:
            await asyncio.wait_for(self._open(made), seconds)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            with suppress(Exception):
                await made.close()
            raise self._failed(error) from None
        self._came_up()
        return made

    async def _open(self, made: NatsConnection) -> None:
        a = self.address
        user, password = a.login()
        await made.connect(
            servers=[f"nats://{server}" for server in a.servers],
            user=None if user is None else lambda: a.login()[0] or "",
            password=None if password is None else lambda: a.login()[1] or "",
            tls=a.tls_context(),
            name="pxrs",
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnect,
            reconnected_cb=self._on_reconnect,
            connect_timeout=2,
            reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type]  # a number of seconds, whole or not
            max_reconnect_attempts=-1,
            ping_interval=_PING_SECONDS,
        )
        version = made.connected_server_version
        if (version.major, version.minor) < OLDEST_SERVER:
            await made.close()
            raise Refused(f"{a}: nats-server {version.major}.{version.minor} is too old; it must be 2.12 or newer")

    def _failed(self, error: BaseException) -> PxrsError:
        cause = self._last_error or error
        if self._denied:
            return Refused(f"{self.address}: the server does not accept this user and password")
        return self._away(f"cannot be reached: {str(cause) or 'no answer'}")

    def _away(self, what: str) -> Unavailable:
        return Unavailable(f"{self.address} {what}")

    def _came_up(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()
        self._up.set()

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        self._denied = self._denied or "authorization" in str(error).lower()
        logger.debug("%s: %s", self.address, error)

    async def _on_disconnect(self) -> None:
        self._up.clear()
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    async def _on_reconnect(self) -> None:
        self._came_up()
        for call in list(self.reconnected.values()):
            _safely(call)

    # --- asking

    async def answer(self, work: Coroutine[Any, Any, T]) -> T:
        """Await an answer, but not longer than the connection lives."""
        lost = self._lost
        assert lost is not None
        task = asyncio.ensure_future(work)
        both: set[asyncio.Future[Any]] = {task, lost}
        try:
            await asyncio.wait(both, timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()  # nothing happens if it is done; else nobody waits for it any more, also if we were cancelled
        if not task.done():
            why = "the connection broke" if lost.done() else f"no answer within {ANSWER_SECONDS:g} s"
            raise self._away(f"did not answer: {why}; it may have done what it was asked")
        try:
            return task.result()
        except nats.errors.NoRespondersError:
            raise nobody_answers(self.address) from None
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise self._away(f"did not answer: {str(error) or type(error).__name__}") from None

    async def burst(self, sends: Sequence[Send], seconds: float) -> list[Msg | None]:
        """Send all of them, then wait for the answers: see ``Mailbox``."""
        clock = asyncio.get_running_loop().time
        ends = clock() + seconds
        live = await self.ready(seconds)
        if self._mailbox is None or not self._mailbox.belongs_to(live):
            self._mailbox = Mailbox(live)
        assert self._lost is not None
        return await self._mailbox.ask(sends, self._lost, ends - clock())

    async def close(self) -> None:
        made, self._nats = self._nats, None
        if made is None:
            return
        with suppress(Exception):
            if made.is_connected:
                await asyncio.wait_for(made.flush(1), _CLOSE_SECONDS)
        with suppress(Exception):
            await asyncio.wait_for(made.close(), _CLOSE_SECONDS)


async def patiently(
    ask: Callable[[], Coroutine[Any, Any, T]], seconds: float, after: type[Unavailable] = Unavailable
) -> T:
    """Ask again for a while: a cluster may just be choosing a leader, or have lost sight of a node."""
    clock = asyncio.get_running_loop().time
    ends = clock() + seconds
    while True:
        try:
            return await ask()
        except after:
            if clock() >= ends:
                raise
        await asyncio.sleep(_AGAIN_SECONDS)


def _safely(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        logger.exception("a callback failed; the others go on")


class Client:
    """A driver's own door to a shared connection. Coroutines are awaited in the loop; ``run`` takes them there."""

    def __init__(self, address: NatsAddress) -> None:
        self.address = address
        self._closed = False

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine of this client; its result is asked for later."""
        return _process.running().start(work)

    def run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine of this client and wait for its result, from any thread but the loop's."""
        try:
            return _process.running().submit(work, seconds)
        except TimeoutError:
            raise NotDoneInTime(f"{self.address}: not done within {seconds:g} s; it may still happen") from None

    def _connection(self) -> _Connection:
        if self._closed:  # a late one must not connect again
            raise Closed(f"the connection to {self.address} is closed")
        return _process.connection(self.address, self)

    async def max_payload(self, seconds: float | None = None) -> int:
        """The largest message, headers included."""
        return (await self._connection().ready(seconds)).max_payload

    async def request(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        connection = self._connection()
        live = await connection.ready()
        given = dict(headers) if headers else None
        return await connection.answer(live.request(subject, payload, timeout=_NEVER, headers=given))

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Hand it to the connection; nobody answers."""
        connection = self._connection()
        live = await connection.ready()
        await connection.answer(live.publish(subject, payload, headers=dict(headers) if headers else None))

    async def api(self, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Ask JetStream's API, as in ``api("STREAM.INFO.orders")``; ApiError when it refuses."""
        answer = await self.request(f"$JS.API.{verb}", json.dumps(body).encode() if body else b"")
        return checked(answer.data)

    async def collect(self, start: Callable[[str], Coroutine[Any, Any, None]], limit: int) -> list[Msg]:
        """All answers that come to a new inbox, which ``start`` gets: up to ``limit``, or to one that has a status."""
        connection = self._connection()
        return await connection.answer(collect(await connection.ready(), start, limit))

    async def burst(self, sends: Sequence[Send], seconds: float) -> list[Msg | None]:
        """The answers to requests that are sent at once; None where none came in time, or the connection broke.

        Unavailable only if nothing was sent.
        """
        return await self._connection().burst(sends, seconds)

    async def ask(self, subject: str, body: Mapping[str, Any], inbox: str) -> None:
        """Send a request whose answers go to this inbox."""
        live = await self._connection().ready()
        await live.publish(subject, json.dumps(body).encode(), reply=inbox)

    async def listen(self, subject: str, hear: Hear) -> Callable[[], Coroutine[Any, Any, None]]:
        """Subscribe to a subject, also after a reconnect; returns the function that stops it."""
        live = await self._connection().ready()

        async def heard(message: Msg) -> None:
            _safely(lambda: hear(message))

        subscription = await live.subscribe(subject, cb=heard)
        await self._connection().answer(live.flush(int(ANSWER_SECONDS)))  # now the server knows of it

        async def stop() -> None:
            with suppress(Exception):
                await subscription.unsubscribe()

        return stop

    async def new_inbox(self) -> str:
        """A subject that nobody else uses."""
        return (await self._connection().ready()).new_inbox()

    def on_reconnect(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call it whenever the connection came back; returns how to stop."""
        reconnected, token = self._connection().reconnected, object()
        reconnected[token] = call

        def stop() -> None:
            reconnected.pop(token, None)

        return stop

    def close(self) -> None:
        """Leave the connection; the last one to leave closes it."""
        self._closed = True
        connection = _process.leave(self.address, self)
        if connection is not None:
            with suppress(TimeoutError):
                _process.running().submit(connection.close(), 2 * _CLOSE_SECONDS)


_process = _ProcessConnections()
_inherited: list[
    _ProcessConnections
] = []  # of the parent: kept, because freeing a socket of another's loop makes noise


@after_fork
def _after_fork() -> None:
    global _process
    _inherited.append(_process)
    _process = _ProcessConnections()


@at_exit(Stage.LOOPS)
def _end() -> list[threading.Thread]:
    _process.end()
    return []


# ---- errors of the server, as ours ----------------------------------------------------------------------------------


class NobodyAnswers(Unavailable):
    """The server is there, and nothing in it answers to this subject: JetStream is starting, or the stream is gone."""


class NotDoneInTime(Unavailable):
    """The loop itself has not come to an end with it: it may still happen."""


class ApiError(Exception):
    """JetStream's own answer that it will not do it; ``number`` is its err_code."""

    def __init__(self, status: int, number: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.number = number


def nobody_answers(address: NatsAddress) -> NobodyAnswers:
    return NobodyAnswers(f"{address} has no JetStream ready for this (starting, without a leader, or not enabled)")


def checked(answer: bytes) -> dict[str, Any]:
    """JetStream's answer; ApiError if it is a refusal."""
    found: dict[str, Any] = json.loads(answer)
    if error := found.get("error"):
        raise ApiError(int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description")))
    return found
