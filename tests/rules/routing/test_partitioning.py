"""Routing: reductions, kinds of keys, and that one key and many keys always agree."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import unicodedata
import uuid
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pxrs.errors import BadKey, BadSetting
from pxrs.rules.routing.keys import CHUNK, key_bytes
from pxrs.rules.routing.partitioner import Partitioner, jump, round_robin
from pxrs.rules.routing.short_keys import ENOUGH

HASHES = ["xxh64", "xxh64-spark", "murmur3_128", "murmur3_32", "sha256", "java", "kafka"]
REDUCTIONS = ["pmod", "abs", "jump", "mask"]
EVERY_WAY = list(product(HASHES, REDUCTIONS))

text_keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
plain_keys = st.one_of(text_keys, st.binary(max_size=80), st.uuids(), st.binary(max_size=9).map(bytearray))


@pytest.mark.parametrize(("hashing", "reduce"), EVERY_WAY)
@given(keys=st.lists(text_keys, max_size=60), partitions=st.integers(1, 65_536))
@settings(max_examples=25, deadline=None)
def test_many_answer_as_one(hashing: str, reduce: str, keys: list[str], partitions: int) -> None:
    routing = Partitioner(partitions, hashing, reduce)
    expected = [routing.partition(key) for key in keys]
    data = [key.encode() for key in keys]
    forms: list[Any] = [keys, tuple(keys), iter(keys), data, np.array(keys, dtype=object)]
    forms += [pa.array(keys, pa.string()), pa.array(data, pa.large_binary())]
    for form in forms:
        answer = routing.partitions_of(form)
        assert answer.dtype == np.int32
        assert answer.tolist() == expected


@pytest.mark.parametrize("hashing", [name for name in HASHES if name != "java"])
@given(keys=st.lists(plain_keys, max_size=40), partitions=st.integers(1, 300))
@settings(max_examples=25, deadline=None)
def test_many_answer_as_one_for_mixed_kinds(hashing: str, keys: list[Any], partitions: int) -> None:
    for reduce in REDUCTIONS:
        routing = Partitioner(partitions, hashing, reduce)
        assert routing.partitions_of(keys).tolist() == [routing.partition(key) for key in keys]


@given(hashed=st.integers(-(2**63), 2**63 - 1), count=st.integers(1, 65_536))
def test_reductions_are_what_they_are_called(hashed: int, count: int) -> None:
    def own(_data: bytes) -> int:
        return hashed

    java_remainder = hashed % count - (count if hashed < 0 and hashed % count else 0)
    expected = {
        "pmod": hashed % count,
        "abs": abs(java_remainder),
        "jump": jump(hashed % 2**64, count),
        "mask": (hashed & 0x7FFFFFFF) % count,
    }
    for reduce, partition in expected.items():
        assert Partitioner(count, own, reduce).partition("x") == partition
        assert Partitioner(count, own, reduce).partitions_of(["x"]).tolist() == [partition]


def test_pmod_and_abs_of_negative_hashes() -> None:
    # "foobar" is -790332482 under murmur2 (Kafka's own test)
    assert Partitioner(10, "kafka", "pmod").partition("foobar") == 8
    assert Partitioner(10, "kafka", "abs").partition("foobar") == 2
    assert Partitioner(10, "kafka", "mask").partition("foobar") == (-790332482 & 0x7FFFFFFF) % 10


def test_jump_takes_the_unsigned_value() -> None:
    # go-jump's vectors: key 0xdeadbeef over 18 buckets is 16; as a sign-extended number it is another key
    def deadbeef(_data: bytes) -> int:
        return 0xDEADBEEF

    assert Partitioner(18, deadbeef, "jump").partition("x") == 16
    assert Partitioner(18, deadbeef, "jump").partitions_of(["x"]).tolist() == [16]


@pytest.mark.parametrize("key", ["HZcxf_", "polygenelubricants"])
def test_b63_smallest_integer_is_never_a_negative_partition(key: str) -> None:
    for reduce in REDUCTIONS:
        for count in range(1, 1025):
            routing = Partitioner(count, "java", reduce)
            assert 0 <= routing.partition(key) < count
            assert routing.partitions_of([key]).tolist() == [routing.partition(key)]
    assert Partitioner(1000, "java", "abs").partition(key) == 648


def test_b63_smallest_64_bit_integer() -> None:
    def smallest(_data: bytes) -> int:
        return -(2**63)

    for reduce, count in product(REDUCTIONS, range(1, 1025)):
        routing = Partitioner(count, smallest, reduce)
        assert 0 <= routing.partition("x") < count
        assert routing.partitions_of(["x"]).tolist() == [routing.partition("x")]


_PRINT_ROUTES = """
import hashlib, itertools
from pxrs.rules.routing.short_keys import ENOUGH
from pxrs.rules.routing.partitioner import Partitioner
keys = [f"key-{n}" for n in range(10_000)]
seen = hashlib.sha256()
for hashing, reduce in itertools.product(%r, %r):
    seen.update(Partitioner(97, hashing, reduce).partitions_of(keys).astype("<i4").tobytes())
