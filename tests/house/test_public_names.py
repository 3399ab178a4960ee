"""The public surface, frozen: a name that appears or vanishes is a decision, made here and in the change log."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pxrs

ROOT = Path(__file__).resolve().parents[2]

PUBLIC = {
    "Consumer",
    "Context",
    "Guarantee",
    "Message",
    "Partitioner",
    "Producer",
    "Queue",
    "Settings",
    "errors",
    "load_settings",
    "open",
    "register_hash",
}


def test_the_public_names_are_these() -> None:
    assert set(pxrs.__all__) == PUBLIC
    assert [name for name in pxrs.__all__ if not hasattr(pxrs, name)] == []


def test_the_list_is_sorted_and_without_repeats() -> None:
    assert pxrs.__all__ == sorted(set(pxrs.__all__))


def test_dir_shows_public_names_only() -> None:
    assert set(dir(pxrs)) == PUBLIC | {"__version__"}


def test_testing_offers_drain_and_loads_nothing_before_it_is_used() -> None:
    code = "import sys, pxrs.testing; assert dir(pxrs.testing) == ['drain']; assert 'pyarrow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_open_takes_what_the_contract_says() -> None:
    names = list(inspect.signature(pxrs.open).parameters)
    assert names[0] == "url"
    assert {"log", "registry", "partitions", "hash", "reduce", "assignor", "settings"} <= set(names)


def test_a_queue_offers_what_the_contract_says() -> None:
    verbs = {"producer", "consumer", "subscribe", "read", "ends", "group", "groups", "close"}
    assert verbs <= {name for name in vars(pxrs.Queue) if not name.startswith("_")}


def test_a_consumer_offers_what_the_contract_says() -> None:
    verbs = {"run", "start", "stop", "kill", "state"}
    assert verbs <= {name for name in dir(pxrs.Consumer) if not name.startswith("_")}


def test_a_message_has_the_fields_of_the_contract() -> None:
    message = pxrs.Message(3, 120, b"acct-42", b'{"n": 1}', 1_700_000_000_000_000)
    assert (message.partition, message.offset, message.key, message.value) == (3, 120, b"acct-42", b'{"n": 1}')
    assert message.id and message.headers == {} and message.tenant is None
    assert message.timestamp.year == 2023 and message.text == '{"n": 1}' and message.json() == {"n": 1}


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert pxrs.__version__ == project["version"] == newest[1]


def test_names_of_the_time_until_0_6_that_drivers_of_other_packages_import_go_on_working() -> None:
    from pxrs.logs.base import FewRows, OpenOptions, Rows, Wish
    from pxrs.testing.faults import HASTY, FaultSuite, Scenario, Shop, eventually, open_store

    assert (Rows, Wish, Shop) == (FewRows, OpenOptions, Scenario)
    assert "shop" in vars(FaultSuite) and callable(eventually)
    store = open_store("memory:")
    store.close()
    assert HASTY.lease_ms == 2_000
