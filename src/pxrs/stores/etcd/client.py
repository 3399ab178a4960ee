"""A client of one etcd, or of the nodes of its cluster. Calls go to one node until it fails, then to the next.

Nothing that could have been carried out is sent twice. Before a node gets its first request, and again after each of
its failures, it is asked for a linearizable read: a node that is away, or cut off from the others, is found out while
it is still certain that nothing was sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable, masked
from pxrs.io.address import Address
from pxrs.io.clock import SystemClock
from pxrs.io.fork import renew_in_child
from pxrs.stores.etcd.grpc_channel import Channel, Failed, gate, keep_for_parent, messages, tls_credentials

# The server says these before it changes anything.
_CERTAIN = {
    "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "FAILED_PRECONDITION", "OUT_OF_RANGE",
    "UNIMPLEMENTED",
}  # fmt: skip
_NOBODY = "NOBODY"
"""Our own code: no node answers, and so nothing was sent."""
_NOT_CONNECTED = "failed to connect to all addresses"
_BROKEN = "Stream removed"
"""The error of an old connection that has ended: it says nothing about the node."""
_TOO_LARGE = "larger than max"
_NO_SPACE = "database space exceeded"
_STALE_TOKEN = ("invalid auth token", "revision of auth store is old")
_BAD_PAPERS = ("CERTIFICATE_VERIFY_FAILED", "Peer name", "Hostname Verification")
_REFUSED = ("INVALID_ARGUMENT", "PERMISSION_DENIED", "UNAUTHENTICATED", "FAILED_PRECONDITION", "UNIMPLEMENTED")


def is_certain(failure: Failed) -> bool:
    """Whether it is sure that nothing was changed."""
    return _is_verdict(failure) or _is_unsent(failure)


def _is_verdict(failure: Failed) -> bool:
    """Whether another node would say the same."""
    return failure.code in _CERTAIN or failure.code == _NOBODY or _TOO_LARGE in failure.text


def _is_unsent(reply: Any) -> bool:
    return isinstance(reply, Failed) and reply.text.startswith(_NOT_CONNECTED)


class _Node:
    """One server, as this process knows it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.proven = False
        """Whether it has answered, and has not failed since."""


