"""Connections to an SQL database, by the database's own Python driver: made when needed, kept for each process.

A ``Driver`` (PostgreSQL, MariaDB/MySQL, Oracle) says how to connect, and what an error means: above all whether what
was sent may have been done (``Sort.LOST``) or was certainly not. ``Connections`` keeps the idle ones of this process.
A forked child finds none, and leaves those of its parent alone. An answer that does not come in time is an error, also
from a server that hangs.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from importlib import import_module
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from pxrs.errors import BadUrl, Closed, PxrsError, Refused, Unavailable, masked
from pxrs.io.address import COMMON, Address
from pxrs.io.clock import SystemClock
from pxrs.io.fork import renew_in_child

try:
    from sqlalchemy import Engine, create_engine
    from sqlalchemy.engine import Dialect
except ModuleNotFoundError as error:
    raise BadUrl("SQL registries need the package sqlalchemy: pip install 'pxrs[sql]'") from error

T = TypeVar("T")
P = ParamSpec("P")

_OURS = frozenset({*COMMON, "table", "look_ms"})
MOST_IDLE = 8
"""The number of connections that a process keeps open for its next calls."""
ENGINE_SECONDS = 60.0
"""The time that a statement of the caller's own transactions may take."""
_SHOWN_CHARACTERS = 300
_LEAST_SECONDS = 0.001
_FIRST_SECONDS = 2.0

_DRIVERS = {
    "postgresql": "pxrs.io.sql.postgres:PostgresDriver",
    "mysql": "pxrs.io.sql.mysql:MysqlDriver",
    "oracle": "pxrs.io.sql.oracle:OracleDriver",
}


class Sort(Enum):
    """The meaning of a driver's error for the statement that was sent."""

    LOST = "no answer: it may have been done"
    AGAIN = "rolled back, for a reason that passes: a deadlock, a serialisation failure, a lock that others hold"
    DUPLICATE = "not done: there is such a row"
    NO_TABLE = "not done: there is no such table"
    OTHER_TABLE = "not done: the table has other columns than ours"
    EXISTS = "not done: there is such a table already"
    DENIED = "not done: the user, the password or a right is wrong"
    FAILED = "not done"


class Trouble(Exception):
    """A driver's error with its meaning. The text holds no password."""

    def __init__(self, sort: Sort, text: str) -> None:
        super().__init__(text)
        self.sort = sort


class Driver(ABC):
    """One kind of database. Connections are in autocommit mode."""

    default_port: ClassVar[int]
    dialect: Dialect
    """SQLAlchemy's, which writes the statements."""
    errors: tuple[type[Exception], ...]
    """The errors that the driver raises."""
    least_key: ClassVar[bytes] = b""
    """The least key that can be stored."""

    @abstractmethod
    def connect(self, address: Address, seconds: float, autocommit: bool = True) -> Any:
        """A new connection."""

    @abstractmethod
    def limit(self, connection: Any, seconds: float) -> None:
        """Set the time that each answer may take from now on."""

    @abstractmethod
    def is_alive(self, connection: Any) -> bool:
        """Whether an idle connection is still open, as far as can be known without asking the server."""

    @abstractmethod
    def sort_of(self, error: Exception) -> Sort:
        """The meaning of an error that a statement raised."""

    def options_of(self, address: Address) -> dict[str, str]:
        """Options of the URL that are not ours: they are for the database's own driver."""
        return {name: value for name, value in address.options.items() if name not in _OURS}

    def cursor(self, connection: Any) -> Any:
        """The cursor that runs statements. A connection is used by one thread at a time, so one is enough for it."""
        return connection.cursor()

    def begin(self, cursor: Any) -> None:
        cursor.execute("START TRANSACTION")

    def commit(self, cursor: Any) -> None:
        cursor.execute("COMMIT")

    def rollback(self, cursor: Any) -> None:
        cursor.execute("ROLLBACK")

    def trouble(self, error: Exception) -> Trouble:
        text = " ".join(masked(str(error)).split()) or type(error).__name__
        return Trouble(self.sort_of(error), text[:_SHOWN_CHARACTERS])


def new_dialect(kind: Any, **options: Any) -> Dialect:
    """SQLAlchemy's classes have no types for this."""
    made: Dialect = kind(**options)
    return made


def driver_for(scheme: str) -> Driver:
    module, _, name = _DRIVERS[scheme].partition(":")
    found: Driver = getattr(import_module(module), name)()
    return found


_monotonic = SystemClock.monotonic


class Deadline:
    """The time that is left for a call."""

    __slots__ = ("_ends",)

    def __init__(self, seconds: float) -> None:
        self._ends = _monotonic() + seconds

    @property
    def left(self) -> float:
        return self._ends - _monotonic()


