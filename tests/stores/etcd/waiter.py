"""A process that waits for changes of a registry on etcd, and says what it sees: ``python -m … URL``."""

from __future__ import annotations

import logging
import sys

from pxrs.settings import Settings
from pxrs.stores.etcd.store import EtcdStore


def main(url: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    store = EtcdStore.open(url, Settings())
    mark, count = store.wait("w/", 0, 3_600), 0
    say("waiting")
    while True:
        mark = store.wait("w/", mark, 3_600)
        count += 1
        say(f"woken {count}")
        if store.read(["w/last"]) != [None]:
            say("saw the last row")
            return


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