class EtcdClient:
    """Safe to use from several threads, and from a forked child, which connects anew."""

    def __init__(self, address: Address, seconds: float, probe: bytes) -> None:
        self.address = address
        self.seconds = seconds
        """The time that an answer may take."""
        self._probe = messages.RangeRequest(key=probe, keys_only=True, limit=1)
        self._credentials = _credentials(address)
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._nodes: list[_Node] = []
        self._watching: list[Channel] = []
        self._turn = self._watch_turn = 0
        self._token: str | None = None
        self._authentic = False
        self._closed = False
        renew_in_child(self, EtcdClient._forget_parent)

    # ---- asking --------------------------------------------------------------------------------------------------

    def ask(self, verb: str, requests: Sequence[Any]) -> list[Any]:
        """The answers to requests that may be sent twice: they go to the next node when one fails."""
        deadline = self._clock.monotonic() + self.seconds
        with gate:
            while True:
                replies = self._exchange(verb, requests, deadline, len(self.address.hosts))
                failure = next((reply for reply in replies if isinstance(reply, Failed)), None)
                if failure is None:
                    return replies
                self._check_hope(failure, deadline)

    def send(self, verb: str, requests: Sequence[Any]) -> list[Any]:
        """Send them once, all together: for each the answer, or a Failed."""
        with gate:
            return self._exchange(verb, requests, self._clock.monotonic() + self.seconds)

    def converse(self, verb: str, requests: Sequence[Any]) -> list[Any]:
        """The answers that a short stream gives to these requests. They may be sent twice."""
        deadline = self._clock.monotonic() + self.seconds
        with gate:
            while True:
                node = self._proven_or_error(deadline)
                try:
                    return node.channel.converse(verb, requests, self._left(deadline), self._metadata())
                except Failed as failure:
                    if not _is_stale(failure) or self._clock.monotonic() >= deadline:
                        self._check_hope(failure, deadline)
                    self._authentic = self._authentic and not _is_stale(failure)
                    self._gave_up(node)

    def _check_hope(self, failure: Failed, deadline: float) -> None:
        """Raise what a failure means, unless another try could end better."""
        self._check_open()
        if _is_verdict(failure) or self._clock.monotonic() >= deadline:
            raise self.error(failure) from None

    def _exchange(self, verb: str, requests: Sequence[Any], deadline: float, parts: int = 1) -> list[Any]:
        """Send requests; each gets an answer or a Failed. One that certainly was not carried out goes to the next node.

        Of the time that is left, a node gets one of this many parts.
        """
        replies: list[Any] = []
        todo, renewed = list(range(len(requests))), False
        while True:
            try:
                node = self._proven(deadline)
                if renewed:
                    self._authenticate(node.channel, deadline, anew=True)
            except Failed as failure:
                return [failure if number in todo else reply for number, reply in enumerate(replies or requests)]
            wanted = [requests[number] for number in todo]
            got = node.channel.ask(verb, wanted, self._left(deadline) / parts, self._metadata())
            replies = _with(replies, todo, got)
            if not any(isinstance(reply, Failed) for reply in got):
                return replies
            todo = [number for number in todo if isinstance(replies[number], Failed)]
            if any(not _is_verdict(replies[number]) for number in todo):
                self._gave_up(node)
            unsent = [number for number in todo if _is_unsent(replies[number])]
            stale = [number for number in todo if _is_stale(replies[number]) and not renewed]
            todo, renewed = unsent + stale, bool(stale)
            if not todo or self._clock.monotonic() >= deadline:
                return replies

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def _proven(self, deadline: float) -> _Node:
        """A node that answers; Failed when none does. Each gets a second chance: what fails may be a connection
        that broke while nobody used it."""
        nodes, said = self._nodes or self._opened(), ""
        rest = 2 * len(nodes)
        while rest > 0:
            node = nodes[self._turn % len(nodes)]
            if node.proven:
                return node
            try:
                self._prove(node, self._clock.monotonic() + self._left(deadline) / rest)
                return node
            except Failed as failure:
                if _is_verdict(failure):
                    raise
                said = failure.text
                self._gave_up(node)
                if _BROKEN not in said or self._clock.monotonic() >= deadline:
                    rest -= 1
        raise Failed(_NOBODY, said)

    def _proven_or_error(self, deadline: float) -> _Node:
        try:
            return self._proven(deadline)
        except Failed as failure:
            raise self.error(failure) from None

    def _prove(self, node: _Node, deadline: float) -> None:
        self._authenticate(node.channel, deadline)
        [reply] = node.channel.ask("Range", [self._probe], self._left(deadline), self._metadata())
        if _is_stale(reply):
            self._authenticate(node.channel, deadline, anew=True)
            [reply] = node.channel.ask("Range", [self._probe], self._left(deadline), self._metadata())
        if isinstance(reply, Failed):
            raise reply
        node.proven = True

    def _gave_up(self, node: _Node) -> None:
        with self._lock:
            node.proven = False
            if self._nodes and self._nodes[self._turn % len(self._nodes)] is node:
                self._turn += 1

    def _opened(self) -> list[_Node]:
        with self._lock:
            self._check_open()
            if not self._nodes:
                self._nodes = [_Node(Channel(server, self._credentials)) for server in self.address.servers]
            return self._nodes

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.address} was closed before this call")

    def _left(self, deadline: float) -> float:
        return max(0.001, deadline - self._clock.monotonic())

    # ---- who asks ------------------------------------------------------------------------------------------------

    def _metadata(self) -> list[tuple[str, str]]:
        return [("token", self._token)] if self._token else []

    def _authenticate(self, channel: Channel, deadline: float, anew: bool = False) -> None:
        """Get a token for user and password, if there are any."""
        if self._authentic and not anew:
            return
        user, password = self.address.user, self.address.password
        if user is not None and password is not None:
            request = messages.AuthenticateRequest(name=user, password=password)
            [reply] = channel.ask("Authenticate", [request], self._left(deadline), [])
            if isinstance(reply, Failed) and "authentication is not enabled" not in reply.text:
                raise reply
            self._token = None if isinstance(reply, Failed) else str(reply.token)
        self._authentic = True

    def error(self, failure: Failed) -> PxrsError:
        """The error for the caller. The text names the servers and never the password."""
        text = masked(failure.text)
        if any(mark in text for mark in _BAD_PAPERS):
            return Refused(f"{self.address}: the server's certificate is not trusted (see ca=): {text}")
        if failure.code in _REFUSED or _TOO_LARGE in text:
            return Refused(f"{self.address} refuses it{self._whom(failure)}: {text}")
        if _NO_SPACE in text:
            return Unavailable(f"{self.address} is full: compact and defragment it, then disarm the alarm: {text}")
        return Unavailable(f"{self.address} does not answer: {text or failure.code}")

    def _whom(self, failure: Failed) -> str:
        user = self.address.user
        return f" (user {user!r})" if user and "requ" not in failure.text else ""

    # ---- watching ------------------------------------------------------------------------------------------------

    @contextmanager
    def watch(self, requests: Sequence[Any]) -> Iterator[Iterator[Any]]:
        """A stream of changes, over a connection of its own. Raises Failed when it breaks: the next one goes on."""
        channel = self._watch_channel()
        try:
            with gate:
                self._authenticate(channel, self._clock.monotonic() + self.seconds)
            # A node that has lost its leader says so, instead of being silent.
            with channel.stream("Watch", requests, [*self._metadata(), ("hasleader", "true")]) as answers:
                yield answers
        except Failed as failure:
            self._authentic = self._authentic and not _is_stale(failure)
            self._watch_turn += 1
            raise

    def _watch_channel(self) -> Channel:
        with self._lock:
            self._check_open()
            if not self._watching:
                given = self.address.options.get("watch")
                servers = given.split(",") if given else self.address.servers
                self._watching = [Channel(server, self._credentials, lasting=True) for server in servers]
            return self._watching[self._watch_turn % len(self._watching)]

    # ---- ends ----------------------------------------------------------------------------------------------------

    def _forget_parent(self) -> None:
        """In a forked child: the connections are those of the parent."""
        keep_for_parent((self._nodes, self._watching))
        self._lock = threading.Lock()
        self._nodes, self._watching = [], []

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels = [*(node.channel for node in self._nodes), *self._watching]
            self._nodes, self._watching = [], []
        for channel in channels:
            channel.close()


