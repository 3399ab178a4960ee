from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pxrs.drivers import find_driver
from pxrs.errors import BadUrl, Closed, Damaged, NewerFormat, NotFound, Refused, Unavailable
from pxrs.io import file_system
from pxrs.io.clock import SystemClock
from pxrs.io.file_system import kind_of_file_system, sync_file_system
from pxrs.model import Grant, Owner
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.registry.rows import Held
from pxrs.settings import Settings
from pxrs.stores.base import ABSENT, Guarantee, Store, Swap, Verdict
from pxrs.stores.lockfiles import directory as lockfiles_place
from pxrs.stores.lockfiles import journal as lockfiles_journal
from pxrs.stores.lockfiles import store as driver
from pxrs.stores.lockfiles.directory import Files
from pxrs.stores.lockfiles.journal import Changes, InDoubt, Journal, Mutex, Position
from pxrs.stores.lockfiles.rows import LONGEST_NAME, directory_of, file_of, key_of
from pxrs.stores.lockfiles.store import LockFileStore
from pxrs.testing.conformance import StoreSuite
from pxrs.testing.stores.hooks import Background, get, put, value_of
from tests.stores.lockfiles.child import opened
from tests.stores.lockfiles.tools import PATIENCE, rows_shown

LONG = 3_600.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def store(place: Path) -> Iterator[LockFileStore]:
    store = opened(place)
    yield store
    store.close()


@contextmanager
def in_doubt(applied: bool) -> Iterator[None]:
    """The sync of the journal fails, and the line is there all the same, or is not."""
    append = Journal.append

    def fail(self: Journal, changes: Changes, position: Position) -> Position:
        if applied:
            append(self, changes, position)
        raise InDoubt("sync: Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "append", fail)
        yield


class TestLockFileStore(StoreSuite):
    def make_store(self, tmp_path: Path) -> Store:
        return opened(tmp_path / "registry")

    def lose_reply(self, store: Store, applied: bool) -> AbstractContextManager[object]:
        return in_doubt(applied)


def test_the_driver_answers_to_its_url() -> None:
    assert find_driver("pxrs.stores", "lockfiles:x") is LockFileStore


def test_it_promises_no_expiry_since_rows_end_with_their_process_and_not_with_time() -> None:
    assert not LockFileStore.guarantees & {Guarantee.NATIVE_EXPIRY, Guarantee.ACROSS_HOSTS}


# ---- the URL and the directory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["lockfiles:", "lockfiles:a\0b", "lockfiles:?allow_network=true", "lockfiles:a?x=1"])
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        LockFileStore.open(url, Settings())


def test_a_file_no_parent_and_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"file is a file"):
        opened(tmp_path / "file")
    with pytest.raises(NotFound, match="missing"):
        opened(tmp_path / "missing" / "registry")
    with monkeypatch.context() as patch:  # root may write everywhere
        patch.setattr(os, "access", lambda *_: False)
        with pytest.raises(Refused, match="permission denied"):
            opened(tmp_path / "registry")
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", _deny)
        with pytest.raises(Refused, match="cannot be made"):
            opened(tmp_path / "other")


