"""The URL of a server, taken apart: user, hosts, place and options. Its password is never shown.

    redis://user:password@h1:6379,h2:6379/place?prefix=orders&tls=true&ca=ca.pem

The user and the password are in the URL, in files (``?user_file=PATH&password_file=PATH``), or in the environment
(``PXRS_REGISTRY_USER``, ``PXRS_REGISTRY_PASSWORD``). Files are read at every connection: a rotated one is picked up.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import parse_qsl, unquote

from pxrs.errors import BadUrl, masked_host, masked_url
from pxrs.settings import Settings

TRUE, FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")
_NUMBER = re.compile(r"[0-9]{1,9}")
_PORT = re.compile(r"[0-9]{1,5}")
COMMON = ("user_file", "password_file", "tls", "ca", "cert", "key", "tls_verify", "timeout_ms")
"""Options that every server's URL may have."""


@dataclass(frozen=True)
class Address:
    """A URL taken apart. ``hosts`` are pairs of name and port, ``place`` is what follows the first slash."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    place: str = ""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # one may be a password
    given_user: str | None = field(default=None, repr=False)
    given_password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(self.servers)}/{self.place}"

    @property
    def servers(self) -> list[str]:
        """Each host with its port, as they are written."""
        return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in self.hosts]

    @property
    def user(self) -> str | None:
        return self._secret(self.given_user, "user")

    @property
    def password(self) -> str | None:
        return self._secret(self.given_password, "password")

    def _secret(self, given: str | None, what: str) -> str | None:
        if given is not None:
            return given
        path = self.options.get(f"{what}_file")
        if path is None:
            return os.environ.get(f"PXRS_REGISTRY_{what.upper()}")
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadUrl(f"{what}_file of {self}: {path} cannot be read: {error}") from None

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.options.get(name)
        if text is None:
            return default
        if text.lower() not in TRUE + FALSE:
            raise BadUrl(f"{self}: {name} = {text!r}: write true or false")
        return text.lower() in TRUE

    def number(self, name: str, default: int, least: int = 1) -> int:
        text = self.options.get(name, str(default))
        if not _NUMBER.fullmatch(text) or int(text) < least:
            raise BadUrl(f"{self}: {name} = {text[:20]!r}: write a whole number from {least} to 999999999")
        return int(text)

    def timeout(self, settings: Settings) -> float:
        """The time that an answer may take: a fraction of the lease, so that a heartbeat can be tried again."""
        usual = min(5_000, max(200, settings.lease_ms // 4))
        return self.number("timeout_ms", usual) / 1000

    @property
    def tls(self) -> bool:
        """Asked for by ``tls=true``, by a scheme like rediss, or by any of the files that only make sense with it."""
        implied = self.scheme == "rediss" or any(name in self.options for name in ("ca", "cert", "key"))
        return self.flag("tls", default=implied)

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context for clients that take one; None without TLS."""
        if not self.tls:
            return None
        try:
            context = ssl.create_default_context(cafile=self.options.get("ca"))
            if "cert" in self.options:
                context.load_cert_chain(self.options["cert"], self.options.get("key"))
        except (OSError, ssl.SSLError) as error:
            raise BadUrl(f"{self}: the certificates cannot be loaded: {error}") from None
        if not self.flag("tls_verify", default=True):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse(url: str, default_port: int, known: Collection[str] = (), any_option: bool = False) -> Address:
    """Take a URL apart. An option that is neither common nor in ``known`` is refused, unless all pass through."""
    scheme, slashes, rest = url.partition("://")
    _check_characters(url)
    if not slashes:
        raise BadUrl(f"{masked_url(url)!r} has no host: write {url.partition(':')[0]}://host:{default_port}/place")
    rest, _, query = rest.partition("?")
    authority, _, place = rest.partition("/")
    who, _, hosts = authority.rpartition("@")
    user, _, password = who.partition(":")
    if "@" in place or "@" in query:
        raise BadUrl(
            f"{masked_url(url)!r}: '@' behind the hosts. Write '/', '?', '#' and '@' in a password as %2F %3F %23 %40"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(name for name in options if name not in COMMON and name not in known)
    if unknown and not any_option:
        raise BadUrl(f"{masked_url(url)!r}: no option {unknown[0]!r}; there are {', '.join(sorted({*COMMON, *known}))}")
    return Address(
        scheme.lower(),
        tuple(host_of(one, default_port, url) for one in (hosts or "127.0.0.1").split(",")),
        unquote(place),
        options,
        unquote(user) if user else None,
        unquote(password) if password else None,
    )


def host_of(text: str, default_port: int, url: str) -> tuple[str, int]:
    """``host:port``, ``host`` or ``[IPv6]:port``, as name and port. What no resolver takes is refused."""
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        name, port = text, str(default_port)
    if not name or not _PORT.fullmatch(port) or not 0 < int(port) < 65_536:
        raise BadUrl(
            f"{masked_url(url)!r}: {masked_host(text)!r} is no host and port, as in 127.0.0.1:{default_port}; "
            "ports go from 1 to 65535"
        )
    if "[" in name or "]" in name:
        return _ipv6(name, url), int(port)
    _check_name(name, url)
    return name, int(port)


def _ipv6(text: str, url: str) -> str:
    name = text[1:-1]
    try:
        IPv6Address(name)
    except AddressValueError:
        raise BadUrl(f"{masked_url(url)!r}: {text!r} is no IPv6 address in brackets, as in [::1]") from None
    if text != f"[{name}]":
        raise BadUrl(f"{masked_url(url)!r}: {text!r} is no IPv6 address in brackets, as in [::1]")
    return name


def _check_name(name: str, url: str) -> None:
    try:
        name.encode("idna")
    except UnicodeError:
        why = "its parts have 1 to 63 characters each, with dots between them"
        raise BadUrl(f"{masked_url(url)!r}: {masked_host(name)[:80]!r} is no host name: {why}") from None
    if ":" in name or not name.isprintable() or " " in name:
        raise BadUrl(f"{masked_url(url)!r}: {masked_host(name)!r} is no host name; write IPv6 in brackets: [::1]")


def _check_characters(url: str) -> None:
    """A file's name may hold bytes that are no text, the address of a server may not. %00 is no better than NUL."""
    try:
        url.encode()
    except UnicodeEncodeError:
        raise BadUrl(f"{masked_url(url)!r} holds a lone surrogate, half of a character: write the whole one") from None
    if "\0" in unquote(url):
        raise BadUrl(f"{masked_url(url)!r} holds a NUL character: leave it out")
