"""The ground of a test: where a store is, and which faults can be made there. The fault scenarios run on every ground.

A ground of a server starts its own server process, and lets its clients go through a proxy. A ground of files has
neither: what cannot happen to it says so by ``lacks``.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Literal, Self

from pxrs.testing.proxy import Direction, Proxy
from pxrs.testing.servers.base import ServerProcess

Happening = Literal["restart", "pause", "lose", "cut_watch", "wipe", "restore"]


class Ground(ABC):
    """The place of one registry. ``with`` sets it up and takes it down."""

    name: ClassVar[str]
    """The name in the table of stores and scenarios."""
    lacks: ClassVar[dict[Happening, str]] = {}
    """The faults that cannot be made here, and why, in a few words."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The registry's URL, the same all the time."""

    def restart(self) -> None:
        """The server is killed (-9) and started again, with what was on disk."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stop the server in its tracks; connections stay open."""
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    @contextmanager
    def losing(self, direction: Direction) -> Iterator[None]:  # noqa: ARG002 - a hook
        """While the block runs, requests or replies are lost."""
        raise NotImplementedError
        yield

    @contextmanager
    def without_watch(self) -> Iterator[None]:
        """While the block runs, the stream of changes is broken and cannot be made again; everything else works."""
        raise NotImplementedError
        yield

    @abstractmethod
    def wipe(self) -> None:
        """Everything that was stored is gone, under open handles."""

    @abstractmethod
    def save(self) -> None:
        """Make a copy of everything that is stored."""

    @abstractmethod
    def restore(self) -> None:
        """Replace what is stored by that copy, under open handles."""

    def set_up(self) -> None:
        """Start what must be started."""
        return

    def take_down(self) -> None:
        """Stop what was started."""
        return

    def __enter__(self) -> Self:
        self.set_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.take_down()


class ServerGround(Ground):
    """A store on a server of its own, behind a proxy. A subclass makes the server and the URL, and breaks the watch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = self.make_server(directory / "server")
        self._proxies: list[Proxy] = []
        self._copies = 0

    @abstractmethod
    def make_server(self, directory: Path) -> ServerProcess:
        """The server, not yet started. It has a ``port``."""

    @abstractmethod
    def url_at(self, address: str) -> str:
        """The registry's URL where the server is reached under this address."""

    @property
    def url(self) -> str:
        return self.url_at(self.proxy.address)

    @property
    def proxy(self) -> Proxy:
        return self._proxies[0]

    def set_up(self) -> None:
        self.server.start()
        self._proxies.append(Proxy("127.0.0.1", self.server.port))

    def take_down(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        self.server.kill()

    def restart(self) -> None:
        self.server.restart()

    def pause(self) -> None:
        self.server.pause()

    def resume(self) -> None:
        self.server.resume()

    @contextmanager
    def losing(self, direction: Direction) -> Iterator[None]:
        with self.proxy.losing(direction):
            yield

    def wipe(self) -> None:
        self.server.wipe()

    def save(self) -> None:
        self._copies += 1
        self.server.save(self._copy)

    def restore(self) -> None:
        self.server.restore(self._copy)

    @property
    def _copy(self) -> Path:
        return self.directory / f"copy-{self._copies}"


class FileGround(Ground):
    """A store in files of one directory."""

    lacks: ClassVar[dict[Happening, str]] = {
        "restart": "no server",
        "pause": "no server",
        "lose": "no network",
    }

    def __init__(self, directory: Path) -> None:
        self.place = directory / "place"
        self.place.mkdir(parents=True)
        self._copy = directory / "copy"

    def wipe(self) -> None:
        for path in self.place.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def save(self) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self.place, self._copy, symlinks=True)

    def restore(self) -> None:
        self.wipe()
        shutil.copytree(self._copy, self.place, symlinks=True, dirs_exist_ok=True)
