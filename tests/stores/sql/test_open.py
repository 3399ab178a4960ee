"""Opening a registry in SQL: URLs, credentials, TLS, and tables of other versions."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import traceback
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pxrs.errors import BadUrl, Damaged, NewerFormat, Refused, Unavailable, WentBack
from pxrs.stores.base import ABSENT
from pxrs.stores.sql import tables as sql_tables
from pxrs.stores.sql.store import SqlStore
from pxrs.stores.sql.tables import Tables
from pxrs.testing.servers.base import free_ports
from pxrs.testing.servers.mariadb import PASSWORD, MariadbServer
from pxrs.testing.servers.postgres import PostgresServer
from pxrs.testing.stores.hooks import get, put, swap, value_of
from pxrs.testing.stores.sharing import in_forked_child
from tests.stores.kinds.places import opened
from tests.stores.sql.helpers import OPTIONS, SqlServer

DEBIAN = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def execute(store: SqlStore, text: str) -> None:
    with store.engine.begin() as connection:
        connection.exec_driver_sql(text)


# ---- URLs and credentials -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Pxrs", "a;drop", "a b", "a" * 26, "1a", "a.b.c", "a'", 'a"', "é", "a`", "."])
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "oracle"])
def test_a_table_name_that_is_no_plain_word_is_refused_before_anything_is_sent(scheme: str, name: str) -> None:
    with pytest.raises(BadUrl, match="table"):
        opened(f"{scheme}://127.0.0.1:1/db?table={name}")


def test_an_option_that_the_driver_does_not_know_is_refused(server: SqlServer) -> None:
    with pytest.raises(BadUrl, match="colour"):
        opened(server.url("x", options="colour=red"))


def test_options_of_the_driver_pass_through(postgres_server: PostgresServer, mariadb_server: MariadbServer) -> None:
    store = opened(postgres_server.url("passed", options="application_name=orders"))
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW application_name").scalar_one() == "orders"
    store.close()
    store = opened(mariadb_server.url("passed", options="program_name=orders&max_allowed_packet=33554432"))
    put(store, "a", b"x")
    store.close()


def test_a_look_of_no_time_is_refused(server: SqlServer) -> None:
    with pytest.raises(BadUrl, match="look_ms"):
        opened(server.url("x", options="look_ms=0"))


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "oracle"])
def test_a_server_that_is_not_there_is_named(scheme: str) -> None:
    [port] = free_ports(1)
    url = f"{scheme}://me:secret-word@127.0.0.1:{port}/db?timeout_ms=500"
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as caught:
        opened(url)
    assert "secret-word" not in _everything_of(caught.value)


def test_a_wrong_password_is_refused_and_never_shown(
    server: SqlServer, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = server.url(place).replace(PASSWORD, "not-the-secret")
    with pytest.raises(Refused, match="password") as caught:
        opened(url)
    store = opened(server.url(place))
    store.engine.connect().close()
    with pytest.raises(BadUrl) as bad:
        opened(server.url(place, options="colour=red"))
    texts = [_everything_of(caught.value), _everything_of(bad.value), repr(store), repr(store.engine), caplog.text]
    store.close()
    for text in texts:
        assert "not-the-secret" not in text and PASSWORD not in text


def _everything_of(error: BaseException) -> str:
    """What a log shows of an error: its texts and those of its causes."""
    return "".join(traceback.format_exception(error)) + repr(error)


def test_credentials_from_files_and_from_the_environment(
    server: SqlServer, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url(place).replace(f"pxrs:{PASSWORD}@", "")
    monkeypatch.setenv("PXRS_REGISTRY_USER", "pxrs")
    (tmp_path / "word").write_text(PASSWORD + "\n")
    first = opened(f"{url}&password_file={tmp_path}/word")
    put(first, "a", b"by file")
    first.close()
    monkeypatch.setenv("PXRS_REGISTRY_PASSWORD", PASSWORD)
    second = opened(url)
    assert value_of(second, "a") == b"by file"
    second.close()


def test_of_several_hosts_the_one_that_takes_writes_is_used(postgres_server: PostgresServer, place: str) -> None:
    [nobody] = free_ports(1)
    store = opened(postgres_server.url(place, f"127.0.0.1:{nobody},{postgres_server.address}", OPTIONS))
    put(store, "a", b"x")
    store.close()


def test_several_hosts_are_refused_where_a_replica_could_answer(mariadb_server: MariadbServer, place: str) -> None:
    with pytest.raises(BadUrl, match="name one host"):
        opened(mariadb_server.url(place, f"127.0.0.1:1,{mariadb_server.address}", OPTIONS))


# ---- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that vouches for itself."""
    place = tmp_path_factory.mktemp("certificates")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pxrs test")])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (place / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (place / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    (place / "key.pem").chmod(0o600)
    return place


