"""Connections to one Redis or Valkey server, out of redis-py's pool; what its errors mean; and a listener for changes.

Nothing is ever sent twice by itself. What fails before it was sent raises Unavailable or Refused. What was sent and
not answered raises ``Lost``, and the driver finds out what became of it. A connection that the server has closed while
it was idle is noticed before it is used (by the pool); a forked child gets a pool of its own.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable, masked
from pxrs.io.address import Address
from pxrs.io.clock import SystemClock
from pxrs.io.fork import renew_in_child
from pxrs.stores.redis.scripts import VERSION_DIGITS
from pxrs.stores.versions import new_version

try:
    from redis import exceptions
    from redis.connection import Connection, ConnectionPool, SSLConnection
    from redis.credentials import CredentialProvider
except ModuleNotFoundError as error:
    raise BadUrl("redis:// needs the package redis: pip install 'pxrs[redis]'") from error

Word = bytes | str | int
MOST_CONNECTIONS = 10_000
"""The most connections: one for each call at a time; redis-py alone would stop at a hundred."""
NAME = "pxrs"
"""The name of our connections in CLIENT LIST."""

# The server says these before it has changed anything, also from within a script.
_NOT_NOW = {"LOADING", "READONLY", "MISCONF", "OOM", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "BUSY", "TRYAGAIN"}
_OTHER_NODE = {"MOVED", "ASK", "CROSSSLOT"}
_IN_A_SCRIPT = "script"


class Lost(Exception):
    """A call was sent, and no answer came: the connection broke, or the time ran out. It may have been carried out."""

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


class _Credentials(CredentialProvider):
    """Read at every connection: a password that was changed is picked up."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def get_credentials(self) -> Any:
        user, password = self._address.user, self._address.password
        return (user, password or "") if user else (password,) if password else ()


class _CommandPacker:
    """Packs a command as one piece. redis-py packs word by word: for thousands of rows that takes most of the time."""

    def pack(self, *words: Word) -> list[bytes]:
        given = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        packed = [b"$%d\r\n%b\r\n" % (len(word), word) for word in given]
        return [b"*%d\r\n%b" % (len(packed), b"".join(packed))]


class RedisClient:
    """All connections of one driver object. Safe to use from several threads, and from a forked child."""

    def __init__(self, address: Address, database: int, timeout: float) -> None:
        self.address = address
        self.timeout = timeout
        self._closed = False
        self._database = database
        address.tls_context()  # certificates that cannot be read are refused now
        self._make_pool()
        renew_in_child(self, RedisClient._make_pool)  # a thread of the parent may have held the lock of its pool

    def _make_pool(self) -> None:
        [(host, port)] = self.address.hosts
        self._pool = ConnectionPool(
            SSLConnection if self.address.tls else Connection,
            MOST_CONNECTIONS,
            host=host,
            port=port,
            db=self._database,
            credential_provider=_Credentials(self.address),
            redis_connect_func=_greet,
            socket_timeout=self.timeout,
            socket_connect_timeout=self.timeout,
            command_packer=_CommandPacker(),
            client_name=NAME,
            driver_info=None,  # saves two round trips at every connection
            protocol=2,
            **_tls_options(self.address),
        )

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
        except exceptions.NoScriptError:  # the server is new, or has forgotten its scripts: nothing was done
            return self._answer(("EVAL", script.text, len(keys), *keys, *values))

    def look(self, script: Script, keys: Sequence[bytes], values: Sequence[Word]) -> Any:
        """The answer of a script that changes no row."""
        try:
            return self.ask("EVALSHA", script.sha, len(keys), *keys, *values)
        except exceptions.NoScriptError:
            return self.ask("EVAL", script.text, len(keys), *keys, *values)

    def connect(self) -> Any:
        """A connection out of the pool, which is ready. It must be given back."""
        self.check_open()
        try:
            return self._pool.get_connection()
        except (exceptions.RedisError, OSError, UnicodeError) as error:  # the last: a host name that cannot be one
            raise self._no_connection(error) from None

    def give_back(self, connection: Any) -> None:
        self._pool.release(connection)
        if self._closed:
            connection.disconnect()

    def check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.address} was closed before this call")

    def close(self) -> None:
        self._closed = True
        self._pool.disconnect(inuse_connections=False)

    def _answer(self, words: Sequence[Word]) -> Any:
        connection = self.connect()
        try:
            connection.send_command(*words)
            return connection.read_response()
        except (exceptions.RedisError, OSError) as error:
            if not isinstance(error, exceptions.ResponseError) or _code(error) in _NOT_NOW:
                connection.disconnect()
            raise self._verdict(error) from None
        except BaseException:  # an interrupt: the next call must not take the answer that is still to come
            connection.disconnect()
            raise
        finally:
            self.give_back(connection)

    def _no_connection(self, error: Exception) -> PxrsError:
        if isinstance(error, exceptions.AuthenticationError | exceptions.AuthenticationWrongNumberOfArgsError):
            return Refused(f"{self.address} refuses the user or the password: {_text(error)}")
        if isinstance(error, exceptions.ResponseError) and _code(error) not in _NOT_NOW:
            return Refused(f"{self.address} refuses the connection: {_text(error)}")
        return Unavailable(f"{self.address} cannot be reached: {_text(error)}")

    def _verdict(self, error: Exception) -> Exception:
        """The meaning of an error that came after something was sent."""
        code = _code(error)
        if isinstance(error, exceptions.NoScriptError):
            return error
        if code in _NOT_NOW:
            self._pool.disconnect(inuse_connections=False)  # perhaps it was the primary once: look for the new one
            return Unavailable(f"{self.address} cannot do it now: {code} {_text(error)}")
        if code in _OTHER_NODE:
            return Refused(f"{self.address} is a node of a cluster that does not hold this registry: {_text(error)}")
        if isinstance(error, exceptions.AuthenticationError) or (code == "NOPERM" and _IN_A_SCRIPT not in _text(error)):
            return Refused(f"{self.address} does not allow it: {_text(error)}")
        if isinstance(error, exceptions.ResponseError):
            return Rejected(_text(error))
        timed_out = isinstance(error, exceptions.TimeoutError)
        return Lost(f"{self.address} did not answer: {_text(error)}", timed_out)


