"""The conformance suite of stores. A driver is a store if a subclass of ``StoreSuite`` is green:

    class TestMyStore(StoreSuite):
        def make_store(self, tmp_path):
            return MyStore.open(f"mine:{tmp_path}/registry", Settings())

Every test is named for the promise that it checks. ``run_suite`` runs them without pytest's machinery, and answers
with the promises that were broken; so it is shown that stores which are broken on purpose are caught.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pxrs.stores.base import Store
from pxrs.testing.stores.batches import BatchPromises
from pxrs.testing.stores.ownership import OwnershipPromises
from pxrs.testing.stores.rows import RowPromises
from pxrs.testing.stores.sharing import SharingPromises
from pxrs.testing.stores.waits import WaitPromises
from pxrs.testing.suites import broken_promises, promises

__all__ = ["StoreSuite", "promises", "run_suite"]


class StoreSuite(RowPromises, BatchPromises, WaitPromises, SharingPromises, OwnershipPromises):
    """Tests all promises of a store. A subclass says how its store is made; the hooks are in ``Promises``."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A store with no rows in it."""
        store = self.make_store(tmp_path)
        yield store
        store.close()

    @pytest.fixture
    def second(self, store: Store, tmp_path: Path) -> Iterator[Store]:
        """Open the same store again, as another process would."""
        second = self.make_second(store, tmp_path)
        yield second
        second.close()


def run_suite(suite: StoreSuite, names: Sequence[str] = ()) -> dict[str, str]:
    """The promises that the suite's store broke, each with what was seen. Of these names, or of all."""
    return broken_promises(names or promises(type(suite)), lambda name: _run_one(suite, name))


def _run_one(suite: StoreSuite, name: str) -> None:
    test = getattr(suite, name)
    with TemporaryDirectory() as directory:
        store = suite.make_store(Path(directory))
        try:
            if "second" in inspect.signature(test).parameters:
                second = suite.make_second(store, Path(directory))
                try:
                    test(store, second)
                finally:
                    second.close()
            else:
                test(store)
        finally:
            store.close()
