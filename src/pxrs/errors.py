"""Every error of PXRS, named by what the caller does next.

PxrsError
├── Conflict             somebody wrote first: read again, decide again
├── Fenced               you no longer own it: stop now, write nothing
│   └── DuplicateMember    a newer process runs under this member id
├── Unknown              the write may have happened: read before you act
├── Unavailable          store or log does not answer: try again later
├── Refused              the request is wrong; nothing was changed (also a ValueError)
│   ├── Mismatch           opened with another partition count or hash than recorded
│   ├── BadName            a queue, group or member name that could not be stored safely
│   ├── BadKey             a key that has no bytes (lone surrogate, wrong type)
│   ├── BadSetting         a setting out of range, or two that contradict each other
│   ├── BadCheckpoint      a checkpoint that is no offset, goes back, or passes the end
│   ├── BadUrl             no driver for that URL, or a part of it is missing
│   └── NotFound           no such queue, group, member or message
├── Damaged              what is stored cannot be trusted; the text names the place
│   ├── WentBack           the store shows an older state than it has shown before
│   └── NewerFormat        written by a later version of PXRS
├── OutOfRange           an offset outside the log
│   ├── Expired            retention has deleted it; the text names the gap
│   └── BeyondEnd          a checkpoint ahead of the log: the log was lost or recreated
├── Full                 the producer's buffer stayed full for the whole time-out
├── Closed               the object was closed before this call
├── HandlerFailed        a handler kept failing and the policy says: stop
├── Unexpected           something raised that should not: a bug, here or in a driver or listener
└── StopConsuming        raised by a handler: leave cleanly, this message is not done
"""

from __future__ import annotations

import errno
import re

FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Error numbers of the system for missing rights: waiting does not help, somebody has to change them."""

_SECRETS = re.compile(r"(?P<name>[?&;](?!\w*file\b)[\w-]*(?:pass|pwd|token|secret)[\w-]*=)[^&#\s'\"]*", re.IGNORECASE)
_HEAD = re.compile(r":/*|//+")
"""The text between the scheme and the rest of a URL, also where a colon or a slash was forgotten."""
_LOCAL = re.compile(r"\W*(?:file|sqlite|lockfiles|memory):", re.IGNORECASE)
"""Schemes that are followed by a path, in which '@' is a character like others."""


def masked(text: str) -> str:
    """A URL, or a text with URLs in it, with the passwords taken out. Nothing that is shown holds one.

    Mistyped URLs count too: all text between a colon and an '@' may be a password.
    """
    shown = re.sub(r"\S+", lambda found: _word(found[0]), text) if "@" in text else text
    return _SECRETS.sub(lambda found: f"{found['name']}***", shown)


def _word(word: str) -> str:
    before, at, after = word.rpartition("@")
    return f"{_without_login(before + at)}{after}" if at else word


def masked_url(url: str) -> str:
    """Show one URL with its password hidden. It hides more than ``masked``: what is no port may be a password too."""
    head = _HEAD.search(url)
    if "@" in url:
        before, _, after = url.rpartition("@")
        return f"{_without_login(before + '@', keeps_user=False)}{masked(after)}"
    if head is None or _LOCAL.match(url):
        return masked(url)
    hosts = re.split(r"[/?#]", url[head.end() :], maxsplit=1)[0]
    shown = ",".join(masked_host(host) for host in hosts.split(","))
    return masked(url) if shown == hosts else f"{url[: head.end()]}{shown}"


def masked_host(host: str) -> str:
    """``host:port`` as it may be shown: what is no port may be a password, whose '@' was forgotten."""
    name, colon, port = host.rpartition(":")
    return host if not colon or re.fullmatch(r"\d{1,5}|[\da-fA-F:]*\]", port) else f"{name.partition(':')[0]}:***"


def _without_login(words: str, keeps_user: bool = True) -> str:
    """The beginning of a URL up to its last '@', without the password; a user alone is kept in texts."""
    head = _HEAD.search(words)
    start = head.end() if head else 0
    user, colon, _ = words[start:].partition(":")
    if colon:
        return f"{words[:start]}{user}:***@"
    may_be_user = head is None or "//" in head[0] or _LOCAL.match(words)
    return words if keeps_user and may_be_user else f"{words[:start]}***@"


def disk_text(error: OSError, where: str) -> str:
    """Explain an error of the disk to people; missing rights and a read-only mount with what to do."""
    if error.errno == errno.EROFS:
        return f"{error.filename or where} is on a read-only file system: mount it for writing, or name another place"
    if error.errno in FORBIDDEN:
        return (
            f"{error.filename or where}: permission denied: let the user of this process read and write there (chown, "
            "chmod), or name another place"
        )
    return str(error)


class PxrsError(Exception):
    """The root of all errors that PXRS raises on purpose."""


class Conflict(PxrsError):
    """Somebody else wrote the row first. Read it again and decide again."""


class Fenced(PxrsError):
    """The epoch has moved on: this owner lost the partition. Stop now and write nothing."""

    by_seek = False
    """Whether an operator's seek has moved it on: then nobody was late, and nothing is wrong."""


class DuplicateMember(Fenced):
    """A newer process has registered under this member id. The newer one wins; give each process its own id."""


class Unknown(PxrsError):
    """No answer came back: the write may or may not have happened. Read before you act."""


class Unavailable(PxrsError):
    """The store or log does not answer. Nothing is known to have changed; try again later."""


class Refused(PxrsError, ValueError):
    """The request is wrong. Nothing was changed."""


class Mismatch(Refused):
    """The queue or group was created with other values than it is opened with now."""


class BadName(Refused):
    """A name that cannot be stored safely in every store and file system."""


class BadKey(Refused):
    """A message key that has no well-defined bytes."""


class BadSetting(Refused):
    """A setting is out of range, or contradicts another one."""


class BadCheckpoint(Refused):
    """A checkpoint that is not an offset, goes back, or passes the end of the log."""


class BadUrl(Refused):
    """No driver answers to this URL, or a needed part of it is missing."""


class NotFound(Refused):
    """There is no queue, group, member or message of that name."""


class Damaged(PxrsError):
    """What is stored cannot be trusted. The text names the place."""


class WentBack(Damaged):
    """The store shows an older state than it has shown before: restored from a copy, or failed over with loss."""


class NewerFormat(Damaged):
    """Written by a later version of PXRS. Update this one before it writes here."""


class OutOfRange(PxrsError):
    """An offset outside the log."""


class Expired(OutOfRange):
    """Retention has deleted these offsets. The text names the gap."""


class BeyondEnd(OutOfRange):
    """A checkpoint ahead of the log's end: the log was truncated or recreated. Seek the group to go on."""


class Full(PxrsError):
    """The producer's buffer stayed full for the whole time-out: the log is slower than the sender."""


class Closed(PxrsError):
    """The object was closed before this call."""


class HandlerFailed(PxrsError):
    """A handler kept failing on one message, and the failure policy says: stop."""


class Unexpected(PxrsError):
    """Something raised that should not: a bug, here or in a driver or a listener. The cause is chained to it."""


class StopConsuming(PxrsError):
    """Raise it in a handler to leave the group cleanly. The message at hand is not done; its next owner gets it."""
