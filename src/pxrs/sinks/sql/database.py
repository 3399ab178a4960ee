"""The user's database, as a sink sees it: transactions with bounds in time, tried again until they are done."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from pxrs.errors import BadUrl, PxrsError, Refused, Unavailable, masked_url
from pxrs.io.address import Address, parse
from pxrs.io.sql.connections import Connections, Deadline, Driver, Sort, Trouble, as_error, driver_for
from pxrs.settings import Settings, check_patience

T = TypeVar("T")

LONG_SECONDS = 60.0
"""The time that a statement with rows may take."""
HOLD_SECONDS = 5
"""The server ends a transaction with locked rows after this time, if its process is stopped."""
LOCK_SECONDS = 2
"""The time that a statement waits for rows that another transaction has locked."""
_BACK_OFF_SECONDS = (0.02, 0.2)
_PASSES = (Sort.AGAIN, Sort.LOST)
_ENDED = ("25P03", "25P04")
"""PostgreSQL has ended the session, because a transaction was idle or open for too long."""
_OPTIONS = ("table", "look_ms")  # those of a registry: one URL may serve both


class Database:
    """Connections to one database. ``patience`` is how many seconds a database that does not answer is waited for."""

    def __init__(self, url: str, patience: float) -> None:
        if not isinstance(url, str):
            raise BadUrl(f"database = {url!r}: must be a URL, as 'postgresql://user@host/name' is")
        try:
            self.driver = driver_for(url.partition(":")[0].lower())
        except KeyError:
            raise BadUrl(
                f"{masked_url(url)!r}: an SQL sink writes to postgresql://, mysql:// (MariaDB too) or oracle://"
            ) from None
        check_patience(patience)
        self.address = parse(url, self.driver.default_port, _OPTIONS, any_option=True)
        self._patience = patience
        self._seconds = self.address.timeout(Settings())
        self._connections = Connections(self.driver, self.address, self._seconds, lambda _: None)
        event.listen(self.engine, "connect", partial(_set_up, self.driver, self._seconds))
        weakref.finalize(self, self._connections.close).atexit = False  # threads may still be inside of them then

    @property
    def engine(self) -> Engine:
        return self._connections.engine

    def is_at(self, address: Address) -> bool:
        """Whether it is the database at this address, under any user."""
        mine = self.address
        return (mine.scheme, _places(mine), mine.place) == (address.scheme, _places(address), address.place)

    # ---- transactions -------------------------------------------------------------------------------------------

    def run(self, work: Callable[[Connection], T], again: Collection[Sort] = ()) -> T:
        """Do it in one transaction, and again if that failed or no answer came: ``work`` must be repeatable.

        ``again`` names further troubles that pass.
        """

        def once() -> T:
            with self._opened() as connection:
                found = work(connection)
                self.limit(connection)
                connection.commit()
                self.give_back(connection)
                return found

        return self._repeat(once, again)

    def begin(self, work: Callable[[Connection], None]) -> None:
        """Begin a transaction that stays open, for ``work`` to keep."""

        def once() -> None:
            with self._opened() as connection:
                work(connection)

        self._repeat(once)

    def _repeat(self, once: Callable[[], T], again: Collection[Sort] = ()) -> T:
        deadline = Deadline(self._patience)
        while True:
            try:
                return once()
            except (Trouble, Unavailable) as error:
                passes = isinstance(error, Unavailable) or error.sort in (*_PASSES, *again)
                if not passes or deadline.left <= 0:
                    raise self.as_error(error) from error
                self._connections.pause(random.uniform(*_BACK_OFF_SECONDS))

    @contextmanager
    def _opened(self) -> Iterator[Connection]:
        """A connection in a new transaction, which is rolled back if the block raises."""
        with self.sorted():
            connection = self.connect()
            try:
                yield connection
            except BaseException as error:
                self.let_go(connection, error)
                self.give_back(connection)
                raise

    def connect(self) -> Connection:
        connection = self.engine.connect()
        self.limit(connection, LONG_SECONDS)
        connection.begin()
        return connection

    def limit(self, connection: Connection, seconds: float | None = None) -> None:
        """Set the time that each answer may take; without a number, the time of a registry."""
        self.driver.limit(connection.connection.dbapi_connection, seconds or self._seconds)

    def let_go(self, connection: Connection, error: BaseException) -> None:
        """Drop the connection after an error: one that may be out of step is not even asked to roll back."""
        trouble = self._trouble(error)
        is_in_step = isinstance(error, PxrsError) or (trouble is not None and trouble.sort is not Sort.LOST)
        with suppress(SQLAlchemyError, *self.driver.errors):
            if not is_in_step and not connection.invalidated:
                connection.invalidate()
            connection.rollback()

    def give_back(self, connection: Connection) -> None:
        with suppress(SQLAlchemyError, PxrsError, *self.driver.errors):
            if not connection.closed and not connection.invalidated:
                self.limit(connection)
            connection.close()

    # ---- errors -------------------------------------------------------------------------------------------------

    @contextmanager
    def sorted(self) -> Iterator[None]:
        """Turn what the driver raises in the block into Trouble."""
        try:
            yield
        except NoFreeConnection as error:
            raise Unavailable(f"{self.address}: no connection is free: {error}") from error
        except Exception as error:
            trouble = self._trouble(error)
            if trouble is None or error is trouble:
                raise
            raise trouble from error

    def _trouble(self, error: BaseException) -> Trouble | None:
        found = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(found, Trouble):
            return found
        if not isinstance(found, self.driver.errors):
            return None
        trouble = self.driver.trouble(found)
        return Trouble(Sort.LOST, str(trouble)) if getattr(found, "sqlstate", "") in _ENDED else trouble

    def as_error(self, error: Exception) -> PxrsError:
        """The error for the caller of the sink."""
        if isinstance(error, PxrsError):
            return error
        assert isinstance(error, Trouble)
        if error.sort in _PASSES or error.sort is Sort.DENIED:
            return as_error(self.address, error)
        return Refused(f"{self.address}: {error}")

    def close(self) -> None:
        self._connections.close()


def _places(address: Address) -> list[tuple[str, int]]:
    return sorted(("127.0.0.1" if name == "localhost" else name, port) for name, port in address.hosts)


def _set_up(driver: Driver, seconds: float, connection: Any, _: Any) -> None:
    try:
        driver.limit(connection, seconds)
        cursor = connection.cursor()
        for setting in _settings(driver.dialect.name, getattr(connection, "server_version", "")):
            cursor.execute(f"SET SESSION {setting}")
        connection.commit()
    except BaseException:  # the pool forgets what it could not set up
        connection.close()
        raise


def _settings(dialect: str, version: str) -> list[str]:
    """A transaction that somebody was stopped in must not hold up those who take over."""
    if dialect == "postgresql":
        hold = f"idle_in_transaction_session_timeout = {HOLD_SECONDS * 1000}"
        return [hold, f"lock_timeout = {LOCK_SECONDS * 1000}"]
    if dialect == "mysql":
        hold = "idle_transaction_timeout" if "MariaDB" in version else "wait_timeout"
        return [f"{hold} = {HOLD_SECONDS}", f"innodb_lock_wait_timeout = {LOCK_SECONDS}"]
    return []
