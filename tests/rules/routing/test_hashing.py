"""Every hash against numbers that others have published, and a user's own hashes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from pxrs.errors import BadKey, BadSetting
from pxrs.rules.routing import hashes as hashing
from pxrs.rules.routing.hashes import find_hash, known_hashes, register_hash, signed
from pxrs.rules.routing.keys import key_bytes
from pxrs.rules.routing.partitioner import Partitioner, jump
from pxrs.rules.routing.vectorised import jump_buckets

VECTORS = Path(__file__).parents[4] / "shared" / "vectors"


def published(name: str, otherwise: Any) -> Any:
    """The whole published file where it lies beside the repository, else the part of it restated here."""
    path = VECTORS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else otherwise


def both(name: str, data: bytes) -> int:
    """The hash of one key, after seeing that the vectorised forms say the same: alone, and in company."""
    made = find_hash(name)
    value = made.one(data)
    assert made.many([data]).tolist() == [value]
    assert made.many([b"other", data] + [data] * 40)[1:].tolist() == [value] * 41
    return value


# Cyan4973/xxHash cli/xsum_sanity_check.c and cespare/xxhash xxhash_test.go
XXH64_STRINGS = {
    "": 0xEF46DB3751D8E999,
    "a": 0xD24EC4F1A98C6E5B,
    "as": 0x1C330FB2D66BE179,
    "asd": 0x631C37CE72A97393,
    "asdf": 0x415872F599CEA71E,
    "Call me Ishmael. Some years ago--never mind how long precisely-": 0x02A2E85470D6FD96,
}


@pytest.mark.parametrize(("text", "value"), XXH64_STRINGS.items())
def test_xxh64_restated(text: str, value: int) -> None:
    assert both("xxh64", text.encode()) == signed(value, 64)


def test_xxh64_spark_buffer() -> None:
    # apache/spark XXH64Suite.java, seed 0; and the 222 bytes of xxHash's own sanity check
    buffer = bytes.fromhex("9eff1f4b5e532fddb5544d2a952b57ae5dba74e9d3a64c983060c08000").ljust(101, b"\0")
    values = {1: 0x4FCE394CC88952D8, 4: 0x9256E58AA397AEF1, 8: 0xF74CB1451B32B8CF, 101: 0x0EAB543384F878AD}
    for length, value in values.items():
        assert both("xxh64", buffer[:length]) == signed(value, 64)
    assert both("xxh64", _sanity_buffer(222)) == signed(0xB641AE8CB691C174, 64)


def _sanity_buffer(length: int) -> bytes:
    state, made = 2654435761, bytearray()
    for _ in range(length):
        made.append(state >> 56 & 0xFF)
        state = state * 11400714785074694797 % 2**64
    return bytes(made)


def test_xxh64_spark_is_seed_42() -> None:
    # Spark's own documentation: xxhash64('Spark', array(123), 2) = 5602566077635097486, each value's hash being
    # the seed of the next, whole numbers as four little-endian bytes.
    seed = both("xxh64-spark", b"Spark") % 2**64
    for number in (123, 2):
        seed = xxhash.xxh64_intdigest(number.to_bytes(4, "little"), seed)
    assert seed == 5602566077635097486
    for key in (b"", b"Spark", b"acct-42", b"x" * 1000):
        assert both("xxh64-spark", key) == signed(xxhash.xxh64_intdigest(key, seed=42), 64)
        assert both("xxh64-spark", key) != both("xxh64", key)


@pytest.mark.parametrize("length", [*range(130), 255, 256, 1000])
def test_xxh64_of_every_length(length: int) -> None:
    data = _sanity_buffer(length)
    assert both("xxh64", data) == signed(xxhash.xxh64_intdigest(data), 64)


# apache/kafka UtilsTest.java and confluentinc/librdkafka rdmurmur2.c
MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
    "kafka": signed(3496464228, 32),
    "4": 1514888353,
    "": 275646681,
}


@pytest.mark.parametrize(("text", "value"), MURMUR2.items())
def test_kafka_restated(text: str, value: int) -> None:
    assert both("kafka", text.encode()) == value


def test_kafka_published() -> None:
    utils = {"vectors": [{"key_utf8": "foobar", "murmur2_signed": -790332482}]}
    rdkafka = {"vectors": [{"key_utf8": "1234", "murmur2_unsigned": 2680781588}]}
    found = published("kafka_murmur2", {"kafka_utils_test": utils, "librdkafka_unittest": rdkafka})
    for vector in found["kafka_utils_test"]["vectors"]:
        assert both("kafka", vector["key_utf8"].encode()) == vector["murmur2_signed"]
    for vector in found["librdkafka_unittest"]["vectors"]:
        assert both("kafka", vector["key_utf8"].encode()) == signed(vector["murmur2_unsigned"], 32)


def test_kafka_partitions_of_1000() -> None:
    # aio-libs/aiokafka tests/test_partitioner.py, compared there with Kafka's own partitioner
    expected = {b"": 681, b"a": 524, b"ab": 434, b"abc": 107, b"123456789": 566, b"\x00 ": 742}
    routing = Partitioner(1000, "kafka", "mask")
    assert {key: routing.partition(key) for key in expected} == expected
    assert routing.partitions_of(list(expected)).tolist() == list(expected.values())


# openjdk/jdk test/jdk/java/lang/String/HashCode.java and well-known strings
JAVA = {
    "": 0,
    " ": 32,
    "a": 97,
    "Hello": 69609650,
    "HZcxf_": -2147483648,
    "polygenelubricants": -2147483648,
    "FB": 2236,
    "Ea": 2236,
    "AaBB": 2031744,
}


@pytest.mark.parametrize(("text", "value"), JAVA.items())
def test_java_restated(text: str, value: int) -> None:
    assert both("java", text.encode()) == value


def test_java_published() -> None:
    restated = {
        "openjdk_test": {"vectors": [{"s": " ", "hashCode": 32}]},
        "others": [{"s": "BBBB", "hashCode": 2031744}],
    }
    found = published("java_string_hashcode", restated)
    for vector in [*found["openjdk_test"]["vectors"], *found["others"]]:
        assert both("java", vector["s"].encode()) == vector["hashCode"]


def test_java_counts_utf16_units() -> None:
    # U+1F4B0 is the two units D83D DCB0
    assert both("java", "\U0001f4b0".encode()) == 0xD83D * 31 + 0xDCB0
    assert both("java", "é".encode()) == 0xE9


def test_java_refuses_what_is_not_text() -> None:
    for hashed in (find_hash("java").one, lambda key: find_hash("java").many([key])):
        with pytest.raises(BadKey, match=r"not UTF-8") as caught:
            hashed(b"\xff\xfe")
        assert r"b'\xff\xfe'" in str(caught.value)


# ThingsBoard's formula, computed with Guava 33.6.0: UUID -> murmur3_128, murmur3_32, sha256 as asInt; murmur3_128 % 10
THINGSBOARD = {
    "13814000-1dd2-11b2-8080-808080808080": (753439043, -1198738292, -1155030795, 3),
    "3ebd39eb-43d4-4911-a818-cdbf8d508f88": (-160586828, -1954025088, 460487495, 8),
    "00000000-0000-0000-0000-000000000000": (2108233942, -2127245832, -16234697, 2),
    "ffffffff-ffff-ffff-ffff-ffffffffffff": (-1550170394, -451333010, -1801075110, 4),
}


@pytest.mark.parametrize(("text", "values"), THINGSBOARD.items())
def test_thingsboard_uuids(text: str, values: tuple[int, int, int, int]) -> None:
    key = uuid.UUID(text)
    hashed = [both(name, key_bytes(key)) for name in ("murmur3_128", "murmur3_32", "sha256")]
    assert hashed == list(values[:3])
    assert Partitioner(10, "murmur3_128", "abs").partition(key) == values[3]
    assert Partitioner(10, "murmur3_128", "abs").partitions_of([key, "x"])[0] == values[3]


def test_thingsboard_published() -> None:
    system = "13814000-1dd2-11b2-8080-808080808080"
    restated = {"uuid": [{"uuid": system, "partition_3": 2, "partition_10": 3, "partition_256": 67}]}
    for vector in published("thingsboard_hash", restated)["uuid"]:
        key = uuid.UUID(vector["uuid"])
        for count in (3, 10, 256):
            assert Partitioner(count, "murmur3_128", "abs").partition(key) == vector[f"partition_{count}"]


def test_thingsboard_strings() -> None:
    restated = {"string": [{"s": "hello", "murmur3_128_asInt": 1102945026, "murmur3_32_fixed_asInt": 613153351}]}
    for vector in published("thingsboard_hash", restated)["string"]:
        assert both("murmur3_128", vector["s"].encode()) == vector["murmur3_128_asInt"]
        assert both("murmur3_32", vector["s"].encode()) == vector["murmur3_32_fixed_asInt"]


# google/guava TestPlatform.java
GUAVA_128 = {"The quick brown fox jumps over the lazy dog": -1140384916, "": 0}


@pytest.mark.parametrize(("text", "value"), GUAVA_128.items())
def test_murmur3_128_as_guava(text: str, value: int) -> None:
    assert both("murmur3_128", text.encode()) == value


def test_murmur3_32_published() -> None:
    # hajimes/mmh3 tests/test_mmh3.py (vectors by Ian Boyd), seed 0
    restated = {"x86_32_mmh3_tests": {"vectors": [{"input_hex": "21436587", "seed": 0, "murmur3_x86_32": 4116402539}]}}
    seedless = [v for v in published("murmur3", restated)["x86_32_mmh3_tests"]["vectors"] if not v["seed"]]
    assert seedless
    for vector in seedless:
        assert both("murmur3_32", bytes.fromhex(vector["input_hex"])) == signed(vector["murmur3_x86_32"], 32)


def test_sha256_is_the_first_four_bytes() -> None:
    # FIPS 180-2: SHA-256("abc") = ba7816bf...
    assert both("sha256", b"abc") == int.from_bytes(bytes.fromhex("ba7816bf"), "little", signed=True)


# dgryski/go-jump jump_test.go, generated there from the reference C++: buckets from 1 on
JUMP = {
    0: [0] * 20,
    1: [0] * 6 + [6] * 11 + [17] * 2,
    0xDEADBEEF: [0, 1, 2, 3, 3] + [5] * 11 + [16] * 3,
    0x0DDC0FFEEBADF00D: [0, 1] + [2] * 13 + [15] * 4,
}


@pytest.mark.parametrize(("key", "landed"), JUMP.items())
def test_jump_restated(key: int, landed: list[int]) -> None:
    assert [jump(key, buckets) for buckets in range(1, len(landed) + 1)] == landed


def test_jump_published() -> None:
    restated = {"go_jump_from_reference_cpp": {"vectors": [{"key": 1, "buckets": 18, "bucket": 17}]}}
    found = published("jump_consistent_hash", restated)
    for vector in found["go_jump_from_reference_cpp"]["vectors"]:
        assert jump(vector["key"], vector["buckets"]) == vector["bucket"]


@pytest.mark.parametrize("buckets", [1, 2, 3, 7, 256, 1000, 32_768, 65_535, 65_536])
def test_jump_of_many_is_exact(buckets: int) -> None:
    keys = np.random.default_rng(buckets).integers(0, 2**64, 5_000, np.uint64)
    keys[:4] = [0, 1, 2**63, 2**64 - 1]
    expected = [jump(int(key), buckets) for key in keys]
    assert jump_buckets(keys, buckets).tolist() == expected
    assert max(expected) < buckets


def test_jump_moves_keys_only_to_the_new_bucket() -> None:
    keys = np.arange(2_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for buckets in range(1, 40):
        before, after = jump_buckets(keys, buckets), jump_buckets(keys, buckets + 1)
        assert set(after[before != after].tolist()) == {buckets}


def test_hashes_of_nothing() -> None:
    for name in known_hashes():
        assert find_hash(name).many([]).tolist() == []


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "_registered", {})


def first_byte(data: bytes) -> int:
    return data[0]


@pytest.mark.usefixtures("fresh_registry")
class TestOwnHash:
    def test_by_name(self) -> None:
        register_hash("first", first_byte)
        routing = Partitioner(16, "first")
        assert (routing.hash, routing.partition(b"\x05")) == ("first", 5)
        assert routing.partitions_of([b"\x05", b"\x11"]).tolist() == [5, 1]
        assert "first" in known_hashes()

    def test_as_function(self) -> None:
        routing = Partitioner(16, first_byte)
        assert (routing.hash, routing.partition(b"\x05")) == ("first_byte", 5)

    def test_unregistered_name_says_what_to_do(self) -> None:
        with pytest.raises(BadSetting, match=r"hash 'mine' is not known.*xxh64.*register_hash\('mine'"):
            find_hash("mine")

    def test_again_is_fine_but_another_is_refused(self) -> None:
        register_hash("first", first_byte)
        register_hash("first", first_byte)
        for function, bits in ((len, 64), (first_byte, 32)):
            with pytest.raises(BadSetting, match="already"):
                register_hash("first", function, bits)

    def test_functions_without_a_place_are_told_apart(self) -> None:
        one, other = _constant(1), _constant(2)
        register_hash("fixed", one)
        register_hash("fixed", one)
        with pytest.raises(BadSetting, match="already"):
            register_hash("fixed", other)

    @pytest.mark.parametrize(
        ("name", "function", "bits", "why"),
        [
            ("", first_byte, 64, "printable"),
            ("a\nb", first_byte, 64, "printable"),
            (7, first_byte, 64, "printable"),
            ("java", first_byte, 64, "built-in"),
            ("mine", first_byte, 16, "32 or 64"),
            ("mine", "no function", 64, "cannot be called"),
        ],
    )
    def test_refused(self, name: Any, function: Any, bits: int, why: str) -> None:
        with pytest.raises(BadSetting, match=why):
            register_hash(name, function, bits)
        assert "mine" not in known_hashes()

    @pytest.mark.parametrize("function", [lambda data: 1, 7, object()])
    def test_a_function_without_a_name(self, function: Any) -> None:
        with pytest.raises(BadSetting, match="no name to record"):
            Partitioner(8, function)

    @pytest.mark.parametrize(
        ("bits", "value", "partition"), [(64, 2**64 - 1, 15), (32, 2**32 - 1, 15), (32, 2**32 + 3, 3), (64, -1, 15)]
    )
    def test_values_are_taken_as_signed(self, bits: int, value: int, partition: int) -> None:
        register_hash("fixed", _constant(value), bits)
        assert Partitioner(16, "fixed").partition("x") == partition
        assert Partitioner(16, "fixed").partitions_of(["x"]).tolist() == [partition]

    def test_numpy_integers_will_do(self) -> None:
        register_hash("fixed", _constant(np.uint64(2**64 - 1)))
        assert Partitioner(16, "fixed").partition("x") == 15

    def test_other_results_are_refused(self) -> None:
        register_hash("fixed", _constant(1.5))
        with pytest.raises(BadSetting, match="'fixed' returned float"):
            Partitioner(16, "fixed").partition("x")


def _constant(value: Any) -> Callable[[bytes], int]:
    def constant(data: bytes) -> int:
        return value  # type: ignore[no-any-return]  # some tests return what must be refused

    return constant
