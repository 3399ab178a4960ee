"""Names in a ``nats://`` URL: the servers, the stream, its subjects, and the identity that the stream records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import xxhash

from pxrs.drivers import split_url
from pxrs.errors import BadUrl, Damaged, NewerFormat, Refused, masked_url
from pxrs.io.address import parse
from pxrs.io.nats.address import security_of
from pxrs.io.nats.client import NatsAddress
from pxrs.logs.base import LogIdentity, Stamp
from pxrs.model import check_name

FORMAT = 1
DEFAULT_PORT = 4222
DEFAULT_WINDOW_MS = 120_000
MAX_STREAM_NAME = 200
RECORDED = "pxrs.registry"
"""In the metadata of a stream that was made by a version which records its registry, in a message of the stream."""
_FIELDS = ("name", "partitions", "hash", "reduce", "id")


class StreamUrl(NamedTuple):
    """The parts of a log's URL. ``replicas`` and ``window_ms`` count when the stream is created; None = as it is."""

    address: NatsAddress
    queue: str
    replicas: int | None = None
    window_ms: int | None = None


def target_of(url: str) -> StreamUrl:
    """``nats://[user:password@]host[:port][,host2…]/queue[?replicas=3&duplicate_window_ms=120000]``.

    Besides ``replicas`` and ``duplicate_window_ms`` there are the options of the connection: files with the
    credentials, and TLS.
    """
    split_url(url)
    if not re.match(r"\w+://[^/]+/[^?]", url):
        raise BadUrl(f"{masked_url(url)!r}: write nats://host:port/queue")
    found = parse(url, DEFAULT_PORT, known=("replicas", "duplicate_window_ms"))
    if "timeout_ms" in found.options:
        raise BadUrl(f"{masked_url(url)!r}: no option 'timeout_ms': a log waits as long as its settings say")
    return StreamUrl(
        NatsAddress(tuple(found.servers), found.given_user, found.given_password, security_of(dict(found.options))),
        check_name("queue", found.place),
        _number(url, found.options, "replicas", 1, 5),
        _number(url, found.options, "duplicate_window_ms", 100, 86_400_000),
    )


def url_without_password(target: StreamUrl) -> str:
    """A URL for other processes, which must find the password, if one is needed, where they run."""
    address = target.address
    if address.password is not None:
        raise Refused(
            f"the password in the URL of queue {target.queue!r} does not go to other processes: keep user and password "
            "in files on every machine, nats://host/queue?user_file=PATH&password_file=PATH"
        )
    login = f"{quote(address.user, safe='')}@" if address.user else ""
    options = f"?{urlencode(address.security)}" if address.security else ""
    return f"nats://{login}{','.join(address.servers)}/{target.queue}{options}"


def _number(url: str, options: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise BadUrl(f"{masked_url(url)!r}: {name} must be a whole number from {low} to {high}")
    return int(text)


def stream_of(queue: str, *siblings: str) -> str:
    """The stream of a queue, or of a log beside it. No two have the same: '~' and '+' are in no name of ours."""
    name = "+".join(part.replace(".", "~") for part in (queue, *siblings))
    if len(name) > MAX_STREAM_NAME:
        name = f"{name[: MAX_STREAM_NAME - 20]}={xxhash.xxh3_64_hexdigest(name.encode())}"
    return name


def subject_of(stream: str, partition: int | str) -> str:
    """The subject of a partition's batches; ``"*"`` for all of them."""
    return f"pxrs.{stream}.{partition}"


def growth_subject(stream: str, partition: int | str) -> str:
    """The subject of hints that a partition has grown. No stream stores them."""
    return f"pxrs-bell.{stream}.{partition}"


def message_id(stamp: Stamp, partition: int, part: int) -> str:
    """The message id by which the server recognises a retry of this batch."""
    name = f"{quote(stamp.producer, safe='')}:{partition}:{stamp.sequence}"
    return f"{name}:{part}" if part else name


# --- the identity, in the metadata of the stream


def to_metadata(identity: LogIdentity) -> dict[str, str]:
    values = {"format": str(FORMAT), **{field: str(getattr(identity, field)) for field in _FIELDS}}
    sealed = {f"pxrs.{key}": value for key, value in {**values, "xxh3": _checksum(values)}.items()}
    return {**sealed, RECORDED: "recorded"}


def _checksum(values: Mapping[str, str]) -> str:
    return xxhash.xxh3_64_hexdigest("\n".join(f"{key}={values[key]}" for key in ("format", *_FIELDS)).encode())


def from_metadata(stream: str, metadata: Mapping[str, Any] | None) -> LogIdentity:
    """The identity that a stream records. Refused if the stream is not one of ours."""
    values = {key.removeprefix("pxrs."): str(value) for key, value in (metadata or {}).items() if key[:5] == "pxrs."}
    if "format" not in values:
        raise Refused(f"stream {stream!r} is there and is no log of PXRS: choose another name for the queue")
    if values["format"].isdigit() and int(values["format"]) > FORMAT:
        raise NewerFormat(f"stream {stream!r} has format {values['format']}; this version of PXRS knows up to {FORMAT}")
    try:
        if values.pop("xxh3") != _checksum(values):
            raise ValueError("its checksum does not match; it must not be edited")
        return LogIdentity(values["name"], int(values["partitions"]), values["hash"], values["reduce"], values["id"])
    except (KeyError, ValueError) as error:
        raise Damaged(f"stream {stream!r}: its metadata is damaged: {error}") from error
