"""What the URL of lock files says, and whether its directory can be one of ours."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl

from pxrs.clients.address import Address
from pxrs.clients.files import NETWORK_FILE_SYSTEMS, is_read_only, kind_of_file_system, read_only_error
from pxrs.errors import BadUrl, NotFound, Refused, Unavailable, disk_text, masked_url
from pxrs.plugins import split_url

OPTIONS = ("allow_network", "timeout_ms")


def address_of(url: str) -> Address:
    """The URL taken apart: its place is the absolute path."""
    _, rest = split_url(url)
    place, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    strange = sorted(name for name in options if name not in OPTIONS)
    if strange:
        raise BadUrl(f"{masked_url(url)!r}: no option {strange[0]!r}; there are {', '.join(OPTIONS)}")
    if not place or "\0" in place:
        raise BadUrl(f"{masked_url(url)!r} names no directory: write lockfiles:DIR")
    return Address("lockfiles", (), os.path.abspath(place), options)


def directory_for(address: Address) -> str:
    """The directory, made if need be."""
    path = checked_place(address)
    _make(path)
    if not os.access(path, os.W_OK | os.X_OK):
        if is_read_only(path):
            raise Unavailable(disk_text(read_only_error(path), path))
        raise Refused(f"{path} cannot be written to by this user")
    return path


def checked_place(address: Address) -> str:
    """The directory, which need not be there; refused if it cannot be, or should not."""
    path, parent = address.place, os.path.dirname(address.place)
    if not os.path.isdir(parent):
        raise NotFound(f"{parent}: no such directory, to hold the registry {path}")
    if os.path.exists(path) and not os.path.isdir(path):
        raise Refused(f"{path} is a file; a registry of lock files is a directory")
    network = NETWORK_FILE_SYSTEMS.get(kind_of_file_system(path if os.path.exists(path) else parent))
    if network is not None and not address.flag("allow_network"):
        raise Refused(
            f"{path} is on a network file system ({network}), where locks cannot be trusted between machines: use a "
            "local directory or a registry server, or write lockfiles:DIR?allow_network=true for one machine alone"
        )
    return path


def _make(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except PermissionError as error:
        raise Refused(f"{path} cannot be made by this user: {error.strerror}") from error
    except OSError as error:
        raise Unavailable(f"{path} cannot be made: {disk_text(error, path)}") from error
