"""A MariaDB server for tests: started, killed, paused, wiped and started again.

    # conftest.py
    from pxrs.testing.servers.mariadb import mariadb_server

    # test_orders.py
    def test_orders(mariadb_server, tmp_path):
        queue = pxrs.open(log=f"file:{tmp_path}", registry=mariadb_server.url("orders"), partitions=4)
        ...

No Python package carries the server: ``python -m pxrs.testing.servers.install`` gets Debian's.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pxrs.testing.servers.base import ServerProcess, fixture_of, free_ports
from pxrs.testing.servers.install import UNPACKED, find_mariadb, libraries
from pxrs.testing.servers.names import table_name
from pxrs.testing.servers.templates import lay_out

USER, PASSWORD, DATABASE = "pxrs", "a-word-for-tests", "pxrs"
# A test kills processes, not machines: what the operating system has taken is kept without waiting for the disk.
_SETTINGS = {
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "8M",
    "innodb-fast-shutdown": "2",
    "max-connections": "200",
}
_SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
_FIRST_STATEMENTS = (
    f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
    f"GRANT ALL ON {DATABASE}.* TO {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
    f"GRANT PROCESS ON *.* TO {USER}@'127.0.0.1';\n"  # to see who waits for whom
)


class MariadbServer(ServerProcess):
    """One server with its data in a directory. ``settings`` are those of its configuration file."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory)
        [self.port] = free_ports(1)
        self._settings = {**_SETTINGS, **(settings or {})}
        found = find_mariadb()
        if found is None:
            raise FileNotFoundError("there is no mariadbd: run `python -m pxrs.testing.servers.install`")
        self.program = found

    def prepare(self) -> None:
        version = subprocess.run([self.program, "--version"], capture_output=True, text=True, env=_environment())
        lay_out(self.data, [version.stdout, *self._common], self._install_db)

    def _install_db(self, target: Path) -> None:
        """Do what mariadb-install-db does, which needs more packages than the server."""
        (target / "mysql").mkdir(parents=True)
        command = [str(self.program), *self._common, f"--datadir={target}", "--bootstrap", *self._messages]
        command += ["--log-warnings=0", "--max-allowed-packet=8M"]
        tables = b"".join((self._share / name).read_bytes() for name in _SYSTEM_TABLES)
        first = b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"
        done = subprocess.run(command, input=first + tables, capture_output=True, env=_environment())
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} has failed:\n{(done.stdout + done.stderr).decode()}")

    @property
    def _share(self) -> Path:
        return (UNPACKED if self._unpacked else Path("/")) / "usr" / "share" / "mysql"

    @property
    def _unpacked(self) -> bool:
        return UNPACKED in self.program.parents

    @property
    def _messages(self) -> list[str]:
        return [f"--lc-messages-dir={self._share}", f"--character-sets-dir={self._share / 'charsets'}"]

    @property
    def _common(self) -> list[str]:
        """Options for laying out the data as for running on them."""
        options = ["--no-defaults"] + (["--user=root"] if os.geteuid() == 0 else [])
        return [*options, f"--innodb-log-file-size={self._settings['innodb-log-file-size']}"]

    def command(self) -> Sequence[str]:
        first = self.directory / "first.sql"
        first.write_text(_FIRST_STATEMENTS)
        places = {
            "datadir": self.data,
            "socket": self.data / "socket",
            "pid-file": self.data / "pid",
            "init-file": first,
            "bind-address": "127.0.0.1",
            "port": self.port,
        }
        settings = {**places, **self._settings}
        options = (f"--{name}={value}" for name, value in settings.items())
        return [str(self.program), *self._common, *self._messages, *options]

    def popen(self, command: Sequence[str], log: BinaryIO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment())

    def is_ready(self) -> bool:
        """Whether the server greets clients: it listens only when its first statements have run."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            return len(connection.recv(16)) > 0
        return False

    def url(self, place: str, address: str = "", options: str = "") -> str:
        """The URL of a registry on this server: each place has its own tables."""
        where = f"{USER}:{PASSWORD}@{address or self.address}/{DATABASE}?table={table_name(place)}"
        return f"mysql://{where}{'&' + options if options else ''}"


def _environment() -> dict[str, str]:
    return {**os.environ, **libraries()}


mariadb_server = fixture_of(MariadbServer)


__all__ = ["MariadbServer", "mariadb_server"]
