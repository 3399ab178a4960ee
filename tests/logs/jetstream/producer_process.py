"""A process that appends numbered batches to partition 0, and prints the offset of each once it is acknowledged."""

from __future__ import annotations

import sys

from pxrs.errors import Unavailable
from pxrs.logs.base import Stamp
from pxrs.testing.logs.hooks import entries
from tests.logs.jetstream.helpers import opened


def main(url: str, producer: str, batches: int, rows: int) -> None:
    with opened(url, create=False) as log:
        for number in range(batches):
            batch = entries([f"{producer}-{number}".encode()] * rows)
            while True:
                try:
                    first = log.append({0: batch}, {0: Stamp(producer, number)})[0]
                    break
                except Unavailable as error:
                    print(error, file=sys.stderr, flush=True)
            print(number, first, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
