"""The address of a NATS cluster: its servers, the user, and whether the connection is encrypted."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from pxrs.io import address

PORT = 4222
SECURITY = ("user_file", "password_file", "tls", "ca", "cert", "key", "tls_verify")
"""Options of a URL that belong to the connection."""


class NatsAddress(NamedTuple):
    """The servers of one cluster, and the user. Equal addresses share a connection."""

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = None
    security: tuple[tuple[str, str], ...] = ()
    """Those of the options ``SECURITY`` that were given."""

    def __str__(self) -> str:
        return "nats://" + ",".join(self.servers)  # never the password

    def __repr__(self) -> str:
        return f"Address({self})"

    def login(self) -> tuple[str | None, str | None]:
        """The user and the password. Files are read anew every time: a password that was changed is picked up."""
        given, files = self._taken_apart(), dict(self.security)
        return (
            given.user if self.user is not None or "user_file" in files else None,
            given.password if self.password is not None or "password_file" in files else None,
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """None unless TLS was asked for."""
        return self._taken_apart().tls_context()

    def _taken_apart(self) -> address.Address:
        hosts = tuple((server, PORT) for server in self.servers)
        return address.Address("nats", hosts, "", dict(self.security), self.user, self.password)


def security_of(options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Read the options of a URL that are about encryption."""
    return tuple(sorted((name, value) for name, value in options.items() if name in SECURITY))


def address_of(url: address.Address) -> NatsAddress:
    """The address that the URL of a registry names; credentials that it does not name come from the environment."""
    user = None if "user_file" in url.options else url.user
    password = None if "password_file" in url.options else url.password
    return NatsAddress(tuple(url.servers), user, password, security_of(dict(url.options)))