print(seen.hexdigest())
"""


@pytest.mark.processes
@pytest.mark.slow
def test_b64_equal_in_processes_with_other_hash_seeds() -> None:
    def run(seed: str) -> str:
        code = _PRINT_ROUTES % (HASHES, REDUCTIONS)
        done = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return done.stdout.strip()

    here = hashlib.sha256()
    for hashing, reduce in EVERY_WAY:
        routing = Partitioner(97, hashing, reduce)
        here.update(np.array([routing.partition(f"key-{n}") for n in range(10_000)], "<i4").tobytes())
    assert {run("0"), run("1"), run("4242")} == {here.hexdigest()}


@pytest.mark.parametrize(("hashing", "reduce"), EVERY_WAY)
def test_keys_spread(hashing: str, reduce: str) -> None:
    keys = [f"acct-{number}" for number in range(1000)]
    counts = Counter(Partitioner(8, hashing, reduce).partitions_of(keys).tolist())
    assert sorted(counts) == list(range(8))
    assert min(counts.values()) > 50


@pytest.mark.parametrize(("hashing", "reduce"), EVERY_WAY)
def test_in_range_for_every_count(hashing: str, reduce: str) -> None:
    keys = [f"acct-{number}" for number in range(300)]
    for count in range(1, 101):
        answer = Partitioner(count, hashing, reduce).partitions_of(keys)
        assert answer.min() >= 0 and answer.max() < count


def test_contract_example() -> None:
    routing = Partitioner(partitions=256, hash="xxh64", reduce="jump")
    assert routing.partition("ch_general") == routing.partition(b"ch_general") == 25
    assert routing.partitions_of(["ch_general"] * 3).tolist() == [25] * 3
    assert repr(routing) == "Partitioner(partitions=256, hash='xxh64', reduce='jump')"
    assert routing == Partitioner(256, "xxh64", "jump") != Partitioner(256, "xxh64", "pmod")
    assert pickle.loads(pickle.dumps(routing)).partition("a") == routing.partition("a")


def test_defaults_are_recorded_by_name() -> None:
    assert Partitioner() == Partitioner(16, "xxh64-spark", "pmod")


class TestB65Keys:
    def test_b65_none_is_not_hashed(self) -> None:
        with pytest.raises(BadKey, match="round robin"):
            Partitioner(8).partition(None)

    def test_b65_nulls_among_many_are_marked(self) -> None:
        routing = Partitioner(8)
        a = routing.partition("a")
        for keys in (["a", None, "a"], pa.array(["a", None, "a"]), np.array(["a", None, "a"], dtype=object)):
            assert routing.partitions_of(keys).tolist() == [a, -1, a]
        assert routing.partitions_of(pa.nulls(2)).tolist() == [-1, -1]

    @pytest.mark.parametrize(("hashing", "reduce"), EVERY_WAY)
    def test_b65_empty_and_huge(self, hashing: str, reduce: str) -> None:
        huge = "é" * 100_000
        routing = Partitioner(1000, hashing, reduce)
        keys = ["", huge, "short"]
        assert routing.partitions_of(keys).tolist() == [routing.partition(key) for key in keys]

    def test_b65_text_is_its_utf8(self) -> None:
        for key in ("acct-42", "é", "禅道", "\U0001f4b0", "a\0b"):
            for made in (key.encode(), bytearray(key.encode()), memoryview(key.encode())):
                assert Partitioner(1000).partition(key) == Partitioner(1000).partition(made)

    def test_b65_nothing_is_normalised(self) -> None:
        nfc, nfd = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
        assert nfc != nfd
        assert Partitioner(65_536).partition(nfc) != Partitioner(65_536).partition(nfd)

    def test_b65_bytes_that_are_no_utf8(self) -> None:
        routing = Partitioner(1000)
        assert routing.partitions_of([b"\xff\xfe"]).tolist() == [routing.partition(b"\xff\xfe")]
        with pytest.raises(BadKey, match="not UTF-8"):
            Partitioner(8, "java").partition(b"\xff\xfe")

    @pytest.mark.parametrize("keys", [["ok", "a\ud800b"], ["ok", None, "a\ud800b"]])
    def test_b65_lone_surrogate_is_named(self, keys: list[str]) -> None:
        for ask in (lambda: Partitioner(8).partition("a\ud800b"), lambda: Partitioner(8).partitions_of(keys)):
            with pytest.raises(BadKey, match="lone surrogate at position 1") as caught:
                ask()
            assert r"'a\ud800b'" in str(caught.value)

    def test_b65_long_keys_are_cut_in_texts(self) -> None:
        with pytest.raises(BadKey) as caught:
            Partitioner(8).partition("x" * 1_000_000 + "\ud800")
        assert len(str(caught.value)) < 200

    @pytest.mark.parametrize("key", [1, 1.5, True, ("a",), object()])
    def test_b65_other_types_are_named(self, key: object) -> None:
        for ask in (lambda: Partitioner(8).partition(key), lambda: Partitioner(8).partitions_of(["a", key])):
            with pytest.raises(BadKey, match=f"not {type(key).__name__}"):
                ask()

    def test_b65_uuid_is_two_little_endian_longs(self) -> None:
        key = uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
        assert key_bytes(key).hex() == "0706050403020100" + "0f0e0d0c0b0a0908"


KEYS = ["a", "bb", "é", "", "禅"]


@pytest.mark.parametrize(
    "form",
    [
        pa.array(KEYS, pa.string()),
        pa.array(KEYS, pa.large_string()),
        pa.array(KEYS, pa.string_view()),
        pa.array([key.encode() for key in KEYS], pa.binary()),
        pa.array([key.encode() for key in KEYS], pa.large_binary()),
        pa.array(KEYS).dictionary_encode(),
        pa.array(["gone", *KEYS, "gone"]).slice(1, len(KEYS)),
        pa.chunked_array([KEYS[:2], [], KEYS[2:]]),
        np.array(KEYS),
        np.array(KEYS, dtype=object),
        np.array([key.encode() for key in KEYS]),
        dict.fromkeys(KEYS),
    ],
    ids=lambda form: str(getattr(form, "type", getattr(form, "dtype", type(form)))),
)
def test_every_form_of_many_keys(form: Any) -> None:
    routing = Partitioner(1000)
    assert routing.partitions_of(form).tolist() == [routing.partition(key) for key in KEYS]


def test_fixed_size_binary_and_uuid_arrays() -> None:
    keys = [uuid.UUID(int=number) for number in range(3)]
    routing = Partitioner(1000, "murmur3_128", "abs")
    fixed = pa.array([key.bytes for key in keys], pa.binary(16))
    assert routing.partitions_of(fixed).tolist() == [routing.partition(key.bytes) for key in keys]
    typed = pa.ExtensionArray.from_storage(pa.uuid(), fixed)
    assert routing.partitions_of(typed).tolist() == [routing.partition(key) for key in keys]


def test_more_keys_than_one_chunk() -> None:
    keys = [f"key-{number}" for number in range(CHUNK * 2 + 3)]
    routing = Partitioner(1000, "xxh64", "jump")
    sample = [*range(0, len(keys), 997), CHUNK - 1, CHUNK, 2 * CHUNK, len(keys) - 1]
    for form in (keys, pa.array(keys), np.array(keys)):
        answer = routing.partitions_of(form)
        assert len(answer) == len(keys)
        assert answer[sample].tolist() == [routing.partition(keys[place]) for place in sample]


def _agree(routing: Partitioner, keys: list[Any]) -> None:
    expected = [-1 if key is None else routing.partition(key) for key in keys]
    assert routing.partitions_of(keys).tolist() == expected


@pytest.mark.parametrize("hashing", ["xxh64", "xxh64-spark"])
@pytest.mark.parametrize("length", range(34))
def test_many_short_keys_of_one_length(hashing: str, length: int) -> None:
    data = hashlib.shake_256(b"keys").digest(ENOUGH * length)
    keys: list[Any] = [data[n * length : (n + 1) * length] for n in range(ENOUGH)]
    routing = Partitioner(65_536, hashing)
    _agree(routing, keys)
    expected = [routing.partition(key) for key in keys]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        ours = pa.array([b"before", *keys, b"after"], kind).slice(1, ENOUGH)
        assert routing.partitions_of(ours).tolist() == expected
    _agree(routing, [*keys[:-1], None])
    _agree(routing, [None, *keys])


@pytest.mark.parametrize(
    "keys",
    [
        [f"{n % 7 * 'x'}{n % 10}" for n in range(8 * ENOUGH)],
        [f"{n % 31 * 'x'}" for n in range(2 * ENOUGH)],
        [f"{n:040}" for n in range(ENOUGH)],
        [*(f"{n:08}" for n in range(2 * ENOUGH)), "long" * 20],
        ["é" if n % 2 else b"\xff" for n in range(2 * ENOUGH)],
        [None] * ENOUGH,
        [uuid.UUID(int=n) for n in range(ENOUGH)],
        [bytearray(b"x%d" % (n % 10)) for n in range(ENOUGH)],
    ],
    ids=["few lengths", "many lengths", "long", "one long", "mixed kinds", "nulls", "uuids", "bytearrays"],
)
def test_chunks_for_the_fast_way_and_not(keys: list[Any]) -> None:
    _agree(Partitioner(1000), keys)


def test_large_chunks_refuse_like_small_ones() -> None:
    for bad, why in (("a\ud800b", "lone surrogate"), (7, "not int"), (float("nan"), "not float")):
        with pytest.raises(BadKey, match=why):
            Partitioner(8).partitions_of([*(f"{n:08}" for n in range(2 * ENOUGH)), bad])


def test_large_arrays_of_other_kinds() -> None:
    keys = [uuid.UUID(int=number) for number in range(ENOUGH)]
    fixed = pa.array([key.bytes for key in keys], pa.binary(16))
    typed = pa.ExtensionArray.from_storage(pa.uuid(), fixed)
    routing = Partitioner(1000)
    assert routing.partitions_of(fixed).tolist() == [routing.partition(key.bytes) for key in keys]
    assert routing.partitions_of(typed).tolist() == [routing.partition(key) for key in keys]
    assert routing.partitions_of(pa.nulls(ENOUGH)).tolist() == [-1] * ENOUGH
    with pytest.raises(BadKey, match="not int"):
        routing.partitions_of(pa.array(range(ENOUGH)))


def test_no_keys() -> None:
    forms: list[Any] = [[], np.array([]), pa.array([], pa.string()), pa.chunked_array([], pa.string())]
    for nothing in forms:
        answer = Partitioner(8).partitions_of(nothing)
        assert answer.dtype == np.int32 and len(answer) == 0


@pytest.mark.parametrize("one", ["abc", b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_one_key_where_many_are_wanted(one: Any) -> None:
    with pytest.raises(BadKey, match="many keys are wanted"):
        Partitioner(8).partitions_of(one)


@pytest.mark.parametrize(
    ("keys", "why"), [(np.array([["a"]]), "one dimension"), (np.array([1]), "not int"), (pa.array([1]), "not int")]
)
def test_arrays_of_no_keys(keys: Any, why: str) -> None:
    with pytest.raises(BadKey, match=why):
        Partitioner(8).partitions_of(keys)


@pytest.mark.parametrize("count", [0, -1, 65_537, 8.0, "8", True, None])
def test_partition_counts_out_of_range(count: Any) -> None:
    with pytest.raises(BadSetting, match="1 to 65536"):
        Partitioner(count)


@pytest.mark.parametrize("name", ["modulo", "", None, ["pmod"]])
def test_unknown_reduce_lists_the_known(name: Any) -> None:
    with pytest.raises(BadSetting, match="pmod, abs, jump, mask"):
        Partitioner(8, reduce=name)


def test_unknown_hash_lists_the_known() -> None:
    with pytest.raises(BadSetting, match="xxh64-spark, xxh64, murmur3_128, murmur3_32, sha256, java, kafka"):
        Partitioner(8, "md5")


def test_round_robin() -> None:
    assert round_robin(6, 5, 8).tolist() == [6, 7, 0, 1, 2]
    assert round_robin(2**70, 2, 8).tolist() == [0, 1]
    assert round_robin(0, 0, 8).tolist() == []
    assert round_robin(0, 3, 1).dtype == np.int32


@pytest.mark.parametrize("hashing", ["xxh64-spark", "murmur3_32", "java"])
def test_the_hash_of_a_key_is_what_its_partition_is_made_from(hashing: str) -> None:
    routing = Partitioner(7, hashing, "pmod")
    for key in ("", "a", "Zürich", b"\x00"):
        assert routing.hash_of(key) % 7 == routing.partition(key)
