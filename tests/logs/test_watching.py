"""Being told of changes in a directory, by the kernel or by looking."""

from __future__ import annotations

import ctypes
import errno
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pxrs.clients import inotify
from pxrs.errors import NotFound

Watch = Callable[[str, Callable[[], None]], Callable[[], None]]


def changes(directory: Path) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: (directory / "a").write_bytes(b"1"),
        "modify": lambda: (directory / "a").write_bytes(b"22"),
        "rename": lambda: (directory / "a").rename(directory / "b"),
        "delete": lambda: (directory / "b").unlink(),
    }


@pytest.mark.parametrize("watch", [inotify.watch_directory, inotify.PollingWatcher(0.001).watch])
def test_every_kind_of_change_is_told(tmp_path: Path, watch: Watch) -> None:
    heard = threading.Event()
    cancel = watch(str(tmp_path), heard.set)
    for kind, change in changes(tmp_path).items():
        heard.clear()
        change()
        assert heard.wait(10), kind
    cancel()


def test_who_waits_for_one_entry_hears_its_modifications_and_every_other_kind_of_change(tmp_path: Path) -> None:
    for name in ("lock", "segment"):
        (tmp_path / name).write_bytes(b"0")
    all_heard, heard = threading.Event(), threading.Event()
    cancels = [
        inotify.watch_directory(str(tmp_path), all_heard.set),
        inotify.watch_directory(str(tmp_path), heard.set, only="lock"),
    ]
    (tmp_path / "segment").write_bytes(b"1")
    assert all_heard.wait(10)
    all_heard.clear()
    (tmp_path / "segment").write_bytes(b"2")  # once this is told, what came of the one before it has been told as well
    assert all_heard.wait(10)
    assert not heard.is_set()
    (tmp_path / "lock").write_bytes(b"1")
    assert heard.wait(10)
    heard.clear()
    (tmp_path / "segment").unlink()
    assert heard.wait(10)
    for cancel in cancels:
        cancel()


def test_others_go_on_when_one_cancels_or_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard, cancelled = threading.Event(), threading.Event()

    def fail() -> None:
        raise RuntimeError("on purpose")

    cancel_failing = inotify.watch_directory(str(tmp_path), fail)
    cancel_twin = inotify.watch_directory(str(tmp_path), cancelled.set)
    cancel = inotify.watch_directory(str(tmp_path), heard.set)
    cancel_twin()
    cancel_twin()
    with caplog.at_level(logging.ERROR):
        (tmp_path / "x").touch()
        assert heard.wait(10)
    assert "the others go on" in caplog.text
    assert not cancelled.is_set()
    cancel_failing()
    cancel()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    for watch in (inotify.watch_directory, inotify.PollingWatcher().watch):
        with pytest.raises(NotFound, match="nowhere"):
            watch(str(tmp_path / "nowhere"), lambda: None)


@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_without_inotify_or_a_free_watch_it_polls_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    class Limited:
        """libc whose limit of inotify instances or watches is reached."""

        def __init__(self, *_: object, **__: object) -> None:
            self._real = real(None, use_errno=True)

        def __getattr__(self, name: str) -> object:
            if name != call:
                return getattr(self._real, name)

            def refuse(*_: object) -> int:
                ctypes.set_errno(errno.ENOSPC)
                return -1

            return refuse

    real = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", Limited)
    monkeypatch.setattr(inotify, "_process", inotify._Process())
    heard = threading.Event()
    with caplog.at_level(logging.WARNING):
        cancel = inotify.watch_directory(str(tmp_path), heard.set)
    assert "by polling every 20 ms" in caplog.text
    (tmp_path / "x").touch()
    assert heard.wait(10)
    cancel()
    if inotify._process.watcher is not None:
        inotify._process.watcher.close()