def _tls_postgres(certificates: Path, directory: Path) -> SqlServer:
    if not DEBIAN:
        pytest.skip("the PostgreSQL of the wheel is built without TLS, and Debian's is not installed")
    settings = {"ssl": "on", "ssl_cert_file": f"{certificates}/cert.pem", "ssl_key_file": f"{certificates}/key.pem"}
    return PostgresServer(directory, settings, programs=DEBIAN[-1])


def _tls_mariadb(certificates: Path, directory: Path) -> SqlServer:
    return MariadbServer(directory, {"ssl-cert": f"{certificates}/cert.pem", "ssl-key": f"{certificates}/key.pem"})


ENCRYPTED = {
    "postgresql": "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    "mysql": "SELECT VARIABLE_VALUE <> '' FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'Ssl_cipher'",
}


@pytest.mark.processes
@pytest.mark.parametrize("make", [_tls_postgres, _tls_mariadb])
def test_tls_with_a_certificate_of_ones_own(make: Any, certificates: Path, tmp_path: Path) -> None:
    with make(certificates, tmp_path / "server") as own:
        store = opened(own.url("place", options=f"ca={certificates}/cert.pem"))
        put(store, "a", b"x")
        assert _is_encrypted(store)
        store.close()
        unverified = opened(own.url("place", options="tls=true&tls_verify=false"))
        assert _is_encrypted(unverified) and value_of(unverified, "a") == b"x"
        unverified.close()
        with pytest.raises(Unavailable, match="certificate"):
            opened(own.url("place", options="tls=true"))


def _is_encrypted(store: SqlStore) -> bool:
    with store.engine.connect() as connection:
        return bool(connection.exec_driver_sql(ENCRYPTED[store.address.scheme]).scalar_one())


@pytest.mark.processes
def test_tls_that_the_server_does_not_have_is_not_left_out(server: SqlServer, place: str) -> None:
    with pytest.raises((Unavailable, BadUrl)):
        opened(server.url(place, options="tls=true"))


# ---- tables ---------------------------------------------------------------------------------------------------------


def test_rows_survive_a_close_and_two_registries_do_not_see_each_other(server: SqlServer, place: str) -> None:
    first, other = opened(server.url(place)), opened(server.url(place + "/other"))
    version = put(first, "a", b"kept")
    assert get(other, "a") is None and other.scan("") == []
    first.close()
    again = opened(server.url(place))
    put(again, "a", b"more", version)
    again.close()
    other.close()


def test_a_later_schema_is_refused_at_open_and_by_open_handles(store: SqlStore, server: SqlServer, place: str) -> None:
    put(store, "a", b"x")
    table = store._tables.meta.name
    execute(store, f"UPDATE {table} SET value = 99")
    with pytest.raises(NewerFormat, match="99"):
        opened(server.url(place))
    for cursor in store._connections._idle:
        cursor.connection.close()
    with pytest.raises(NewerFormat, match="99"):  # with its next connection
        swap(store, "a", ABSENT, b"x")


