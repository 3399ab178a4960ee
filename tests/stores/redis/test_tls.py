"""TLS to a Redis server. The server of the wheel is built without it, so a door with TLS stands before it."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pxrs.errors import BadUrl, Unavailable
from pxrs.stores.base import ABSENT
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.valkey import ValkeyServer
from pxrs.testing.stores.hooks import Background, put, value_of
from tests.stores.kinds.places import LONG, SOON, new_place, opened
from tests.stores.redis.helpers import has_waiters


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that vouches for itself: ``key.pem`` and ``cert.pem``."""
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
    return place


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
    finally:
        target.transport.abort()


@contextmanager
def door(server: ValkeyServer, context: ssl.SSLContext) -> Iterator[int]:
    """The port of a door with TLS that leads to the server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def come_in(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside, outside = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(_pump(reader, outside), _pump(inside, writer))

    async def start() -> asyncio.Server:
        return await asyncio.start_server(come_in, "127.0.0.1", 0, ssl=context)

    async def stop() -> None:
        listening.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    listening = asyncio.run_coroutine_threadsafe(start(), loop).result(SOON)
    try:
        yield int(listening.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(SOON)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SOON)
        loop.close()


@pytest.fixture
def secret_port(valkey_server: ValkeyServer, certificates: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    with door(valkey_server, context) as port:
        yield port


def test_rows_and_waits_go_through_tls(secret_port: int, certificates: Path) -> None:
    place = new_place()
    store = opened(f"redis://127.0.0.1:{secret_port}/0?prefix={place}&ca={certificates}/cert.pem")
    second = opened(f"redis://127.0.0.1:{secret_port}/0?prefix={place}&ca={certificates}/cert.pem")
    call = Background(store.wait, "w/", store.wait("w/", 0, 0), LONG)
    wait_until(lambda: has_waiters(store), "the waiter sleeps", SOON)
    version = put(second, "w/1", b"x" * 100_000)
    call.result(SOON, "a change through TLS")
    put(store, "w/1", b"y", version)
    assert value_of(second, "w/1") == b"y"
    store.close()
    second.close()


def test_a_certificate_that_nobody_vouches_for_is_not_accepted(secret_port: int) -> None:
    with pytest.raises(Unavailable, match="certificate"):
        opened(f"redis://127.0.0.1:{secret_port}/0?prefix={new_place()}&tls=true")
    store = opened(f"redis://127.0.0.1:{secret_port}/0?prefix={new_place()}&tls=true&tls_verify=false")
    assert store.read(["a"]) == [None] and put(store, "a", b"x") > ABSENT
    store.close()


def test_a_server_that_speaks_no_tls_is_not_spoken_to_in_the_clear(valkey_server: ValkeyServer) -> None:
    with pytest.raises(Unavailable, match=valkey_server.address):
        opened(valkey_server.url(new_place(), "tls=true&timeout_ms=500"))


def test_a_file_that_holds_no_certificate_is_refused(secret_port: int, certificates: Path) -> None:
    with pytest.raises(BadUrl, match="certificates"):
        opened(f"redis://127.0.0.1:{secret_port}/0?ca={certificates}/key.pem")
