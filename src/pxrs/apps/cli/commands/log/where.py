"""``pxrs log where``: to which partition a key belongs."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from pxrs.apps.cli.message_format import printable
from pxrs.apps.cli.options import Output, RegistryUrl, WrongUsage, opened
from pxrs.apps.cli.output import show
from pxrs.errors import BadKey, masked_url
from pxrs.runtime.views.tables import Table

KeyName = Annotated[str, typer.Argument(metavar="KEY", help="The key, as text.")]
LastUrl = Annotated[
    str, typer.Argument(metavar="URL", envvar="PXRS_URL", help="The queue, as in file:./orders; or set PXRS_URL.")
]
AsHex = Annotated[bool, typer.Option("--hex", help="The key is written in hex digits, for keys that are no text.")]


def where(
    key: KeyName, url: LastUrl, hex: AsHex = False, output: Output = "table", registry: RegistryUrl = None
) -> None:
    """The partition of a key, and the hash that says so. The key need not have been sent."""
    data = key_of(key, hex)
    if ":" not in url and ":" in key:
        raise WrongUsage(f"the key comes before the queue: pxrs log where {url} {masked_url(key)}")
    with opened(url, registry) as queue:
        known = queue.partitioner
        line = [printable(data), known.hash, known.hash_of(data), known.reduce, known.partitions]
        columns = ["KEY", "HASH", "HASH-VALUE", "REDUCE", "PARTITIONS", "PARTITION"]
        show(Table(columns, [[*line, known.partition(data)]]), output)


def key_of(text: str, is_hex: bool) -> bytes:
    """The bytes of a key that was typed on the command line."""
    if not is_hex:
        try:
            return text.encode()
        except UnicodeEncodeError:  # bytes that are no UTF-8 come from the shell as lone surrogates
            raise BadKey(f"key {text!r} is no UTF-8 text: write its bytes in hex, with --hex") from None
    digits = re.sub(r"^0[xX]", "", text)
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise WrongUsage(f"--hex {text!r}: two hex digits for each byte, as 61636374") from None