def _greet(connection: Any) -> None:
    """Begin a connection: user, database, and no replica. One that is not begun whole is closed."""
    try:
        connection.on_connect()
        _refuse_replica(connection)
    except BaseException:  # redis-py closes it for errors of its own only, and hands it out as ready after any other
        connection.disconnect()
        raise


def _refuse_replica(connection: Any) -> None:
    """A replica would answer reads with what was true a while ago."""
    connection.send_command("ROLE")
    try:
        role = connection.read_response()
    except exceptions.ResponseError:  # not every user may ask this
        return
    if role[0] == b"slave":
        raise exceptions.ReadOnlyError("it is a replica; give the address of the primary", status_code="READONLY")


def _tls_options(address: Address) -> dict[str, Any]:
    if not address.tls:
        return {}
    verify = address.flag("tls_verify", default=True)
    given = address.options
    return {
        "ssl_ca_certs": given.get("ca"),
        "ssl_certfile": given.get("cert"),
        "ssl_keyfile": given.get("key"),
        "ssl_cert_reqs": "required" if verify else "none",
        "ssl_check_hostname": verify,
    }


def _code(error: Exception) -> str:
    """The word with which the server begins an error, as in "READONLY"."""
    return str(getattr(error, "status_code", None) or str(error).partition(" ")[0])


def _text(error: Exception) -> str:
    return masked(str(error) or type(error).__name__)


# ---- what changes ---------------------------------------------------------------------------------------------------
# Each call that changes rows publishes its revision and the longest beginning that the changed keys have in common.
# Where that can touch a prefix, the waits for this prefix end. Publishing is a hint: what is said while nobody is
# subscribed is lost, so with every new subscription all waits end.


SILENCE_SECONDS = 10.0
"""The connection is tried after this time without a message."""
RETRY_SECONDS = (0.05, 1.0)
"""The first pause before a new subscription, and the longest; a subscription that lasted begins with the first."""


class Listener:
    """The subscription of one process to one channel, by a thread that starts with the first wait.

    The mark of a prefix begins anywhere, and grows by one when something under the prefix may have changed.
    """

    def __init__(self, client: RedisClient, channel: bytes) -> None:
        self._client = client
        self._channel = channel
        self._clock = SystemClock()
        self._change = threading.Condition()
        self._marks: dict[bytes, int] = {}
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._tried = threading.Event()
        self.is_subscribed = self._closed = False

    def wait(self, prefix: bytes, after: int, timeout: float) -> int:
        """Wait until the prefix has another mark than ``after``, or until the time-out; returns the mark."""
        self._start()
        self._tried.wait(self._client.timeout)  # a mark may only be given out when changes after it are heard
        with self._change:
            mark = self._marks.setdefault(prefix, new_version())
            if after:
                self._change.wait_for(lambda: self._closed or self._marks[prefix] != after, max(0.0, timeout))
                mark = self._marks[prefix]
            return mark

    def close(self) -> None:
        with self._change:
            self._closed = True
            connection, thread = self._connection, self._thread
            self._change.notify_all()
        self._tried.set()
        if connection is not None:
            connection.disconnect()  # wakes the thread that reads from it
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._client.timeout)

    def _start(self) -> None:
        with self._change:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, daemon=True, name="pxrs-redis-listener")
                self._thread.start()

    def _run(self) -> None:
        pause, longest = RETRY_SECONDS
        while not self._closed:
            began = self._clock.monotonic()
            with suppress(PxrsError, exceptions.RedisError, OSError, ValueError, AttributeError):  # also of a close
                self._listen()
            self.is_subscribed = False
            self._tried.set()
            if self._clock.monotonic() - began > longest:
                pause = RETRY_SECONDS[0]
            with self._change:
                self._change.wait_for(lambda: self._closed, pause)
            pause = min(2 * pause, longest)

    def _listen(self) -> None:
        """Subscribe, and read messages until the connection breaks."""
        connection = self._client.connect()
        try:
            connection.send_command("SUBSCRIBE", self._channel)
            connection.read_response()
            with self._change:
                if self._closed:
                    return
                self._connection, self.is_subscribed = connection, True
            self._ring(b"")
            self._tried.set()
            while not self._closed:
                self._hear(connection)
        finally:
            self._connection = None
            connection.disconnect()
            self._client.give_back(connection)

    def _hear(self, connection: Any) -> None:
        if not connection.can_read(SILENCE_SECONDS):
            connection.send_command("PING")
        kind, *_, said = connection.read_response()
        if kind == b"message" and said[:VERSION_DIGITS].isdigit():
            self._ring(said[VERSION_DIGITS:])

    def _ring(self, common: bytes) -> None:
        """Something has changed in rows whose keys begin with ``common``."""
        with self._change:
            touched = [prefix for prefix in self._marks if common.startswith(prefix) or prefix.startswith(common)]
            for prefix in touched:
                self._marks[prefix] += 1
            if touched:
                self._change.notify_all()
