"""The registry in PostgreSQL: all promises of a store, on a real server."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from pxrs.errors import Unavailable
from pxrs.io.address import parse
from pxrs.io.sql.postgres import ENDS_TRANSACTIONS, PostgresDriver
from pxrs.settings import Settings
from pxrs.stores.base import Store, Verdict
from pxrs.stores.sql.store import SqlStore
from pxrs.testing.servers.base import wait_until
from pxrs.testing.servers.names import table_name
from pxrs.testing.servers.postgres import PostgresServer
from pxrs.testing.stores.hooks import put, swap, value_of


def test_a_process_stopped_in_the_middle_of_a_pipeline_does_not_keep_rows_locked(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_server.url(str(tmp_path), options="timeout_ms=1500")
    rows = f"{table_name(str(tmp_path))}_rows"
    driver = PostgresDriver()
    with (
        closing(SqlStore.open(url, Settings())) as store,
        closing(driver.connect(parse(url, driver.default_port, any_option=True), 1.5)) as stopped,
    ):
        if stopped.info.server_version < ENDS_TRANSACTIONS:
            pytest.skip("PostgreSQL before 17 does not end transactions that are not idle")
        version = put(store, "a", b"before")
        wire = stopped.pgconn
        wire.enter_pipeline_mode()
        wire.send_query_params(f"UPDATE {rows} SET version = version RETURNING 1".encode(), [])
        wire.send_flush_request()  # and nothing that would end the transaction
        wire.flush()
        answer = wire.get_result()
        assert answer is not None and answer.ntuples == 1, "the row is not locked"
        wait_until(lambda: is_free(store, version), "the row is free again", 60)


def is_free(store: Store, version: int) -> bool:
    """A swap whose answer came too late may have been done: only of a free row that can be."""
    try:
        return swap(store, "a", version, b"after").verdict is Verdict.DONE or value_of(store, "a") == b"after"
    except Unavailable:
        return False
