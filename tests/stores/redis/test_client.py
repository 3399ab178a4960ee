"""Connections of the Redis client: none that is not whole is used again; a child waits for no lock of its parent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.connection import Connection

from pxrs.errors import BadUrl
from pxrs.io.address import parse
from pxrs.stores.redis.client import RedisClient
from pxrs.stores.redis.store import DEFAULT_PORT
from pxrs.testing.servers.valkey import ValkeyServer
from pxrs.testing.stores.sharing import in_forked_child

SECONDS = 10.0


@pytest.fixture
def client(valkey_server: ValkeyServer) -> Iterator[RedisClient]:
    client = client_of(valkey_server, "")
    yield client
    client.close()


def client_of(server: ValkeyServer, query: str) -> RedisClient:
    return RedisClient(parse(f"redis://default@127.0.0.1:{server.port}/3{query}", DEFAULT_PORT), 3, SECONDS)


def test_a_connection_that_could_not_begin_is_not_handed_out_as_ready(
    valkey_server: ValkeyServer, tmp_path: Path
) -> None:
    """The file of the password was being replaced; the next call went to database 0, without a user."""
    file = tmp_path / "password"
    client = client_of(valkey_server, f"?password_file={file}")
    with pytest.raises(BadUrl, match="password"):
        client.ask("PING")
    file.write_text("any")
    assert b" db=3 " in client.ask("CLIENT", "INFO")
    client.close()


def test_an_answer_that_nobody_has_read_is_not_taken_by_the_next_call(
    client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between question and answer."""
    assert client.ask("ECHO", "before") == b"before"
    seen: list[Any] = []

    def interrupted(connection: Any, *_: Any, **__: Any) -> None:
        seen.append(connection)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.ask("ECHO", "lost")
    assert seen[0]._sock is None
    assert client.ask("ECHO", "after") == b"after"


def test_a_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held(client: RedisClient) -> None:
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with client._pool._lock:
            held.set()
            free.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(SECONDS)
        assert in_forked_child(lambda: client.ask("ECHO", "child") == b"child", SECONDS) == 0
    finally:
        free.set()
        thread.join()
