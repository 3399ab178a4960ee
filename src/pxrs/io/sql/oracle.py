"""Oracle by oracledb in its thin mode. Written after its documentation: there is no server to run it against."""

from __future__ import annotations

from typing import Any, ClassVar

from pxrs.errors import BadUrl
from pxrs.io.address import Address
from pxrs.io.sql.connections import Driver, Sort, new_dialect

try:
    import oracledb
    from sqlalchemy.dialects.oracle.oracledb import OracleDialect_oracledb
except ModuleNotFoundError as error:
    raise BadUrl("oracle:// needs the package oracledb: pip install 'pxrs[oracle]'") from error

_AGAIN = {54, 60, 8177, 30006}
_LOST = {
    28, 600, 603, 1012, 1033, 1034, 1089, 1090, 1092, 2396, 3113, 3114, 3135,
    12153, 12514, 12537, 12541, 12547, 12570, 12583,
}  # fmt: skip
_SORTS = {
    1: Sort.DUPLICATE,
    942: Sort.NO_TABLE,
    904: Sort.OTHER_TABLE,
    955: Sort.EXISTS,
    1017: Sort.DENIED,
    1031: Sort.DENIED,
    1045: Sort.DENIED,
    28000: Sort.DENIED,
    28001: Sort.DENIED,
}
_NETWORK = ("DPY-1001", "DPY-4005", "DPY-4011", "DPY-4024", "DPY-6")


class OracleDriver(Driver):
    """``''`` and an empty RAW are NULL here: an empty value is stored as NULL, and there is no empty key."""

    default_port: ClassVar[int] = 1521
    least_key: ClassVar[bytes] = b"\0"

    def __init__(self) -> None:
        self.dialect = new_dialect(OracleDialect_oracledb)
        self.errors = (oracledb.Error, OSError)

    def connect(self, address: Address, seconds: float, autocommit: bool = True) -> Any:
        given = self.options_of(address)
        wanted = {
            "user": address.user,
            "password": address.password,
            "dsn": dsn(address),
            "tcp_connect_timeout": seconds,
            "ssl_context": address.tls_context(),
        }
        try:
            connection = oracledb.connect(**{**wanted, **given})
        except TypeError as error:
            raise BadUrl(f"{address}: {error}") from None
        connection.autocommit = autocommit
        connection.outputtypehandler = _whole_values
        self.limit(connection, seconds)
        return connection

    def limit(self, connection: Any, seconds: float) -> None:
        connection.call_timeout = max(1, round(seconds * 1000))

    def is_alive(self, connection: Any) -> bool:
        return bool(connection.is_healthy())

    def sort_of(self, error: Exception) -> Sort:
        if isinstance(error, (OSError, oracledb.InterfaceError)):
            return Sort.LOST
        detail = error.args[0] if error.args else None
        if str(getattr(detail, "full_code", "")).startswith(_NETWORK):
            return Sort.LOST
        code = getattr(detail, "code", 0)
        if code in _LOST:
            return Sort.LOST
        return Sort.AGAIN if code in _AGAIN else _SORTS.get(code, Sort.FAILED)

    def begin(self, cursor: Any) -> None:
        """Oracle begins a transaction with its first change."""
        cursor.connection.autocommit = False

    def commit(self, cursor: Any) -> None:
        cursor.connection.commit()
        cursor.connection.autocommit = True

    def rollback(self, cursor: Any) -> None:
        cursor.connection.rollback()
        cursor.connection.autocommit = True


def dsn(address: Address) -> str:
    """Oracle's own form: hosts, and the name of the service."""
    return f"{'tcps' if address.tls else 'tcp'}://{','.join(address.servers)}/{address.place}"


def _whole_values(cursor: Any, metadata: Any) -> Any:
    """A BLOB comes as bytes with its row, not as a locator that costs a round trip more."""
    if metadata.type_code is oracledb.DB_TYPE_BLOB:
        return cursor.var(oracledb.DB_TYPE_LONG_RAW, arraysize=cursor.arraysize)
    return None