def test_a_schema_step_is_made_once_and_stops_older_versions(
    store: SqlStore, server: SqlServer, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = put(store, "a", b"old")
    rows = store._tables.rows.name
    made: list[int] = []

    def rename(tables: Tables, cursor: Any) -> None:
        made.append(2)
        cursor.execute(f"ALTER TABLE {rows} RENAME TO {rows}2")

    with monkeypatch.context() as patch:
        patch.setattr(sql_tables, "SCHEMA", 2)
        patch.setitem(sql_tables.STEPS, 2, rename)
        with pytest.raises(WentBack):  # the tables of this test's later version have another name
            opened(server.url(place))
        opened_again = Tables(store._tables.name, store._driver)
        assert store._asking(opened_again.schema) == 2
    assert made == [2]
    with pytest.raises(NewerFormat, match="schema 2"):
        swap(store, "a", version, b"new")
    with pytest.raises(NewerFormat, match="schema 2"):
        get(store, "a")


def test_tables_that_are_gone_are_not_made_again_under_an_open_handle(store: SqlStore) -> None:
    version = put(store, "a", b"x")
    execute(store, f"DROP TABLE {store._tables.rows.name}")
    for call in (lambda: get(store, "a"), lambda: swap(store, "a", version, b"y"), lambda: store.wait("", 0, 0)):
        with pytest.raises(WentBack, match="gone"):
            call()
    execute(store, f"DROP TABLE {store._tables.meta.name}")
    with pytest.raises(WentBack, match="wiped"):
        get(store, "a")


@pytest.mark.parametrize("which", ["rows", "meta"])
def test_tables_of_somebody_else_are_refused_and_left_alone(
    store: SqlStore, server: SqlServer, place: str, which: str
) -> None:
    theirs = getattr(store._tables, which).name
    execute(store, f"DROP TABLE {theirs}")
    execute(store, f"CREATE TABLE {theirs} (colour INTEGER)")
    with pytest.raises(Damaged, match="not of a registry"):
        opened(server.url(place))
    execute(store, f"SELECT colour FROM {theirs}")


def test_tables_that_stand_need_no_right_to_make_any(store: SqlStore, server: SqlServer, place: str) -> None:
    version = put(store, "a", b"x")
    rows, meta = store._tables.rows.name, store._tables.meta.name
    user = f"u{os.getpid()}"
    host = "@'127.0.0.1'" if isinstance(server, MariadbServer) else ""
    admin = store if not host else opened(_as_root(server, place))
    words = "IDENTIFIED BY" if host else "PASSWORD"
    execute(admin, f"CREATE USER {user}{host} {words} 'small-word'")
    try:
        execute(admin, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {rows} TO {user}{host}")
        execute(admin, f"GRANT SELECT ON {meta} TO {user}{host}")
        small = opened(server.url(place).replace(f"pxrs:{PASSWORD}", f"{user}:small-word"))
        swap(small, "a", put(small, "a", b"y", version), None)
        small.close()
        with pytest.raises(Refused, match="right"):
            opened(server.url(place + "/new").replace(f"pxrs:{PASSWORD}", f"{user}:small-word"))
    finally:
        if not host:
            execute(admin, f"REVOKE ALL ON {rows}, {meta} FROM {user}")
        execute(admin, f"DROP USER {user}{host}")
        if admin is not store:
            admin.close()


def _as_root(server: SqlServer, place: str) -> str:
    return server.url(place).replace(f"pxrs:{PASSWORD}@", "root:@")


def test_a_forked_child_has_an_engine_of_its_own(store: SqlStore) -> None:
    execute(store, f"SELECT 1 FROM {store._tables.meta.name}")

    def child() -> bool:
        execute(store, f"SELECT 1 FROM {store._tables.meta.name}")
        return put(store, "child", b"x") > 0

    assert in_forked_child(child) == 0
    execute(store, f"SELECT 1 FROM {store._tables.meta.name}")
    assert value_of(store, "child") == b"x"


def test_a_database_that_does_not_exist_is_named(server: SqlServer, place: str) -> None:
    url = server.url(place).replace("/postgres?", "/no_such_db?").replace("/pxrs?", "/no_such_db?")
    with pytest.raises(Refused, match="no_such_db"):
        opened(url)
