"""log seal, verify, repair and export: what the command line does to the files of a log."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import RecordBatch

import pxrs as library
from pxrs.logs.base import SCHEMA, Chunk
from pxrs.logs.file.log import FileLog
from tests.apps.cli.helpers import QUEUE, Pxrs, make_group, make_queue


@pytest.fixture
def full(pxrs: Pxrs, monkeypatch: pytest.MonkeyPatch) -> Pxrs:
    """A queue of one partition with four segments of five messages each."""
    monkeypatch.setenv("PXRS_SEGMENT_BYTES", "1")
    monkeypatch.setenv("PXRS_HOUSEKEEPING_MS", "3600000")
    make_queue(pxrs, partitions=1)
    with library.open(QUEUE, create=False) as queue, queue.producer() as producer:
        for number in range(4):
            for row in range(5):
                producer.send(f"k{row}", f"v{5 * number + row}", headers={"h": b"\xff"})
            producer.flush()
    return pxrs


def partition(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "partition-0"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# ---- seal and ls ----------------------------------------------------------------------------------------------------


def test_seal_shows_what_it_made_and_ls_shows_both_kinds(full: Pxrs, tmp_path: Path) -> None:
    made = json.loads(full("log", "seal", QUEUE, "-o", "json").out)
    assert [(row["partition"], row["file"], row["start"], row["end"], row["messages"]) for row in made] == [
        (0, f"{0:020d}.parquet", 0, 5, 5),
        (0, f"{5:020d}.parquet", 5, 10, 5),
    ]
    assert [row["bytes"] for row in made] == [(partition(tmp_path) / row["file"]).stat().st_size for row in made]
    assert json.loads(full("log", "seal", QUEUE, "-o", "json").out) == []
    [line] = json.loads(full("log", "ls", QUEUE, "-o", "json").out)
    files = [path for path in partition(tmp_path).iterdir() if path.suffix in (".arrow", ".parquet")]
    assert (line["sealed"], line["segments"], line["bytes"]) == (2, 2, sum(path.stat().st_size for path in files))
    times = [json.loads(text)["timestamp"] for text in full("log", "cat", QUEUE, "-o", "json").out.splitlines()]
    assert (line["oldest"], line["newest"]) == (times[0], times[-1])
    assert full("log", "cat", QUEUE).out == "".join(f"v{number}\n" for number in range(20))


def test_the_newest_time_is_known_when_the_last_segment_is_empty(full: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    [before] = json.loads(full("log", "ls", QUEUE, "-o", "json").out)
    stored = FileLog.chunks

    def chunks(log: FileLog, number: int) -> list[Chunk]:
        return [*stored(log, number), Chunk("arrow", "begun.arrow", 20, 20, 8, None)]

    monkeypatch.setattr(FileLog, "chunks", chunks)
    [line] = json.loads(full("log", "ls", QUEUE, "-o", "json").out)
    assert line["segments"] == before["segments"] + 1 and line["newest"] == before["newest"] is not None


def test_ls_of_an_empty_partition_has_no_times(pxrs: Pxrs) -> None:
    make_queue(pxrs, partitions=1)
    [line] = json.loads(pxrs("log", "ls", QUEUE, "-o", "json").out)
    assert line == {
        "partition": 0, "start": 0, "end": 0, "messages": 0, "sealed": 0, "segments": 0, "bytes": 0,
        "oldest": None, "newest": None,
    }  # fmt: skip


@pytest.mark.parametrize("verb", ["seal", "repair"])
def test_a_log_without_files_is_refused(pxrs: Pxrs, verb: str) -> None:
    import secrets

    name = f"memory:no-files-{secrets.token_hex(4)}"
    with library.open(name):
        shown = pxrs("log", verb, name, "--registry", "memory:")
    assert shown.code == 1 and "has no" in shown.err and shown.out == ""


# ---- verify and repair ----------------------------------------------------------------------------------------------


def statuses(pxrs: Pxrs, code: int) -> list[str]:
    shown = pxrs("log", "verify", QUEUE, "-o", "json")
    assert shown.code == code
    return [row["status"] for row in json.loads(shown.out)]


def test_verify_reads_sealed_files_too(full: Pxrs, tmp_path: Path) -> None:
    full("log", "seal", QUEUE)
    assert full("log", "verify", QUEUE).out.split() == ["PARTITION", "MESSAGES", "STATUS", "0", "20", "ok"]
    flip(partition(tmp_path) / f"{5:020d}.parquet", 40)
    shown = full("log", "verify", QUEUE)
    assert shown.code == 1 and "damaged" in shown.out and f"{5:020d}.parquet" in shown.err and "5 to 9" in shown.err


def test_verify_goes_on_behind_a_damage(full: Pxrs, tmp_path: Path) -> None:
    full("log", "seal", QUEUE)
    for base in (0, 5):
        flip(partition(tmp_path) / f"{base:020d}.parquet", 40)
    shown = full("log", "verify", QUEUE)
    assert shown.out.split()[3:] == ["0", "10", "damaged"], "ten of twenty are whole"
    assert "0 to 4" in shown.err and "5 to 9" in shown.err


def test_damage_before_a_group_is_no_lag_of_0(full: Pxrs, tmp_path: Path) -> None:
    full("log", "seal", QUEUE)
    make_group(full, "billing", "--to-latest")
    assert full("health", QUEUE).code == 0
    flip(partition(tmp_path) / f"{5:020d}.parquet", 40)
    assert full("health", QUEUE).code == 0, "the group does not need it any more"
    full("group", "seek", QUEUE, "billing", "--to-offset", 5, "--execute")
    shown = full("group", "describe", QUEUE, "billing", "--fail-if-lag", 14, "-o", "json")
    [line] = json.loads(shown.out)["partitions"]
    assert shown.code == 3 and (line["current_offset"], line["log_end_offset"], line["lag"]) == (5, 20, 15)
    assert f"{5:020d}.parquet" in line["error"]
    assert f"{5:020d}.parquet" in full("group", "describe", QUEUE, "billing").out
    health = full("health", QUEUE)
    assert health.code == 1 and "OK" not in health.out and "group 'billing', partition 0" in health.err


def test_verify_tells_what_a_crash_left_from_damage(full: Pxrs, tmp_path: Path) -> None:
    (partition(tmp_path) / "manifest.json.tmp").write_bytes(b"")
    flip(partition(tmp_path) / f"{0:020d}.index", -1)
    active = partition(tmp_path) / f"{15:020d}.arrow"
    active.write_bytes(active.read_bytes() + b"\xff\xff\xff\xff")
    shown = full("log", "verify", QUEUE, "-o", "json")
    [row] = json.loads(shown.out)
    assert shown.code == 0 and (row["messages"], row["status"], len(row["findings"])) == (20, "repairable", 3)
    assert all(text in shown.err for text in row["findings"])
    done = json.loads(full("log", "repair", QUEUE, "-o", "json").out)
    assert [step["action"] for step in done] == ["removed", "rebuilt", "cut"]
    assert statuses(full, 0) == ["ok"] and full("log", "repair", QUEUE, "-o", "json").out == "[]\n"


@pytest.mark.parametrize("gone", [True, False])
def test_a_lost_manifest_is_found_before_anything_is_opened_and_made_anew(
    full: Pxrs, tmp_path: Path, gone: bool
) -> None:
    full("log", "seal", QUEUE)
    manifest = partition(tmp_path) / "manifest.json"
    whole = manifest.read_bytes()
    if gone:
        manifest.unlink()
    else:
        flip(manifest, 5)
    assert statuses(full, 1) == ["damaged"]
    assert len(list(partition(tmp_path).glob("*.parquet"))) == 2, "looking at it has deleted nothing"
    done = full("log", "repair", QUEUE)
    assert done.code == 0 and "rebuilt" in done.out and manifest.read_bytes() == whole
    assert statuses(full, 0) == ["ok"]


def test_damaged_messages_are_cut_only_when_asked(full: Pxrs, tmp_path: Path) -> None:
    segment = partition(tmp_path) / f"{5:020d}.arrow"
    flip(segment, -20)
    told = full("log", "repair", QUEUE)
    assert told.code == 1 and "left" in told.out and segment.name in told.err
    assert "--cut-damaged would end it at offset 5: 15 messages, 5 to 19, would be kept aside" in told.err
    assert statuses(full, 1) == ["damaged"]
    cut = full("log", "repair", QUEUE, "--cut-damaged", "-o", "json")
    assert cut.code == 0 and {step["action"] for step in json.loads(cut.out)} == {"kept aside"}
    assert statuses(full, 0) == ["ok"] and full("log", "cat", QUEUE).out == "".join(f"v{n}\n" for n in range(5))
    assert len(list(partition(tmp_path).glob("*.cut-*"))) == 3


def test_acknowledged_messages_that_have_become_zeros_are_named_though_nobody_can_count_them(
    full: Pxrs, tmp_path: Path
) -> None:
    segment = partition(tmp_path) / f"{15:020d}.arrow"
    whole, begin = segment.read_bytes(), SCHEMA.serialize().size
    segment.write_bytes(whole[:begin] + bytes(len(whole) - begin))
    assert statuses(full, 1) == ["damaged"]
    told = full("log", "repair", QUEUE)
    assert told.code == 1 and "would end it at offset 15: an unknown number of messages would be kept aside" in told.err
    assert full("log", "repair", QUEUE, "--cut-damaged").code == 0 and statuses(full, 0) == ["ok"]


def test_retention_that_goes_on_meanwhile_is_no_damage(full: Pxrs, monkeypatch: pytest.MonkeyPatch) -> None:
    read, trims = FileLog.read, [10]

    def trim_and_read(self: FileLog, partition: int, offset: int, max_rows: int = 10_000) -> RecordBatch | None:
        while trims:
            self.trim(0, trims.pop())
        return read(self, partition, offset, max_rows)

    monkeypatch.setattr(FileLog, "read", trim_and_read)
    shown = full("log", "verify", QUEUE, "-o", "json")
    [row] = json.loads(shown.out)
    assert (shown.code, row["messages"], row["status"]) == (0, 10, "ok") and not trims


def test_repair_names_partitions_that_are_not_there(full: Pxrs) -> None:
    assert "has no partition 1" in full("log", "repair", QUEUE, "-p", 1).err
    assert full("log", "verify", QUEUE, "-p", 0).code == 0


# ---- export ---------------------------------------------------------------------------------------------------------


def test_export_as_files_is_a_file_for_each_message(full: Pxrs, tmp_path: Path) -> None:
    full("log", "seal", QUEUE)
    [row] = json.loads(full("log", "export", QUEUE, "out", "--as", "files", "-o", "json").out)
    assert row == {"partition": 0, "messages": 20, "file": "out/partition-0"}
    files = sorted((tmp_path / "out" / "partition-0").iterdir())
    assert [path.name for path in files] == [f"{offset:020d}.msg" for offset in range(20)]
    assert [path.read_text() for path in files] == [f"v{offset}" for offset in range(20)]


def test_export_as_parquet_keeps_every_column_and_adds_the_partition(full: Pxrs, tmp_path: Path) -> None:
    assert full("log", "export", QUEUE, "out").code == 0
    table = pq.read_table(tmp_path / "out" / "partition-0.parquet")
    assert table.column("offset").to_pylist() == list(range(20))
    assert set(table.column("partition").to_pylist()) == {0}
    assert table.column("value").to_pylist() == [b"v%d" % n for n in range(20)]
    assert table.column("headers")[0].as_py() == [{"key": "h", "value": b"\xff"}]


def test_export_as_text(full: Pxrs, tmp_path: Path) -> None:
    assert full("log", "export", QUEUE, "lines", "--as", "jsonl").code == 0
    lines = [json.loads(line) for line in (tmp_path / "lines" / "partition-0.jsonl").read_text().splitlines()]
    assert [(line["offset"], line["key"], line["value"]) for line in lines[:2]] == [(0, "k0", "v0"), (1, "k1", "v1")]
    assert full("log", "export", QUEUE, "cells", "--as", "csv").code == 0
    with (tmp_path / "cells" / "partition-0.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20 and (rows[7]["offset"], rows[7]["key"], rows[7]["value"]) == ("7", "k2", "v7")
    assert json.loads(rows[0]["headers"]) == {"h": "\\xff"}


def test_export_writes_only_where_nothing_is(full: Pxrs, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert full("log", "export", QUEUE, "out", "--as", "csv").code == 0
    again = full("log", "export", QUEUE, "out", "--as", "csv")
    assert again.code == 1 and "out is not empty" in again.err
    (tmp_path / "file").write_text("here")
    assert full("log", "export", QUEUE, "file").code == 1 and (tmp_path / "file").read_text() == "here"
    assert full("log", "export", QUEUE, "fresh", "-p", 3).code == 1 and not (tmp_path / "fresh").exists()


@pytest.mark.parametrize("place", ["orders/out", "orders/partition-0/out", "orders/../orders/out"])
def test_export_into_the_queue_itself_is_refused(full: Pxrs, tmp_path: Path, place: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    shown = full("log", "export", QUEUE, place)
    assert shown.code == 1 and "inside the queue's own directory" in shown.err and sorted(tmp_path.rglob("*")) == before


def test_export_to_an_impossible_place_is_one_plain_line(full: Pxrs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    shown = full("log", "export", QUEUE, "file/out")
    assert (shown.code, shown.err) == (1, "pxrs: error: file/out: Not a directory\n")