def _with(replies: list[Any], places: list[int], got: list[Any]) -> list[Any]:
    """The replies, with new ones at these indexes. The first time there are none, and every index gets one."""
    new = dict(zip(places, got, strict=True))
    return [new.get(place, reply) for place, reply in enumerate(replies)] if replies else got


def _is_stale(reply: Any) -> bool:
    return isinstance(reply, Failed) and any(mark in reply.text for mark in _STALE_TOKEN)


def _credentials(address: Address) -> Any:
    if not address.tls:
        return None
    if not address.flag("tls_verify", default=True):
        raise BadUrl(f"{address}: tls_verify=false is not possible with etcd: name the server's own certificate as ca=")
    files = [_file(address, name) for name in ("ca", "cert", "key")]
    return tls_credentials(*files)


def _file(address: Address, option: str) -> bytes | None:
    path = address.options.get(option)
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise BadUrl(f"{address}: the certificates cannot be loaded: {option}={path}: {error.strerror}") from None


# ---- waiting for changes: one thread and one stream for all prefixes that somebody waits for, and none before --------
# A stream always begins at the present revision. Whatever ended the one before - a break, a fork, a compaction that
# overtook it - may have hidden changes, so everybody who waits is woken, and reads.


logger = logging.getLogger(__name__)

