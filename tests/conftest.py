"""What all tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def show(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print for whoever runs the tests, past the capture of output, also in a worker process."""

    def show(text: str) -> None:
        with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{text}", file=sys.stderr, flush=True)

    return show