def _deny(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_another_format_is_refused_before_anything_is_written(place: Path) -> None:
    opened(place).close()
    before = sorted(path.name for path in place.rglob("*"))
    for text, error in (('{"format": 2}', NewerFormat), ("{}", Damaged), ("", Damaged)):
        (place / "registry" / "format.json").write_text(text)
        with pytest.raises(error, match="registry"):
            opened(place)
    assert sorted(path.name for path in place.rglob("*")) == before


def test_a_directory_that_is_gone_is_unavailable_and_one_that_was_emptied_is_a_new_registry(
    store: LockFileStore, place: Path
) -> None:
    version = put(store, "a", b"x")
    shutil.rmtree(place)
    with pytest.raises(Unavailable, match="No such file"):
        get(store, "a")
    place.mkdir()
    assert get(store, "a") is None
    assert put(store, "a", b"y") != version
    assert (place / "registry" / "format.json").exists()


def test_a_wait_goes_on_after_the_directory_was_emptied(store: LockFileStore, place: Path) -> None:
    mark = store.wait("w/", 0, LONG)
    call = Background(_wait_for, store, "w/1", mark)
    _wipe(place / "registry")
    other = opened(place)
    put(other, "w/1", b"x")
    assert call.result(PATIENCE, "a wait over a wipe") == b"x"
    other.close()


def _wipe(directory: Path) -> None:
    """Remove a directory in which somebody lives: what he makes meanwhile is removed with the next try."""
    deadline = time.monotonic() + PATIENCE
    while directory.exists():
        with suppress(OSError):
            shutil.rmtree(directory)
        assert time.monotonic() < deadline, f"{directory} comes back each time"


def _wait_for(store: Store, key: str, mark: int) -> bytes:
    while True:
        with suppress(Unavailable):  # a call that falls into the wipe says so, and a member tries again
            mark = store.wait("w/", mark, 0.5)  # while the bell is taken away a ring may be lost, once
        found = value_of(store, key)
        if found is not None:
            return found


def test_a_closed_store_frees_what_it_had(place: Path) -> None:
    store = opened(place)
    store.wait("", 0, 0.0)
    put(store, "a", b"x")
    store.close()
    with pytest.raises(Closed):
        store.swap_all([])


def test_the_kind_of_file_system_is_asked_from_the_kernel(tmp_path: Path) -> None:
    assert kind_of_file_system("/proc") == 0x9FA0
    assert kind_of_file_system(str(tmp_path / "missing")) == 0
    assert not sync_file_system("/proc")


def test_a_file_system_of_an_old_kernel_is_not_synced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing of data that could not be written."""
    monkeypatch.setattr(file_system, "kind_of_file_system", lambda _: 0xEF53)  # wherever the test runs
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="5.4.0-generic"))
    assert not sync_file_system(str(tmp_path))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="5.8.0"))
    assert sync_file_system(str(tmp_path))


# ---- names --------------------------------------------------------------------------------------------------------


@given(st.text(max_size=300))
def test_a_key_and_its_file_are_one(key: str) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        with pytest.raises(Refused):
            file_of(key)
        return
    path = file_of(key)
    names = path.removesuffix(".row").split("/")
    assert key_of(names) == key
    assert all(0 < len(name) <= LONGEST_NAME + 4 and name not in (".", "..") for name in path.split("/"))
    assert path.startswith(directory_of(key))


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("/pxrs/orders/billing/partition/00003", "pxrs/orders/billing/partition/00003.row"),
        ("a", "%/a.row"),
        ("a.row/b", "%/a%2Erow/b.row"),
        ("/a//b", "a/%empty/b.row"),
        ("../%", "%/%2E./%25.row"),
        ("", "%/%empty.row"),
    ],
)
def test_names_can_be_read(key: str, path: str) -> None:
    assert file_of(key) == path


def test_long_keys_and_keys_that_are_parts_of_others_are_kept_apart(store: LockFileStore) -> None:
    keys = [
        "a",
        "a.row",
        "a/b",
        "a.row/b",
        "x" * 200,
        "x" * 201,
        "x" * 199 + "." * 300,
        "é" * 150,
        "nul\0byte",
        "",
        "/",
    ]
    for key in keys:
        put(store, key, key.encode())
    assert [row.key for row in store.scan("")] == sorted(keys)
    assert [row.key for row in store.scan("x" * 200)] == ["x" * 200, "x" * 201]
    with pytest.raises(Refused, match="too long"):
        put(store, "x" * 5_000, b"")


# ---- the journal --------------------------------------------------------------------------------------------------


def test_the_journal_begins_anew_and_nothing_is_lost(
    store: LockFileStore, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockfiles_place, "LONGEST", 500)
    for whole in (True, False):
        monkeypatch.setattr(file_system, "_SYNC_AS_A_WHOLE", file_system._SYNC_AS_A_WHOLE if whole else frozenset())
        versions = [put(store, f"{whole}/{number}", b"x" * 50) for number in range(20)]
        assert (place / "registry" / "journal").stat().st_size < 800
        assert {row.version for row in store.scan(f"{whole}/")} == set(versions)


def test_a_journal_that_cannot_begin_anew_goes_on(
    store: LockFileStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lockfiles_place, "LONGEST", 100)
    monkeypatch.setattr(Files, "sync", fail)
    for number in range(5):
        put(store, f"a/{number}", b"x" * 50)
    assert len(store.scan("a/")) == 5 and "the journal goes on" in caplog.text


def test_after_a_reboot_files_are_made_again_from_the_journal(store: LockFileStore, place: Path) -> None:
    registry = _initialized(store, 2)
    _claim_all(registry, 2)
    before = store.scan("")
    (place / "registry" / "mutex").write_text("journal 000000000000 00000000 boot of-yesterday\n")
    for tree in ("rows", "consumer_locks", "consumer_offsets"):  # what was not synced may be lost
        shutil.rmtree(place / tree, ignore_errors=True)
    again = opened(place)
    assert again.scan("") == before
    assert [row.owner for row in rows_shown(place)] == [Owner("A", "life-1")] * 2
    again.close()


def test_a_torn_last_line_is_cut_and_a_damaged_one_before_is_an_error(place: Path, store: LockFileStore) -> None:
    put(store, "a", b"x")
    journal, mutex = place / "registry" / "journal", place / "registry" / "mutex"
    whole = journal.read_bytes()
    for torn in (b"12345678 [{", b"12345678 [{}]\n"):
        journal.write_bytes(whole + torn)
        assert value_of(store, "a") == b"x"
        assert journal.read_bytes() == whole
    journal.write_bytes(whole.replace(b'"x"', b'"y"') + whole)
    mutex.write_text("")
    with pytest.raises(Damaged, match=r"journal: the line at byte 0"):
        get(store, "a")


def test_a_damaged_row_is_named(place: Path, store: LockFileStore) -> None:
    put(store, "/a/b", b"x")
    for content in (b"", b"# version\nx", b"version 1\nx", b"# version 1 process x\nx", b"\xff\n"):
        (place / "rows" / "a" / "b.row").write_bytes(content)
        with pytest.raises(Damaged, match=r"a/b\.row"):
            store.scan("")


def test_a_sync_that_failed_leaves_the_old_rows_and_says_unknown(
    store: LockFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    version = put(store, "a", b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        outcomes = store.swap_each([Swap("a", version, b"after"), Swap("b", 99, b"x")])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN, Verdict.CONFLICT]
    assert "Input/output error" in outcomes[0].reason
    assert value_of(store, "a") == b"before"
    put(store, "a", b"again", version)


def test_a_write_that_cannot_be_taken_back_is_in_doubt(store: LockFileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lockfiles_journal, "write_all", fail)
        patch.setattr(lockfiles_journal, "_take_back", lambda *_: False)
        [outcome] = store.swap_each([Swap("a", ABSENT, b"x")])
    assert outcome.verdict is Verdict.UNKNOWN
    assert get(store, "a") is None


# ---- many rows, and a holder that does not let go -----------------------------------------------------------------


def test_a_holder_that_does_not_let_go_is_unavailable(place: Path) -> None:
    store = LockFileStore.open(f"lockfiles:{place}?timeout_ms=50", Settings())
    with Mutex(str(place / "registry" / "mutex"), PATIENCE).held(), pytest.raises(Unavailable, match="another process"):
        get(store, "a")
    put(store, "a", b"x")
    store.close()


def test_a_long_list_that_is_interrupted_tells_what_was_done(
    store: LockFileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = store._write

    def second_fails(swaps: list[Swap], together: bool) -> object:
        if swaps[0].key != "a/0":
            raise Unavailable("busy")
        return write(swaps, together)

    monkeypatch.setattr(driver, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(store, "_write", second_fails)
    outcomes = store.swap_each([Swap(f"a/{number}", ABSENT, b"x") for number in range(3)])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.DONE, Verdict.DONE, Verdict.UNKNOWN]
    assert [row.key for row in store.scan("")] == ["a/0", "a/1"]


@pytest.mark.slow
def test_4096_partitions(store: LockFileStore, place: Path) -> None:
    registry = _initialized(store, 4_096)
    grants = _claim_all(registry, 300)
    assert all(isinstance(result, Held) for result in registry.commit(dict.fromkeys(grants, 9)).values())
    rows = rows_shown(place)
    assert rows == registry.partitions() and len(rows) == 4_096
    assert [row.number for row in rows if (row.owner, row.checkpoint) == (Owner("A", "life-1"), 9)] == list(range(300))


def _initialized(store: LockFileStore, partitions: int) -> Registry:
    registry = Registry(store, "orders", "billing", SystemClock())
    registry.initialize(partitions, "xxh64-spark", "pmod")
    return registry


def _claim_all(registry: Registry, partitions: int) -> list[Grant]:
    me = Owner("A", "life-1")
    claimed = registry.claim(range(partitions), me)
    return [Grant(n, me, held.row.epoch) for n, held in claimed.items() if isinstance(held, Held) and held.row]
