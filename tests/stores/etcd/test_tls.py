"""An etcd that wants to know who asks: certificates of both sides, users and passwords. All of it for real."""

from __future__ import annotations

import datetime
import ipaddress
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pxrs.errors import Refused, Unavailable
from pxrs.stores.base import ABSENT, Verdict
from pxrs.stores.etcd.grpc_channel import messages
from pxrs.stores.etcd.store import EtcdStore
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.etcd import EtcdServer, TlsFiles
from pxrs.testing.stores.hooks import Background, put, swap, value_of
from pxrs.testing.stores.sharing import in_forked_child
from tests.stores.etcd.helpers import operator_of
from tests.stores.kinds.places import LONG, SOON, new_place, opened

# ---- certificates ----------------------------------------------------------------------------------------------------


class Paper(NamedTuple):
    """A certificate and its key, as objects and as files."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    cert_file: Path
    key_file: Path


def issue(place: Path, name: str, by: Paper | None = None, ca: bool = False) -> Paper:
    """A certificate for 127.0.0.1, signed by another one or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(
            by.certificate.subject if by else subject, subject, key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
        .sign(by.key if by else key, hashes.SHA256())
    )
    paper = Paper(certificate, key, place / f"{name}.pem", place / f"{name}.key")
    paper.cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paper.key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    return paper


class Certificates(NamedTuple):
    ca: Paper
    stranger: Paper
    """One who signs too, but whom nobody trusts."""
    server: Paper
    client: Paper


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    place = tmp_path_factory.mktemp("certificates")
    ca, stranger = issue(place, "ca", ca=True), issue(place, "stranger", ca=True)
    return Certificates(ca, stranger, issue(place, "server", ca), issue(place, "client", ca))


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    files = TlsFiles(certificates.server.cert_file, certificates.server.key_file, clients_ca=certificates.ca.cert_file)
    with EtcdServer(tmp_path_factory.mktemp("tls"), tls=files) as server:
        yield server


def url_with(server: EtcdServer, ca: Paper, client: Paper | None) -> str:
    options = f"ca={ca.cert_file}&timeout_ms=2000"
    if client is not None:
        options += f"&cert={client.cert_file}&key={client.key_file}"
    return server.url(new_place(), options)


@pytest.mark.processes
def test_both_sides_show_certificates(tls_server: EtcdServer, certificates: Certificates) -> None:
    store = opened(url_with(tls_server, certificates.ca, certificates.client))
    put(store, "a", b"x")
    mark = store.wait("w/", 0, SOON)
    waiting = Background(store.wait, "w/", mark, LONG)
    put(store, "w/1", b"x")
    waiting.result(SOON, "the watch over TLS")
    assert in_forked_child(lambda: value_of(store, "a") == b"x", SOON) == 0
    store.close()


@pytest.mark.processes
def test_a_server_that_a_stranger_vouches_for_is_refused(tls_server: EtcdServer, certificates: Certificates) -> None:
    with pytest.raises(Refused, match="certificate"):
        opened(url_with(tls_server, certificates.stranger, certificates.client))


@pytest.mark.processes
def test_a_client_without_a_certificate_or_with_a_stranger_s_gets_nothing(
    tls_server: EtcdServer, certificates: Certificates
) -> None:
    for client in (None, certificates.stranger):
        with pytest.raises(Unavailable):
            opened(url_with(tls_server, certificates.ca, client))
    with pytest.raises(Unavailable):
        opened(tls_server.url(new_place(), "timeout_ms=500"))


# ---- users and passwords ---------------------------------------------------------------------------------------------

PASSWORD = "hush:/@?hush"
IN_URL = "hush%3A%2F%40%3Fhush"
PLACE = "deployment"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server on which user ``pxrs`` may use one place, and nobody else anything."""
    with EtcdServer(tmp_path / "server", options=["--bcrypt-cost=4"]) as server:
        with operator_of(server) as operator:
            for user, role in (("root", "root"), ("pxrs", "registry")):
                operator.ask("UserAdd", messages.AuthUserAddRequest(name=user, password=PASSWORD))
                operator.ask("RoleAdd", messages.AuthRoleAddRequest(name=role))
                operator.ask("UserGrantRole", messages.AuthUserGrantRoleRequest(user=user, role=role))
            grant = messages.AuthRoleGrantPermissionRequest(name="registry")
            grant.perm.permType, grant.perm.key, grant.perm.range_end = 2, b"deployment/", b"deployment0"
            operator.ask("RoleGrantPermission", grant)
            operator.ask("AuthEnable", messages.AuthEnableRequest())
        yield server


def as_user(server: EtcdServer, who: str, place: str = PLACE, options: str = "") -> str:
    return f"etcd://{who}@{server.address}/{place}{options}"


@pytest.mark.processes
def test_a_user_with_a_password_works_in_his_place_and_nowhere_else(guarded: EtcdServer) -> None:
    store = opened(as_user(guarded, f"pxrs:{IN_URL}"))
    put(store, "a", b"x")
    mark = store.wait("w/", 0, SOON)
    put(store, "w/1", b"x")
    assert store.wait("w/", mark, SOON) != mark
    store.close()
    with pytest.raises(Refused, match="permission denied"):
        opened(as_user(guarded, f"pxrs:{IN_URL}", place="elsewhere"))


@pytest.mark.processes
@pytest.mark.parametrize("who", ["pxrs:wrong", "nobody:wrong"])
def test_a_wrong_password_is_refused_and_not_shown(
    guarded: EtcdServer, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(Refused, match="invalid user ID or password") as caught:
        opened(as_user(guarded, who))
    assert guarded.address in str(caught.value)
    assert "wrong" not in str(caught.value) + repr(caught.value) + caplog.text


@pytest.mark.processes
def test_nobody_in_particular_is_refused(guarded: EtcdServer) -> None:
    with pytest.raises(Refused, match="user name is empty"):
        opened(guarded.url(PLACE))


@pytest.mark.processes
def test_the_password_may_stand_in_a_file_or_in_the_environment(
    guarded: EtcdServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    _check(opened(as_user(guarded, "pxrs", options=f"?password_file={file}")))
    monkeypatch.setenv("PXRS_REGISTRY_USER", "pxrs")
    monkeypatch.setenv("PXRS_REGISTRY_PASSWORD", PASSWORD)
    _check(opened(guarded.url(PLACE)))


def _check(store: EtcdStore) -> None:
    assert PASSWORD not in repr(store.address) + str(store.address)
    assert store.scan("") == []
    store.close()


@pytest.mark.processes
def test_a_token_that_the_server_forgot_is_renewed(guarded: EtcdServer) -> None:
    store = opened(as_user(guarded, f"pxrs:{IN_URL}"))
    version = put(store, "a", b"x")
    mark = store.wait("w/", 0, SOON)
    guarded.restart()  # it remembers users, but no tokens
    wait_until(lambda: _answers(store), "the server is reached again")
    put(store, "a", b"y", version)
    put(store, "w/1", b"x")
    assert store.wait("w/", mark, SOON) != mark
    with operator_of(guarded) as operator:
        root = messages.AuthenticateRequest(name="root", password=PASSWORD)
        operator.token = operator.ask("Authenticate", root).token
        operator.ask("UserAdd", messages.AuthUserAddRequest(name="another", password="x"))
    outcome = swap(store, "b", ABSENT, b"after the users were changed")
    assert outcome.verdict is Verdict.DONE
    store.close()


def _answers(store: EtcdStore) -> bool:
    try:
        return store.read(["a"]) != [None]
    except Unavailable:
        return False
