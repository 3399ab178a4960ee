"""A place on a read-only mount is said to be that, whoever finds it out: log, registry, dead letters, commands."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pxrs
from pxrs.apps.cli import main
from pxrs.errors import Unavailable
from pxrs.logs.base import OwnRegistry
from pxrs.logs.file import writer
from pxrs.logs.file.queue_file import write_registry
from pxrs.runtime.queue.urls import open_store
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Swap
from pxrs.stores.sqlite import connections as sqlite

SAID = "is on a read-only file system: mount it for writing"
QUICK = Settings(send_timeout_ms=1)


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, it makes everything below this directory read-only, as a mount would. Root may write to files that are
    merely protected, and a test may not mount."""

    def refused(path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(str(tmp_path))

    def guard(name: str, writes: Callable[..., bool]) -> None:
        real = getattr(os, name)

        def guarded(path: Any, *more: Any, **named: Any) -> Any:
            if refused(path) and writes(*more, **named):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
            return real(path, *more, **named)

        monkeypatch.setattr(os, name, guarded)

    def make() -> None:
        guard("open", lambda flags, *_, **__: bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
        for name in ("mkdir", "rename", "replace", "unlink", "truncate"):
            guard(name, lambda *_, **__: True)

    return make


def test_a_queue_that_cannot_be_made(tmp_path: Path, mount: Callable[[], None]) -> None:
    mount()
    with pytest.raises(Unavailable, match=f"orders {SAID}"):
        pxrs.open(f"file:{tmp_path}/orders")


def test_a_message_that_cannot_be_stored(tmp_path: Path, mount: Callable[[], None]) -> None:
    with pxrs.open(f"file:{tmp_path}/orders", partitions=1, settings=QUICK) as queue:
        mount()
        producer = queue.producer()
        receipt = producer.send("k", b"x")
        with pytest.raises(Unavailable, match=SAID):
            producer.close()
        assert SAID in repr(receipt)


def test_the_record_of_a_registry(tmp_path: Path, mount: Callable[[], None]) -> None:
    pxrs.open(f"file:{tmp_path}/orders", partitions=1).close()
    mount()
    with pytest.raises(Unavailable, match=SAID):
        write_registry(f"{tmp_path}/orders", OwnRegistry("id"), None)


def test_a_registry_of_lock_files(tmp_path: Path, mount: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"lockfiles:{tmp_path}/registry", Settings())
    [done] = store.swap_each([Swap("/pxrs/a", ABSENT, b"1")])
    mount()
    with pytest.raises(Unavailable, match=f"{SAID}.*nothing was written"):
        store.swap_each([Swap("/pxrs/a", done.version, b"2")])
    with pytest.raises(Unavailable, match=f"other {SAID}"):
        open_store(f"lockfiles:{tmp_path}/other", Settings()).swap_each([Swap("/pxrs/a", ABSENT, b"1")])
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(Unavailable, match=f"registry {SAID}"):
        open_store(f"lockfiles:{tmp_path}/registry", Settings())


@pytest.mark.parametrize("code", [sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN])
@pytest.mark.parametrize("read_only", [True, False])
def test_a_registry_in_sqlite(code: int, read_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(sqlite, "_connect", refuse)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY if read_only else 0))
    (tmp_path / "registry.db").touch()
    with pytest.raises(Unavailable, match=f"registry.db {SAID if read_only else 'does not answer: attempt to write'}"):
        open_store(f"sqlite:{tmp_path}/registry.db", Settings())


@pytest.mark.parametrize("closed", ["registry.db", "."])
def test_a_registry_in_sqlite_that_this_user_may_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """Root may write everywhere: so the system is made to say what it says to others."""

    def refuse(*_: object) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    denied = os.path.normpath(tmp_path / closed)
    monkeypatch.setattr(sqlite, "_connect", refuse)
    monkeypatch.setattr(os, "access", lambda path, *_: os.path.normpath(path) != denied)
    (tmp_path / "registry.db").touch()
    with pytest.raises(
        Unavailable, match=f"^{denied}: permission denied: let the user of this process read and write there"
    ):
        open_store(f"sqlite:{tmp_path}/registry.db", Settings())


@pytest.mark.parametrize("url", ["sqlite:{}/closed/registry.db", "lockfiles:{}/closed/registry"])
def test_a_registry_in_a_directory_that_is_closed_is_not_taken_for_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    real = os.stat

    def stat(path: Any, *more: Any, **named: Any) -> Any:
        if str(path) == f"{tmp_path}/closed/.":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *more, **named)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(Unavailable, match="permission denied"):
        open_store(url.format(tmp_path), Settings())


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_producer_does_not_wait_where_it_may_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Waiting does not help: with the usual time-out this test would take a minute."""
    tries: list[str] = []

    def refuse(path: str, *_: object) -> None:
        tries.append(path)
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(writer, "open_held", refuse)
    with pxrs.open(f"file:{tmp_path}/orders", partitions=1) as queue:
        producer = queue.producer()
        producer.send("k", b"x")
        with pytest.raises(
            Unavailable, match=r"partition-0/lock(: permission denied: let the user| is on a read-only)"
        ):
            producer.close()
    assert len(tries) == 1


def test_commands_say_it_in_a_line(
    tmp_path: Path, mount: Callable[[], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "file:./orders", "--partitions", "1"]) == 0
    mount()
    assert main(["init", "file:./other"]) == 1 and main(["log", "export", "file:./orders", "out"]) == 1
    said = capsys.readouterr().err
    assert said.count(SAID) == 2 and said.count("\n") == 2
