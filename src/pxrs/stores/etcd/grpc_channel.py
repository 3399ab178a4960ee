"""gRPC, and etcd's message types, for the etcd driver. Neither has types: what crosses this border is ``Any``.

gRPC has threads and locks of its own, which a fork tears apart. This is what works (thousands of forks under load,
none of which hung): while the process forks no call runs, so calls pass a gate; a child makes channels of its own and
never uses or frees those of its parent; the library is never shut down in between, for which one idle channel is
kept; and gRPC's fork support is left as it is. With GRPC_ENABLE_FORK_SUPPORT set, to whatever, children hang: there
a forked child is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pxrs.errors import BadUrl, Refused, Unavailable
from pxrs.io.fork import guard_fork
from pxrs.io.process_exit import Stage, at_exit

try:
    import grpc
    from aetcd.rpc import rpc_pb2, rpc_pb2_grpc
except ModuleNotFoundError as error:
    raise BadUrl("etcd:// needs the packages aetcd and grpcio: pip install 'pxrs[etcd]'") from error

messages: Any = rpc_pb2
"""etcd's requests and answers."""

_ERRORS = (grpc.RpcError, ValueError)
FORK_SECONDS = 15.0
"""The time that a fork waits for running calls. Each of them is bounded, too."""
_FORK_OPTION = "GRPC_ENABLE_FORK_SUPPORT"

_CHANNEL_OPTIONS = (
    # Two channels to one server are two connections: that of the watches can break alone.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # which is how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", -1),
)
_KEEPALIVE_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),  # etcd takes more than one in 5 s for an attack
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Failed(Exception):
    """A call that brought no answer. ``code`` is gRPC's name for why; ``text`` is what the server or gRPC said."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


def _failed(error: Any) -> Failed:
    if isinstance(error, ValueError):  # what gRPC raises for a channel that was closed
        return Failed("CANCELLED", str(error))
    code = error.code()
    return Failed(code.name if code is not None else "UNKNOWN", error.details() or "")


class Gate:
    """The gate that every call passes. A fork closes it, ends the streams, and waits until no call is inside."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._inside = 0
        self._forking = False
        self._torn = ""
        """Why no call is possible in this process, which was forked."""
        self._tears = ""
        """The gate's function for a child that is forked now."""
        self._streams: set[Any] = set()

    def __enter__(self) -> None:
        with self._lock:
            if self._forking:
                self._change.wait_for(lambda: not self._forking)
            if self._torn:
                raise (Refused if _FORK_OPTION in self._torn else Unavailable)(self._torn)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:  # the forking thread waits for this, and may not have the lock back yet
                self._change.notify_all()

    @contextmanager
    def streaming(self, start: Callable[[], Any]) -> Iterator[Any]:
        """A call that lasts. It is cancelled when the process forks, and can be started again at once."""
        with self:
            with self._lock:
                call = start()
                self._streams.add(call)
                if self._forking:
                    call.cancel()
            try:
                yield call
            finally:
                with self._lock:
                    self._streams.discard(call)
                call.cancel()

    def cancel_streams(self) -> None:
        for call in list(self._streams):
            call.cancel()

    def before_fork(self) -> None:
        self._change.acquire()
        self._forking = True
        self.cancel_streams()
        # Bounded: a signal handler may fork in the very thread whose call is running.
        idle = self._change.wait_for(lambda: self._inside == 0, FORK_SECONDS)
        self._tears = "" if idle else "this process was forked in the middle of a call to etcd: start it anew"
        if _FORK_OPTION in os.environ:
            self._tears = f"etcd:// cannot be used in a forked process while {_FORK_OPTION} is set: unset it"

    def after_fork_in_parent(self) -> None:
        self._forking = False
        self._change.notify_all()
        self._change.release()

    def after_fork_in_child(self) -> None:
        _inherited.append(self._streams)
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._forking, self._inside, self._streams = False, 0, set()
        self._torn = self._torn or self._tears


gate = Gate()
_inherited: list[Any] = []  # what is the parent's: kept, because freeing it would touch the parent's threads and locks
_anchor: list[Any] = []

guard_fork(gate.before_fork, gate.after_fork_in_parent, gate.after_fork_in_child)


@at_exit(Stage.LOOPS)
def _end() -> list[threading.Thread]:
    gate.cancel_streams()
    return []


def keep_for_parent(thing: Any) -> None:
    """In a forked child: never use this again, and never free it."""
    _inherited.append(thing)


def tls_credentials(ca: bytes | None, cert: bytes | None, key: bytes | None) -> Any:
    return grpc.ssl_channel_credentials(ca, key, cert)


class Channel:
    """A connection to one server, made by its first call."""

    def __init__(self, target: str, credentials: Any = None, lasting: bool = False) -> None:
        if not _anchor:
            _anchor.append(grpc.insecure_channel("127.0.0.1:1", options=_CHANNEL_OPTIONS))
        options = _CHANNEL_OPTIONS + (_KEEPALIVE_OPTIONS if lasting else ())
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options=options)
        else:
            self._channel = grpc.secure_channel(target, credentials, options=options)
        stubs = (rpc_pb2_grpc.KVStub, rpc_pb2_grpc.LeaseStub, rpc_pb2_grpc.WatchStub, rpc_pb2_grpc.AuthStub)
        self._verbs: dict[str, Any] = {}
        for stub in stubs:
            self._verbs |= vars(stub(self._channel))

    def ask(self, verb: str, requests: Sequence[Any], seconds: float, metadata: Any) -> list[Any]:
        """Send them all at once: for each the answer, or a Failed."""
        call = self._verbs[verb]
        if len(requests) == 1:  # without the thread that futures need
            try:
                return [call(requests[0], timeout=seconds, metadata=metadata)]
            except _ERRORS as error:
                return [_failed(error)]
        try:
            futures = [call.future(request, timeout=seconds, metadata=metadata) for request in requests]
        except ValueError as error:
            return [_failed(error)] * len(requests)
        return [one.result() if one.code() is grpc.StatusCode.OK else _failed(one) for one in futures]

    def converse(self, verb: str, requests: Sequence[Any], seconds: float, metadata: Any) -> list[Any]:
        """A short stream: all requests go in, the answers are what comes out. Raises Failed."""
        try:
            return list(self._verbs[verb](iter(requests), timeout=seconds, metadata=metadata))
        except _ERRORS as error:
            raise _failed(error) from None

    @contextmanager
    def stream(self, verb: str, requests: Sequence[Any], metadata: Any) -> Iterator[Iterator[Any]]:
        """A lasting stream. Raises Failed when it breaks."""
        with gate.streaming(lambda: self._verbs[verb](iter(requests), metadata=metadata)) as answers:
            try:
                yield answers
            except _ERRORS as error:
                raise _failed(error) from None

    def close(self) -> None:
        self._channel.close()
