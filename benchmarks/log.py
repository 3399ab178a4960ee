"""The log as fast as disk and memory allow: sending, sending batches, reading, handling, opening, and growth."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import pyarrow as pa

from benchmarks.harness import Result, without
from benchmarks.parts import log_growth, log_work, peers_kafka, peers_machine, peers_nats, peers_sqlite, peers_valkey
from benchmarks.parts.log_rounds import in_turns, median_ratio
from benchmarks.parts.log_work import KEYS, VALUE
from benchmarks.parts.sealed import run_sealed
from pxrs.runtime.producer import buffer

SUMMARY = "send, send_batch, read, handle: ours against Valkey streams, JetStream, Kafka's mock, SQLite and the machine"

_MOCK = "confluent-kafka (mock broker in memory)"


def run(quick: bool) -> Result:
    print("Kafka's side is librdkafka's mock cluster, in memory: it is no broker, and nothing is durable there")
    result = Result("log")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for part in (_sending, _batches, _reading, _handling, _opening, _growth, _sealed):
            part(place, quick, result)
    return result


# ---- one by one -----------------------------------------------------------------------------------------------------


def _sending(place: Path, quick: bool, result: Result) -> None:
    count = 300_000 if quick else 1_000_000
    syncs: list[int] = []
    with peers_valkey.valkey(_folder(place)) as valkey, peers_nats.nats(_folder(place)) as nats:
        seen = in_turns(
            {
                "ours": lambda: count / _ours(place, count, syncs),
                "each counted": without(buffer, "takes_small", lambda: count / 4 / _ours(place, count // 4, [])),
                "pipelined XADD": lambda: count / 10 / peers_valkey.send(valkey, KEYS, VALUE, count // 10),
                _MOCK: lambda: count / 2 / peers_kafka.send(KEYS, VALUE, count // 2),
                f"{_MOCK}, no reports": lambda: count / 2 / peers_kafka.send(KEYS, VALUE, count // 2, reports=False),
                "JetStream": lambda: count / 60 / peers_nats.send(nats, KEYS, VALUE, count // 60),
                "SQLite": lambda: _inserted(place, count // 3),
            },
            3 if quick else 5,
        )
    result.figures["send, messages/s"] = median(seen["ours"])
    result.figures["send, messages/s, each counted"] = median(seen.pop("each counted"))
    result.figures["send, syncs"] = median(syncs)
    for peer in (name for name in seen if name != "ours"):
        result.peers[f"send: {peer}, messages/s"] = median(seen[peer])
        result.ratios[f"send / {peer}"] = median_ratio(seen["ours"], seen[peer])


def _ours(place: Path, count: int, syncs: list[int]) -> float:
    sent = log_work.send(_folder(place), count)
    syncs.append(sent.syncs)
    return sent.seconds


def _inserted(place: Path, count: int) -> float:
    return count / peers_sqlite.send(_folder(place) / "queue.db", KEYS, VALUE, count)


def _folder(place: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=place))


# ---- batches --------------------------------------------------------------------------------------------------------


def _batches(place: Path, quick: bool, result: Result) -> None:
    rows = 500_000 if quick else 2_000_000
    sizes: list[int] = []
    syncs: list[int] = []
    contestants: dict[str, Callable[[], float]] = {}
    for kind in ("by key", "in runs", "mixed"):
        contestants[kind] = partial(_batch, place, log_work.table(rows, kind), sizes, syncs)
    contestants["raw"] = lambda: peers_machine.raw_write(place, sizes[-1]) / sizes[-1]
    seen = in_turns(contestants, 5)
    titles = {"by key": "keyed", "in runs": "partitions given, in runs", "mixed": "partitions given, mixed"}
    for kind, title in titles.items():
        result.figures[f"send_batch, {title}, MB/s"] = 1e-6 / median(seen[kind])
        result.ratios[f"send_batch, {title} / raw write + fsync"] = median_ratio(seen["raw"], seen[kind])
    result.figures["send_batch, keyed, messages/s"] = rows / sizes[0] / median(seen["by key"])
    result.figures["send_batch, syncs"] = median(syncs)
    result.peers["raw write + fsync, MB/s"] = 1e-6 / median(seen["raw"])


def _batch(place: Path, messages: pa.Table, sizes: list[int], syncs: list[int]) -> float:
    """Seconds for each byte: the segments differ a little in size."""
    sent = log_work.send_batch(_folder(place), messages)
    sizes.append(sent.size)
    syncs.append(sent.syncs)
    return sent.seconds / sent.size


# ---- reading and handling -------------------------------------------------------------------------------------------


def _reading(place: Path, quick: bool, result: Result) -> None:
    rows = 2_000_000 if quick else 6_000_000
    home = _folder(place)
    with log_work.new_queue(home) as queue:
        log_work.fill(queue, rows, log_work.table(500_000))
        directory = next(path.parent for path in home.rglob("queue.json"))
        size = log_work.stored_bytes(home)
        seen = in_turns(
            {"ours": lambda: log_work.read_all(str(directory)), "copy": lambda: peers_machine.memory_copy(size)}, 5
        )
    result.figures["read as Arrow batches, messages/s"] = rows / median(seen["ours"])
    result.figures["read as Arrow batches, MB/s"] = size / 1e6 / median(seen["ours"])
    result.peers["memory copy, MB/s"] = size / 1e6 / median(seen["copy"])
    result.ratios["read as Arrow batches / memory copy"] = median_ratio(seen["copy"], seen["ours"])


def _handling(place: Path, quick: bool, result: Result) -> None:
    rows, rounds = (1_000_000, 3) if quick else (3_000_000, 5)
    few = rows // 30
    home, ours = _folder(place), []
    peers: dict[str, list[float]] = {"XREADGROUP + XACK": [], "SQLite": []}
    with log_work.new_queue(home) as queue, peers_valkey.valkey(_folder(place)) as port:
        log_work.fill(queue, rows, log_work.table(500_000))
        directory = next(path.parent for path in home.rglob("queue.json"))
        for number in range(rounds):
            ours.append(log_work.consume(str(directory), f"group-{number}", rows))
            peers_valkey.send(port, KEYS, VALUE, few)
            peers["XREADGROUP + XACK"].append(few / peers_valkey.consume(port, _nothing, few))
            table = _folder(place) / "queue.db"
            peers_sqlite.send(table, KEYS, VALUE, few)
            peers["SQLite"].append(few / peers_sqlite.consume(table, _nothing, few))
    rates = [rows / consumed.seconds for consumed in ours]
    result.figures["handler, messages/s, one core"] = median(rates)
    result.figures["handler, messages per CPU second"] = median(rows / consumed.cpu_seconds for consumed in ours)
    for peer, seen in peers.items():
        result.peers[f"handler: {peer}, messages/s"] = median(seen)
        result.ratios[f"handler / {peer}"] = median_ratio(rates, seen)


def _nothing(_value: bytes) -> None:
    """What a handler does on both sides."""


# ---- growth ---------------------------------------------------------------------------------------------------------


def _opening(place: Path, quick: bool, result: Result) -> None:
    opened = log_growth.opening(place, 1_024, 200 if quick else 1_000)
    result.figures["open 1,024 partitions, seconds"] = opened.seconds
    result.figures["open 1,024 partitions, MB more"] = opened.megabytes
    result.figures["open 1,024 partitions, MB of manifests"] = opened.manifest_megabytes


def _growth(place: Path, quick: bool, result: Result) -> None:
    sizes = [1, 10, 100, 1_000] + ([] if quick else [10_000])
    counts = [1, 8, 32, 128, 1_024]
    by_size = log_growth.with_size(_folder(place), sizes)
    by_count = log_growth.with_partitions(_folder(place), counts)
    for what, found in (("MB", by_size), ("partitions", by_count)):
        for number, rates in found.items():
            result.figures[f"append MB/s at {number} {what}"] = rates.append
            result.figures[f"read MB/s at {number} {what}"] = rates.read
            result.peers[f"raw write + sync, MB/s at {number} {what}"] = rates.raw
    if not quick:
        _larger_tables(place, result)
    small = log_growth.with_small_batches(_folder(place), 128)
    result.figures["read MB/s at 1 partition, batches as small as at 128"] = small
    result.ratios["read at 128 partitions / at 1 with batches as small (1 = flat)"] = by_count[128].read / small
    for name, first, last in (
        (f"{sizes[-1]} MB / at 1 MB", by_size[sizes[0]], by_size[sizes[-1]]),
        ("128 partitions / at 1", by_count[1], by_count[128]),
    ):
        share = last.append / last.raw / (first.append / first.raw)
        result.ratios[f"append at {name}, each in terms of raw writing there (1 = flat)"] = share
    for verb in ("append", "read"):
        ends = [getattr(by_size[number], verb) for number in (sizes[0], sizes[-1])]
        result.ratios[f"{verb} at {sizes[-1]} MB / at 1 MB (1 = flat)"] = ends[1] / ends[0]
        few, many = getattr(by_count[1], verb), getattr(by_count[128], verb)
        result.ratios[f"{verb} at 128 partitions / at 1 (1 = flat)"] = many / few


def _larger_tables(place: Path, result: Result) -> None:
    """Over more partitions a table becomes smaller batches, and each has its price. So also ten times the rows."""
    rows = 10 * log_growth.PROBE_ROWS
    found = log_growth.with_partitions(_folder(place), [1, 128], rows)
    for verb in ("append", "read"):
        few, many = (getattr(found[count], verb) for count in (1, 128))
        name = f"{verb} at 128 partitions / at 1, tables of {rows / 1e6:g} M (1 = flat)"
        result.figures[f"{verb} MB/s at 128 partitions, tables of {rows / 1e6:g} M"] = many
        result.ratios[name] = many / few


def picture(result: Result, path: Path) -> None:
    """The rates over the size of the log and over the number of its partitions."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axes, unit in zip(both, ("MB", "partitions"), strict=True):
        for verb, colour in (("append", "#3b7a9e"), ("read", "#c8772b")):
            begin, end = f"{verb} MB/s at ", f" {unit}"
            points = {
                int(name[len(begin) : -len(end)]): value
                for name, value in result.figures.items()
                if name.startswith(begin) and name.endswith(end)
            }
            axes.plot(list(points), list(points.values()), marker="o", color=colour, label=verb)
        axes.set(xscale="log", yscale="log", xlabel=f"{unit} in the queue", title=f"rates over {unit}")
        axes.grid(alpha=0.3)
    both[0].set_ylabel("MB/s")
    both[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


# ---- history on Spark -----------------------------------------------------------------------------------------------


def _sealed(place: Path, quick: bool, result: Result) -> None:
    if quick:
        run_sealed(result, _folder(place), 3_000_000, warm_up=1, rounds=3)
    else:
        run_sealed(result, _folder(place), 10_000_000, warm_up=3, rounds=7)
