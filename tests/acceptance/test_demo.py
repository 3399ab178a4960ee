"""The demo: once with each engine, and its proof against runs that must not pass."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from pxrs.apps.cli import main
from pxrs.apps.demo.proof import Handled, Sent, prove

COMMAND = [sys.executable, "-m", "pxrs.apps.cli", "demo"]


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=280)


def is_running(pid: int) -> bool:
    """Whether a process is there. One that has ended and that nobody has waited for has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def wait_until_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still running: {pids}"
        time.sleep(0.05)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_the_demo_kills_a_consumer_and_proves_that_nothing_was_lost(engine: str, tmp_path: Path) -> None:
    shown = run_demo("--engine", engine, "--keep", str(tmp_path / "kept"))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "handled:  150 of 150 messages" in shown.stdout and "PROVED" in shown.stdout
    owners = re.findall(r"^([ABC]) +(\d+) +(\S+) +(?:yes|no)$", shown.stdout, re.MULTILINE)
    assert [(name, share) for name, _, share in owners] == [("A", "0-2"), ("B", "3-5"), ("C", "6-7")]
    assert "3 with sticky (as here), 5 with range" in shown.stdout
    pids = {int(pid) for _, pid, _ in owners}
    assert len(pids) == (3 if engine == "processes" else 1)
    if engine == "processes":
        assert f"kill -9 {owners[0][1]} (process A)" in shown.stdout
        assert not any(map(is_running, pids))
    lines = [json.loads(x) for m in "ABC" for x in (tmp_path / "kept" / f"consumer-{m}.jsonl").read_text().splitlines()]
    assert {line["number"] for line in lines} == set(range(150)) and {line["pid"] for line in lines} <= pids


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.xdist_group("spark-stories")
def test_the_demo_on_spark_shows_every_message_exactly_once(tmp_path: Path) -> None:
    shown = run_demo("--engine", "spark", "--keep", str(tmp_path / "kept"))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "handled:  150 of 150 messages" in shown.stdout and "repeated: 0, at most 0 were allowed" in shown.stdout
    assert "PROVED: every message is in the output exactly once, in order per key." in shown.stdout
    assert re.search(r"^story: \d+\.\d s", shown.stdout, re.MULTILINE)
    owners = re.findall(r"^([ABC]) +(\d+) +(\d+) +(\S+) +(?:yes|no)$", shown.stdout, re.MULTILINE)
    assert [(name, share) for name, _, _, share in owners] == [("A", "0-2"), ("B", "3-5"), ("C", "6-7")]
    drivers, jvms = {int(line[1]) for line in owners}, {int(line[2]) for line in owners}
    assert len(drivers | jvms) == 6
    assert f"kill -9 {owners[0][1]} (the driver of A)" in shown.stdout
    wait_until_ended([*drivers, *jvms])
    output = ds.dataset(tmp_path / "kept" / "output", format="parquet").to_table()
    assert sorted(output["number"].to_pylist()) == list(range(150))
    assert set(output["member"].to_pylist()) == {"A", "B", "C"} and set(output["pid"].to_pylist()) == drivers


def test_without_pyspark_the_demo_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["demo", "--engine", "spark"]) == 2
    assert "pip install 'pxrs[spark]'" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_no_consumer_outlives_a_demo_that_is_interrupted(number: signal.Signals) -> None:
    # A shell that starts tests in the background ignores Ctrl-C for them, and each process hands that on.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, preexec_fn=heard
    ) as process:
        assert process.stdout is not None
        pids = []
        for line in process.stdout:
            found = re.match(r"[ABC] +(\d+) ", line)
            pids += [int(found[1])] if found else []
            if len(pids) == 3:
                break
        process.send_signal(number)
        process.wait(60)
    assert process.returncode in (130, -signal.SIGKILL)
    wait_until_ended(pids)


def test_processes_need_a_registry_that_they_can_share() -> None:
    shown = run_demo("--registry", "memory:")
    assert shown.returncode == 1 and "ACROSS_PROCESSES" in shown.stderr


def test_files_are_kept_in_an_empty_directory_only(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    shown = run_demo("--keep", str(tmp_path))
    assert shown.returncode == 1 and "is not empty" in shown.stderr and (tmp_path / "mine").exists()


def test_an_engine_that_is_not_there_is_wrong_usage() -> None:
    shown = run_demo("--engine", "steam")
    assert shown.returncode == 2 and "'processes', 'threads'" in shown.stderr


# ---- the proof ------------------------------------------------------------------------------------------------------

SENT = [Sent(n, "ab"[n % 2], n % 2, n // 2) for n in range(8)]
"""Key a in partition 0, key b in partition 1."""


def call(message: Sent, line: int, epoch: int = 1, member: str = "A") -> Handled:
    return Handled(member, 1, message.partition, message.offset, epoch, message.key, message.number, line)


def clean_run() -> list[Handled]:
    return [call(message, line) for line, message in enumerate(SENT)]


def test_a_clean_run_is_proved() -> None:
    proof = prove(SENT, clean_run(), {})
    assert proof.holds and (proof.sent, proof.handled, proof.keys, proof.repeated) == (8, 8, 2, 0)


def test_repeats_of_the_uncommitted_tail_are_proved_and_counted() -> None:
    takeover = [call(SENT[n], line, epoch=3, member="B") for line, n in enumerate((4, 6))]
    proof = prove(SENT, [*takeover, *clean_run()], {0: range(2, 4)})
    assert proof.holds and proof.repeated == 2


def test_a_lost_message_fails() -> None:
    proof = prove(SENT, clean_run()[:-1], {})
    assert proof.faults == ["not handled: messages 7"]


def test_a_repeat_below_the_checkpoint_fails() -> None:
    proof = prove(SENT, [*clean_run(), call(SENT[2], 0, epoch=3, member="B")], {0: range(2, 4)})
    assert proof.faults == ["repeated, though their checkpoint was stored: messages 2"]


def test_a_repeat_of_a_partition_that_never_moved_fails() -> None:
    proof = prove(SENT, [*clean_run(), call(SENT[7], 9)], {0: range(4)})
    assert proof.faults == ["repeated, though their checkpoint was stored: messages 7"]


def test_a_swap_within_a_key_fails() -> None:
    run = clean_run()
    run[4], run[6] = run[4]._replace(line=6), run[6]._replace(line=4)
    assert prove(SENT, run, {}).faults == ["out of order: keys a"]


def test_a_late_owner_that_skips_ahead_and_comes_back_fails() -> None:
    run = [c for c in clean_run() if c.number != 2] + [call(SENT[2], 0, epoch=5, member="B")]
    assert prove(SENT, run, {}).faults == ["out of order: keys a"]


def test_a_message_that_nobody_sent_fails() -> None:
    stranger = Handled("A", 1, 0, 4, 1, "a", 99, 50)
    assert prove(SENT, [*clean_run(), stranger], {}).faults[0] == "handled, but not as they were sent: messages 99"
