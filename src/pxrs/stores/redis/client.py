"""Connections to one Redis or Valkey server: as many as there are calls at one time, none shared, none across a fork.

Nothing is ever sent twice by itself. What fails before it was sent raises Unavailable or Refused. What was sent and
not answered raises ``Lost``, and the driver finds out what became of it. A connection that the server has closed while
it was idle is noticed before it is used.
"""

from __future__ import annotations

import hashlib
import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable, masked
from pxrs.io.address import Address
from pxrs.io.fork import renew_in_child

try:
    from redis import exceptions
    from redis.connection import Connection, SSLConnection
except ModuleNotFoundError as error:
    raise BadUrl("redis:// needs the package redis: pip install 'pxrs[redis]'") from error

Word = bytes | str | int
KEPT_IDLE = 16
"""How many connections wait for the next call, at most."""
NAME = "pxrs"
"""What CLIENT LIST shows of our connections."""

# The server says these before it has changed anything, also from within a script.
_NOT_NOW = {"LOADING", "READONLY", "MISCONF", "OOM", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN"}
_OTHER_NODE = {"MOVED", "ASK", "CROSSSLOT"}
_IN_A_SCRIPT = "script"


class Lost(Exception):
    """It was sent, and no answer came: the connection broke, or the time ran out. It may have been carried out."""

    def __init__(self, reason: str, timed_out: bool) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


class Rejected(Exception):
    """The server answered with an error that does not say whether something was changed before it."""


class Script(NamedTuple):
    """A script, and the name under which the server remembers it."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class RedisConnection:
    """One connection of redis-py, with what we must know of it: whether it is still good, and how to end it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._poll = select.poll()

    def connect(self) -> None:
        self._connection.connect()
        self._poll.register(self._connection._sock, select.POLLIN)

    def send(self, *words: Word) -> None:
        # redis-py packs word by word and sends it in pieces: for thousands of rows that takes most of the time.
        packed = [b"$%d\r\n%b\r\n" % (len(word), word) for word in map(_encoded, words)]
        self._connection.send_packed_command([b"*%d\r\n%b" % (len(packed), b"".join(packed))])

    def receive(self) -> Any:
        return self._connection.read_response()

    def can_receive(self, seconds: float) -> bool:
        return bool(self._connection.can_read(seconds))

    def is_idle(self) -> bool:
        """Whether nothing came while nobody asked: neither the server's farewell nor an answer to somebody else."""
        return not self._poll.poll(0)

    def hang_up(self) -> None:
        """End it from another thread: one that receives from it is woken."""
        with suppress(OSError, AttributeError):  # it may end by itself at this very moment
            self._connection._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.disconnect()


class Client:
    """All connections of one driver object. Safe to use from several threads, and from a forked child."""

    def __init__(self, address: Address, database: int, timeout: float) -> None:
        self.address = address
        self.timeout = timeout
        self._database = database
        self.on_fork: Callable[[], None] = _nothing
        """Called in a forked child."""
        self._lock = threading.Lock()
        self._idle: list[RedisConnection] = []
        self._closed = False
        address.tls_context()  # certificates that cannot be read are refused now
        renew_in_child(self, Client.after_fork)

    def ask(self, *words: Word) -> Any:
        """The answer to a question that changes nothing. If the connection breaks it is asked once more."""
        try:
            return self._answer(words)
        except Lost as lost:
            if lost.timed_out:
                raise Unavailable(str(lost)) from None
        except Rejected as error:
            raise Unavailable(f"{self.address}: {error}") from None
        try:
            return self._answer(words)
        except (Lost, Rejected) as error:
            raise Unavailable(str(error)) from None

    def run(self, script: Script, keys: Sequence[bytes], values: Sequence[Word]) -> Any:
        """The answer of a script, which is sent once. Lost or Rejected: it may have been carried out."""
        try:
            return self._answer(("EVALSHA", script.sha, len(keys), *keys, *values))
        except exceptions.NoScriptError:  # the server is new, or was told to forget its scripts: nothing was done
            return self._answer(("EVAL", script.text, len(keys), *keys, *values))

    def look(self, script: Script, keys: Sequence[bytes], values: Sequence[Word]) -> Any:
        """The answer of a script that changes no row."""
        try:
            return self.ask("EVALSHA", script.sha, len(keys), *keys, *values)
        except exceptions.NoScriptError:
            return self.ask("EVAL", script.text, len(keys), *keys, *values)

    def connect(self) -> RedisConnection:
        """A new connection, for the caller alone. Credentials are read now: they may have been changed."""
        self.check_open()
        line = self._line()
        try:
            line.connect()
            self._check_role(line)
        except (exceptions.RedisError, OSError, UnicodeError) as error:  # the last: a host name that cannot be one
            line.close()
            raise self._no_connection(error) from None
        return line

    def check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.address} was closed before this call")

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close the connections that nobody uses: the next calls make new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def after_fork(self) -> None:
        """In a forked child: the parent's connections and lock are not ours."""
        self._lock = threading.Lock()
        self._idle = []
        self.on_fork()

    def _answer(self, words: Sequence[Word]) -> Any:
        line = self._take()
        try:
            line.send(*words)
            answer = line.receive()
        except exceptions.ResponseError as error:
            self._give_back(line)
            raise self._verdict(error) from None
        except (exceptions.RedisError, OSError) as error:
            line.close()
            raise self._verdict(error) from None
        self._give_back(line)
        return answer

    def _take(self) -> RedisConnection:
        while True:
            with self._lock:
                line = self._idle.pop() if self._idle else None
            if line is None:
                return self.connect()
            if line.is_idle():
                return line
            line.close()

    def _give_back(self, line: RedisConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < KEPT_IDLE:
                self._idle.append(line)
                return
        line.close()

    def _line(self) -> RedisConnection:
        [(host, port)] = self.address.hosts
        options: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": self._database,
            "username": self.address.user,
            "password": self.address.password,
            "socket_timeout": self.timeout,
            "socket_connect_timeout": self.timeout,
            "client_name": NAME,
            "driver_info": None,  # saves two round trips at every connection
            "protocol": 2,
        }
        kind: Any = SSLConnection if self.address.tls else Connection
        return RedisConnection(kind(**options, **self._secrets()))

    def _secrets(self) -> dict[str, Any]:
        if not self.address.tls:
            return {}
        verify = self.address.flag("tls_verify", default=True)
        given = self.address.options
        return {
            "ssl_ca_certs": given.get("ca"),
            "ssl_certfile": given.get("cert"),
            "ssl_keyfile": given.get("key"),
            "ssl_cert_reqs": "required" if verify else "none",
            "ssl_check_hostname": verify,
        }

    def _check_role(self, line: RedisConnection) -> None:
        """A replica would answer reads with what was true a while ago."""
        line.send("ROLE")
        try:
            role = line.receive()
        except exceptions.ResponseError:  # not every user may ask this
            return
        if role[0] == b"slave":
            raise exceptions.ReadOnlyError("it is a replica; give the address of the primary", status_code="READONLY")

    def _no_connection(self, error: Exception) -> PxrsError:
        if isinstance(error, exceptions.AuthenticationError | exceptions.AuthenticationWrongNumberOfArgsError):
            return Refused(f"{self.address} refuses the user or the password: {_text(error)}")
        if isinstance(error, exceptions.ResponseError) and _code(error) not in _NOT_NOW:
            return Refused(f"{self.address} refuses the connection: {_text(error)}")
        return Unavailable(f"{self.address} cannot be reached: {_text(error)}")

    def _verdict(self, error: Exception) -> Exception:
        """What an error means that came after something was sent."""
        code = _code(error)
        if isinstance(error, exceptions.NoScriptError):
            return error
        if code in _NOT_NOW:
            self.drop_idle()  # perhaps it was the primary once: new connections may lead to the new one
            return Unavailable(f"{self.address} cannot do it now: {code} {_text(error)}")
        if code in _OTHER_NODE:
            return Refused(f"{self.address} is a node of a cluster that does not hold this registry: {_text(error)}")
        if isinstance(error, exceptions.AuthenticationError) or (code == "NOPERM" and _IN_A_SCRIPT not in _text(error)):
            return Refused(f"{self.address} does not allow it: {_text(error)}")
        if isinstance(error, exceptions.ResponseError):
            return Rejected(_text(error))
        timed_out = isinstance(error, exceptions.TimeoutError)
        return Lost(f"{self.address} did not answer: {_text(error)}", timed_out)


def _encoded(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


def _nothing() -> None:
    return


def _code(error: Exception) -> str:
    """The word with which the server begins an error, as in "READONLY"."""
    return str(getattr(error, "status_code", None) or str(error).partition(" ")[0])


def _text(error: Exception) -> str:
    return masked(str(error) or type(error).__name__)
