"""module:function, and which source files belong to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pxrs.apps.cli.commands.work.handler import load_handler, split_handler
from pxrs.apps.cli.commands.work.reloading import Sources, places_of
from pxrs.errors import Refused
from tests.apps.cli.helpers import QUEUE, Pxrs


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("words", ["app:handle", "shop.app:handle", "app:Shop.handle"])
def test_module_and_function(words: str) -> None:
    assert ":".join(split_handler(words)) == words


@pytest.mark.parametrize(
    ("words", "write"),
    [("app", "module:function"), ("app:", "module:function"), (":handle", "module:function"), ("a b:c", "module:func"),
     ("./shop/app.py:handle", "shop.app:handle"), ("shop/app:handle", "shop.app:handle"), ("app:handle()", "module:f")],
)  # fmt: skip
def test_another_form_says_what_to_write(words: str, write: str) -> None:
    with pytest.raises(Refused, match=write):
        split_handler(words)


def test_a_handler_is_found_in_the_working_directory(here: Path) -> None:
    (here / "found_here.py").write_text("class Shop:\n    @staticmethod\n    def handle(message): return message\n")
    assert load_handler("found_here:Shop.handle")(7) == 7


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise SystemExit(0)", "it ends the program; put that under `if __name__ == '__main__':` "),
        ("1 / 0", "ZeroDivisionError: division by zero .*line 1"),
        ("import not_there_at_all", r"No module named 'not_there_at_all' \(.*, line 1\)"),
        ("def handel(message): ...", r"no 'handle' in module '.*'; did you mean 'handel'\?"),
        ("handle = 7", "this is an int, not a function"),
    ],
)
def test_what_cannot_be_loaded_says_why(here: Path, source: str, said: str) -> None:
    name = f"spoilt_{abs(hash(source))}"
    (here / f"{name}.py").write_text(source)
    with pytest.raises(Refused, match=said):
        load_handler(f"{name}:handle")


def test_a_module_that_is_not_there_says_where_it_was_looked_for(here: Path) -> None:
    with pytest.raises(Refused, match=f"no module 'not_there', neither in {here} nor installed"):
        load_handler("not_there.app:handle")


def test_changed_new_and_deleted_files_are_seen_once(here: Path) -> None:
    app, more = here / "app.py", here / "more.py"
    app.write_text("a = 1")
    (here / ".hidden").mkdir()
    (here / "env").mkdir()
    (here / "env" / "pyvenv.cfg").touch()
    sources = Sources([str(here)])
    assert sources.changed() is None
    app.write_text("a = 22")
    assert sources.changed() == str(app) and sources.changed() is None
    more.write_text("")
    assert sources.changed() == str(more)
    os.unlink(more)
    assert sources.changed() == str(more)
    for path in (".hidden/x.py", "env/x.py", "notes.txt"):
        (here / path).write_text("")
    assert sources.changed() is None


def test_an_installed_module_is_watched_where_it_is(here: Path) -> None:
    assert places_of("app") == [str(here)]
    assert os.path.dirname(pytest.__file__) in places_of("pytest.mark")


def test_wrong_words_are_refused_before_anything_starts(pxrs: Pxrs) -> None:
    swapped = pxrs("work", QUEUE, "app:handle", "-g", "billing")
    assert swapped.code == 2 and f"pxrs work app:handle {QUEUE}" in swapped.err
    assert pxrs("work", "app:handle", QUEUE, "-g", "billing", "--from", "noon").code == 2
    assert pxrs("work", "app:handle", QUEUE, "-g", "bil/ling").code == 2
    assert pxrs("work", "app:handle", QUEUE, "-g", "billing", "--name", "a/b").code == 2
    assert "starts" not in swapped.err
