"""MariaDB and MySQL by PyMySQL."""

from __future__ import annotations

import select
from typing import Any, ClassVar

from pxrs.errors import BadUrl
from pxrs.io.address import Address
from pxrs.io.sql.connections import Driver, Sort, new_dialect

try:
    import pymysql
    from pymysql.constants import CLIENT
    from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
except ModuleNotFoundError as error:
    raise BadUrl("mysql:// needs the package pymysql: pip install 'pxrs[mysql]'") from error

# FOUND_ROWS: an UPDATE tells how many rows it found, not how many it changed.
# MULTI_STATEMENTS: a whole batch is one request, with an answer for each statement.
_FLAGS = CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS
_GREETING_SECONDS = 2.0  # the connecting side gives up by itself
_LOST = {1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031}
_AGAIN = {1205, 1213, 1317, 1020, 1969, 3024}
_SORTS = {
    1062: Sort.DUPLICATE,
    1146: Sort.NO_TABLE,
    1049: Sort.DENIED,
    1054: Sort.OTHER_TABLE,
    1050: Sort.EXISTS,
    1044: Sort.DENIED,
    1045: Sort.DENIED,
    1698: Sort.DENIED,
    1142: Sort.DENIED,
    1251: Sort.DENIED,
}


class MysqlDriver(Driver):
    """Databases that speak MySQL's protocol."""

    default_port: ClassVar[int] = 3306

    def __init__(self) -> None:
        self.dialect = new_dialect(MySQLDialect_pymysql)
        self.errors = (pymysql.Error, OSError)

    def connect(self, address: Address, seconds: float, autocommit: bool = True) -> Any:
        given = {name: _typed(value) for name, value in self.options_of(address).items()}
        if len(address.hosts) > 1:
            # A replica would answer too, and take writes that the primary never sees: two owners for each partition.
            raise BadUrl(f"{address}: name one host; MySQL does not tell a primary from a replica that is behind")
        [(host, port)] = address.hosts
        return self._connect_to(address, host, port, seconds, autocommit, given)

    def _connect_to(
        self, address: Address, host: str, port: int, seconds: float, autocommit: bool, given: dict[str, Any]
    ) -> Any:
        wanted: dict[str, Any] = {
            "host": host,
            "port": port,
            "user": address.user,
            "password": address.password or "",
            "database": address.place or None,
            "charset": "utf8mb4",
            "ssl": address.tls_context(),
            "connect_timeout": max(seconds, _GREETING_SECONDS),
            "read_timeout": max(seconds, _GREETING_SECONDS),
            "write_timeout": max(seconds, _GREETING_SECONDS),
        }
        try:
            connection = pymysql.connect(**{**wanted, **given}, autocommit=autocommit, client_flag=_FLAGS)
        except TypeError as error:
            raise BadUrl(f"{address}: {error}") from None
        _set_up(connection, seconds, autocommit)
        self.limit(connection, seconds)
        return connection

    def limit(self, connection: Any, seconds: float) -> None:
        connection._read_timeout = connection._write_timeout = seconds

    def is_alive(self, connection: Any) -> bool:
        """A server says nothing to an idle connection, except that it ends."""
        if not connection.open:
            return False
        look = select.poll()
        look.register(connection._sock.fileno(), select.POLLIN)
        return not look.poll(0)

    def sort_of(self, error: Exception) -> Sort:
        if isinstance(error, (OSError, pymysql.InterfaceError)):
            return Sort.LOST
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        if 2000 <= code < 3000 or code in _LOST:
            return Sort.LOST
        return Sort.AGAIN if code in _AGAIN else _SORTS.get(code, Sort.FAILED)


def _set_up(connection: Any, seconds: float, autocommit: bool) -> None:
    """Set the session up, in one request. The server gives up a little before we do, so that it does nothing later."""
    settings = ["TRANSACTION ISOLATION LEVEL READ COMMITTED"]
    if autocommit:
        settings.append(f"innodb_lock_wait_timeout = {max(1, int(seconds * 0.8))}")
        if "MariaDB" in connection.server_version:
            settings.append(f"max_statement_time = {max(seconds * 0.8, 0.05):.3f}")
            settings.append(f"idle_transaction_timeout = {max(1, round(seconds * 2))}")
    cursor = connection.cursor()
    cursor.execute("; ".join(f"SET SESSION {setting}" for setting in settings))
    while cursor.nextset():
        pass


def _typed(value: str) -> str | int | bool:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value) if value.isascii() and value.isdigit() else value
