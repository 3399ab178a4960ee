from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.house.pages import ROOT, run_page


@pytest.mark.slow
@pytest.mark.processes
def test_the_page_about_lock_files_does_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    run_page(ROOT / "docs" / "registry-lockfiles.md", {})