_PAUSE_SECONDS = (0.05, 1.0)
"""Between two tries to open the stream: at first, and at most."""


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


class RevisionWatch:
    """The wait marks of the watched prefixes. A mark is a revision plus one, or more; it only grows."""

    def __init__(self, client: EtcdClient, revision: Callable[[], int]) -> None:
        self._client = client
        self._revision = revision
        self._closed = False
        self._stream: Any = None
        self._begin()
        renew_in_child(self, RevisionWatch._begin)

    def _begin(self) -> None:
        """Also in a forked child, which has neither the thread nor the locks of its parent."""
        if self._stream is not None:
            keep_for_parent(self._stream)
        self._change = threading.Condition()
        self._marks: dict[bytes, int] = {}
        self._running = False
        self._stream = None

    def wait(self, prefix: bytes, after: int, timeout: float) -> int:
        if prefix not in self._marks:
            self._add(prefix)
        with self._change:
            if after == 0:
                return self._marks[prefix]
            self._change.wait_for(lambda: self._closed or self._marks[prefix] != after, max(0.0, timeout))
            return self._marks[prefix]

    def _add(self, prefix: bytes) -> None:
        mark = self._revision() + 1
        with self._change:
            if self._closed:
                raise Closed(f"{self._client.address} was closed before this call")
            if prefix in self._marks:
                return
            self._marks[prefix] = mark
            if self._running:
                self._cancel()  # the next stream has this prefix too
                return
            self._running = True
            threading.Thread(target=self._run, name="pxrs-etcd-watch", daemon=True).start()

    def _run(self) -> None:
        pause, first = _PAUSE_SECONDS[0], True
        while not self._closed:
            prefixes = list(self._marks)
            try:
                for response in self._responses(prefixes):
                    self._take_in(prefixes, response, first)
                    first = first and not response.created
                    pause = _PAUSE_SECONDS[0]
            except Closed:
                return
            except (Failed, PxrsError) as error:
                logger.debug("the watch of %s broke: %s", self._client.address, error)
            first = False
            if prefixes == list(self._marks):
                self._rest(pause)
                pause = min(2 * pause, _PAUSE_SECONDS[1])

    def _responses(self, prefixes: list[bytes]) -> Iterator[Any]:
        requests = [_request(number, prefix) for number, prefix in enumerate(prefixes, 1)]
        with self._client.watch(requests) as stream:
            with self._change:
                self._stream = stream
                if self._closed or len(self._marks) != len(prefixes):
                    return
            for response in stream:
                if response.canceled:
                    self._say_why(response)
                    return
                yield response

    def _say_why(self, response: Any) -> None:
        why = f"compacted up to revision {response.compact_revision}" if response.compact_revision else "cancelled"
        logger.info("the watch of %s was ended by the server: %s %s", self._client.address, why, response.cancel_reason)

    def _take_in(self, prefixes: list[bytes], response: Any, first: bool) -> None:
        prefix = prefixes[response.watch_id - 1]
        seen = response.header.revision + 1
        with self._change:
            mark = self._marks[prefix]
            if response.events or (response.created and not (first and seen == mark)):
                self._marks[prefix] = max(mark + 1, seen)
                self._change.notify_all()

    def _rest(self, seconds: float) -> None:
        with self._change:
            self._change.wait_for(lambda: self._closed, seconds)

    def _cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()

    def close(self) -> None:
        """Waits in other threads end."""
        with self._change:
            self._closed = True
            self._cancel()
            self._change.notify_all()


def _request(number: int, prefix: bytes) -> Any:
    request = messages.WatchCreateRequest(key=prefix, range_end=end_of(prefix), watch_id=number)
    return messages.WatchRequest(create_request=request)
