"""PostgreSQL by psycopg."""

from __future__ import annotations

import select
from typing import Any, ClassVar

from pxrs.errors import BadUrl
from pxrs.io.address import Address
from pxrs.io.sql.connections import Driver, Sort, new_dialect

try:
    import psycopg
    from psycopg.abc import PQGen
    from psycopg.rows import TupleRow
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
except ModuleNotFoundError as error:
    raise BadUrl("postgresql:// needs the package psycopg: pip install 'pxrs[postgres]'") from error

ENDS_TRANSACTIONS = 17_00_00
_LOOK_SECONDS = 0.1  # how often a wait lets Python handle signals
_AGAIN = {"40001", "40P01", "55P03", "57014"}
_DENIALS = ("authentication failed", "no password supplied", "no pg_hba.conf entry", "does not exist")
_GONE = ("25P03", "25P04", "08", "57P")  # connections that end: shut down, crashed, dropped, idle for too long
_SORTS = {
    "23505": Sort.DUPLICATE,
    "42P01": Sort.NO_TABLE,
    "3F000": Sort.NO_TABLE,
    "42703": Sort.OTHER_TABLE,
    "42883": Sort.OTHER_TABLE,
    "42804": Sort.OTHER_TABLE,
    "42P07": Sort.EXISTS,
    "42710": Sort.EXISTS,
    "42501": Sort.DENIED,
    "25006": Sort.FAILED,
}


class _PatientConnection(psycopg.Connection[TupleRow]):
    """A connection that gives up; psycopg waits forever. It is then closed, since a late answer would be taken for the
    answer to the next question.
    """

    seconds: float = 5.0
    _look: select.poll | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody has read. What it is asked by is kept: it is asked before every call."""
        if self._look is None:
            self._look = select.poll()
            self._look.register(self.fileno(), select.POLLIN)
        return not self._look.poll(0)

    def wait(self, gen: PQGen[Any], interval: float = _LOOK_SECONDS, timeout: float | None = None) -> Any:
        try:
            return super().wait(gen, interval, self.seconds if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if error.sqlstate is None:  # the server has not answered: whatever is asked next must fail as lost, too
                self.close()
            raise


class PostgresDriver(Driver):
    """A server that says a state with every error."""

    default_port: ClassVar[int] = 5432

    def __init__(self) -> None:
        self.dialect = new_dialect(PGDialect_psycopg, paramstyle="format")  # psycopg puts named values into order first
        self.errors = (psycopg.Error, OSError)

    def connect(self, address: Address, seconds: float, autocommit: bool = True) -> _PatientConnection:
        given = self.options_of(address)
        try:
            connection = _PatientConnection.connect(
                autocommit=autocommit, **{**_wanted(address, seconds, autocommit), **given}
            )
        except psycopg.ProgrammingError as error:
            raise BadUrl(f"{address}: {error}") from None
        self.limit(connection, seconds)
        if autocommit and connection.info.server_version >= ENDS_TRANSACTIONS:
            try:
                connection.execute(f"SET transaction_timeout = {_hold_ms(seconds)}".encode())
            except BaseException:
                connection.close()
                raise
        return connection

    def cursor(self, connection: Any) -> Any:
        return connection.cursor(binary=True)

    def limit(self, connection: _PatientConnection, seconds: float) -> None:
        connection.seconds = seconds

    def is_alive(self, connection: _PatientConnection) -> bool:
        """A server says nothing to an idle connection, except that it ends."""
        return not connection.closed and connection.is_quiet

    def sort_of(self, error: Exception) -> Sort:
        state = getattr(error, "sqlstate", None)
        if state is None:
            return self._without_state(error)
        if state in _AGAIN:
            return Sort.AGAIN
        if state.startswith("28") or state == "3D000":
            return Sort.DENIED
        if state.startswith(_GONE):
            return Sort.LOST
        # All others of this class are about names and types: the statement does not go with the table.
        return _SORTS.get(state, Sort.OTHER_TABLE if state.startswith("42") else Sort.FAILED)

    def _without_state(self, error: Exception) -> Sort:
        """Judge an error without a state by its text: the server always sends one, so the connection is at fault."""
        if any(words in str(error) for words in _DENIALS):
            return Sort.DENIED
        return (
            Sort.LOST if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, OSError)) else Sort.FAILED
        )


def _wanted(address: Address, seconds: float, autocommit: bool) -> dict[str, Any]:
    wanted: dict[str, Any] = {
        "host": ",".join(name for name, _ in address.hosts),
        "port": ",".join(str(port) for _, port in address.hosts),
        "dbname": address.place or "postgres",
        "user": address.user,
        "password": address.password,
        "application_name": "pxrs",
        "connect_timeout": max(2, round(seconds)),
        "tcp_user_timeout": round(seconds * 1000),
        "options": _server_settings(seconds, autocommit),
        **_tls(address),
    }
    if len(address.hosts) > 1:
        wanted["target_session_attrs"] = "read-write"  # the one of them that is no replica
    return {name: value for name, value in wanted.items() if value is not None}


def _server_settings(seconds: float, autocommit: bool) -> str:
    """The server gives up a little before we do, so that what was not done in time is certainly not done later.

    A process of ours that is stopped in a transaction does not keep its rows locked for long. A stop in the middle of
    a pipeline does not count as idle: there only ``transaction_timeout`` helps, which servers know from 17 on.
    """
    settings = [r"default_transaction_isolation=read\ committed"]
    if autocommit:
        settings.append(f"statement_timeout={max(1, round(seconds * 800))}")
        settings.append(f"idle_in_transaction_session_timeout={_hold_ms(seconds)}")
    return " ".join(f"-c {setting}" for setting in settings)


def _hold_ms(seconds: float) -> int:
    return max(1, round(seconds * 2000))


def _tls(address: Address) -> dict[str, str]:
    if not address.tls:
        return {}
    if not address.flag("tls_verify", default=True):
        wanted = {"sslmode": "require"}
    else:
        wanted = {"sslmode": "verify-full", "sslrootcert": address.options.get("ca", "system")}
    names = {"cert": "sslcert", "key": "sslkey"}
    return wanted | {names[name]: address.options[name] for name in names if name in address.options}