class Connections:
    """The idle connections of this process to one database, for one store."""

    def __init__(self, driver: Driver, address: Address, seconds: float, greet: Callable[[Any], None]) -> None:
        self.driver = driver
        self.address = address
        self.seconds = seconds
        self._greet = greet
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._idle: list[Any] = []  # cursors: each has its connection
        self._engine: Engine | None = None
        self._connected = False
        renew_in_child(self, Connections.after_fork)

    def run(self, work: Callable[Concatenate[Any, P], T], deadline: Deadline, *args: P.args, **more: P.kwargs) -> T:
        """Work with a cursor. The driver's errors become Trouble; after all but a deadlock the connection is closed."""
        cursor = self._take(deadline)
        try:
            self.driver.limit(cursor.connection, max(deadline.left, _LEAST_SECONDS))
            answer = work(cursor, *args, **more)
        except self.driver.errors as error:
            trouble = self.driver.trouble(error)
            self._part_after(trouble, cursor)
            raise trouble from error
        except BaseException:
            self._drop(cursor.connection)
            raise
        self._give_back(cursor)
        return answer

    def _part_after(self, trouble: Trouble, cursor: Any) -> None:
        if trouble.sort is Sort.AGAIN:
            with suppress(*self.driver.errors):
                self.driver.rollback(cursor)
                return self._give_back(cursor)
        return self._drop(cursor.connection)

    def deadline(self) -> Deadline:
        return Deadline(self.seconds)

    def pause(self, seconds: float) -> bool:
        """Wait that long; True if it was closed meanwhile."""
        return self._closed.wait(seconds)

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine on the same database, for transactions of the caller."""
        with self._lock:
            self._check_open()
            if self._engine is None:
                self._engine = create_engine(
                    f"{self.driver.dialect.name}+{self.driver.dialect.driver}://",
                    creator=lambda: self._connect(ENGINE_SECONDS, max(self.seconds, _FIRST_SECONDS), autocommit=False),
                    pool_pre_ping=True,
                )
            return self._engine

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            idle, self._idle = self._idle, []
            engine, self._engine = self._engine, None
        for cursor in idle:
            self._drop(cursor.connection)
        if engine is not None:
            engine.dispose()

    def after_fork(self) -> None:
        """In the child: forget the parent's connections without touching them."""
        _inherited.append(self._idle)
        if self._engine is not None:
            self._engine.dispose(close=False)
        closed = self._closed.is_set()
        self._closed, self._lock, self._idle = threading.Event(), threading.Lock(), []
        if closed:
            self._closed.set()

    def _take(self, deadline: Deadline) -> Any:
        while True:
            try:
                cursor = self._idle.pop()  # one step, so it needs no lock; what close has taken away is not there
            except IndexError:
                self._check_open()
                return self._greeted(deadline)
            if self.driver.is_alive(cursor.connection):
                return cursor
            self._drop(cursor.connection)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise Closed(f"{self.address} was closed before this call")

    def _greeted(self, deadline: Deadline) -> Any:
        # Opening is not under a lease: a slow greeting of the first connection is no reason to fail.
        most = self.seconds if self._connected else max(self.seconds, _FIRST_SECONDS)
        connection = self._connect(self.seconds, max(min(deadline.left, most), _LEAST_SECONDS))
        self._connected = True
        self.driver.limit(connection, max(deadline.left, _LEAST_SECONDS))
        try:
            cursor = self.driver.cursor(connection)
            self._greet(cursor)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, self.driver.errors):
                raise as_error(self.address, self.driver.trouble(error)) from error
            raise
        return cursor

    def _connect(self, seconds: float, most: float, autocommit: bool = True) -> Any:
        """Open a connection whose answers may take this many seconds; opening may take ``most``."""
        try:
            return in_time(lambda: self.driver.connect(self.address, seconds, autocommit), most)
        except TimeoutError as error:
            raise Unavailable(f"{self.address} does not answer: {error}") from None
        except self.driver.errors as error:
            trouble = self.driver.trouble(error)
            raise as_error(self.address, trouble) from error

    def _give_back(self, cursor: Any) -> None:
        with self._lock:
            if not self._closed.is_set() and len(self._idle) < MOST_IDLE:
                self._idle.append(cursor)
                return
        self._drop(cursor.connection)

    def _drop(self, connection: Any) -> None:
        with suppress(*self.driver.errors, OSError):
            connection.close()


def as_error(address: Address, trouble: Trouble) -> PxrsError:
    """The error that a caller of the store gets."""
    if trouble.sort is Sort.DENIED:
        return Refused(f"{address} refuses the user or the password, or a right is missing: {trouble}")
    return Unavailable(f"{address} does not answer: {trouble}")


def in_time(call: Callable[[], Any], seconds: float) -> Any:
    """The call's answer, or TimeoutError. Drivers bound the steps of connecting, not the whole of it.

    A connection that comes too late is closed by the thread that made it.
    """
    answer: list[Any] = []
    failure: list[BaseException] = []
    lock, given_up = threading.Lock(), threading.Event()

    def run() -> None:
        try:
            made = call()
        except BaseException as error:
            failure.append(error)
            return
        with lock:
            answer.append(made)
            late = given_up.is_set()
        if late:
            made.close()

    thread = threading.Thread(target=run, daemon=True, name="pxrs-connect")
    thread.start()
    thread.join(seconds)
    with lock:
        if failure:
            raise failure[0]
        if answer:
            return answer[0]
        given_up.set()
    raise TimeoutError(f"no connection within {seconds:.1f} s")


_inherited: list[Any] = []  # of the parent: kept, because freeing one would say good-bye on the parent's socket
