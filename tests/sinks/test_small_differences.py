"""Sinks where a small difference matters: what others have asked for when a sweep fails, and what is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from pxrs.model import Grant, Owner
from pxrs.sinks.plans import Claim
from pxrs.sinks.staging import Staging

from .support import GROUP, LOG, QUEUE

ME = Owner("B", "life-2")


def test_what_others_have_asked_a_sweep_for_is_not_forgotten_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One walk serves all who wait for it. When it fails, the next of them walks for the others, too."""
    staging, swept = Staging(str(tmp_path / "staging")), list[list[int]]()

    def sweep(claims: set[Claim]) -> None:
        swept.append(sorted(claim.grant.partition for claim in claims))
        if len(swept) == 1:
            raise OSError("the disk says no")

    def clear(partition: int) -> None:
        staging.clear_dead(QUEUE, LOG, GROUP, Grant(partition, ME, 5), keep="")

    monkeypatch.setattr(staging, "_sweep", sweep)
    staging._claims.add(Claim(QUEUE, LOG, GROUP, Grant(2, ME, 5), ""))  # of a thread that waits for its turn
    with pytest.raises(OSError, match="the disk says no"):
        clear(1)
    clear(3)
    assert swept == [[1, 2], [2, 3]]
