"""A tenant or a header's name that is not UTF-8 stops nobody."""

from __future__ import annotations

import pyarrow as pa
import pytest

import pxrs
from pxrs.errors import Refused
from pxrs.runtime.producer import table_input as tables
from pxrs.spark.write import task as sink_rows
from tests.runtime.support import eventually
from tests.tools.bad_text import bad_headers, bad_text

BAD = {"tenant": bad_text(b"Z\xfcrich"), "headers": bad_headers(b"\xff")}


def table(name: str) -> pa.Table:
    return pa.table({"key": pa.array([b"k"]), "value": pa.array([b"v"]), name: BAD[name]})


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_where_it_comes_in(name: str) -> None:
    with pxrs.open("memory:", partitions=1) as queue, queue.producer() as producer:
        with pytest.raises(Refused, match=f"column '{name}' holds a text that is not UTF-8"):
            producer.send_batch(table(name))
        assert sum(queue.ends().values()) == 0


@pytest.mark.parametrize("name", BAD)
def test_one_that_is_stored_already_is_handed_on_readable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "refuse_bad_text", lambda *_: None)  # as 0.5.1 did
    with pxrs.open("memory:", partitions=1) as queue:
        with queue.producer() as producer:
            producer.send_batch(table(name)).result(30)
        queue.group("g").create()
        assert queue.group("g").describe(patient=False).total_lag == 1
        seen: list[pxrs.Message] = []
        with queue.consumer("g", seen.append) as consumer:
            eventually(lambda: seen, "the message")
            assert consumer.error is None
        found = {"tenant": seen[0].tenant, "headers": seen[0].headers}[name]
        assert found == {"tenant": "Z\\xfcrich", "headers": {"\\xff": b"x"}}[name]


@pytest.mark.parametrize("name", BAD)
def test_the_writer_of_spark_refuses_it_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "_in_types_of_log", lambda group: group)
    batch = pa.RecordBatch.from_arrays([BAD[name]], names=[name])
    with pytest.raises(Refused, match=f"column '{name}' holds a text that is not UTF-8"):
        sink_rows.to_body(batch, None)  # type: ignore[arg-type]  # it is refused before anything is asked of the job
