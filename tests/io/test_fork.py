"""One hook for all forks: guards stand still in both processes, and the child renews what it must not share."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator

import pytest

from pxrs.io import fork


@pytest.fixture(autouse=True)
def _only_these(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What other tests have registered is left alone."""
    guards, functions = list(fork._guards), list(fork._functions)
    yield
    fork._guards[:], fork._functions[:] = guards, functions


def in_child(said: Callable[[], str]) -> str:
    """What a forked child says."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        os.write(writing, said().encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        text = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return text


class Thing:
    def __init__(self, told: list[str], name: str) -> None:
        self.told, self.name = told, name
        fork.renew_in_child(self, Thing.renew)

    def renew(self) -> None:
        self.told.append(self.name)


def test_guards_stop_in_reverse_order_and_go_on_in_both_processes() -> None:
    told: list[str] = []
    for name in ("a", "b"):
        fork.guard_fork(*(lambda when=when, name=name: told.append(f"{when} {name}") for when in ("stop", "go", "new")))
    assert in_child(lambda: ",".join(told)) == "stop b,stop a,new a,new b"
    assert told == ["stop b", "stop a", "go a", "go b"]


def test_in_the_child_functions_come_before_objects_and_the_parent_keeps_its_own() -> None:
    told: list[str] = []
    thing = Thing(told, "thing")
    fork.after_fork(lambda: told.append("function"))
    assert in_child(lambda: ",".join(told)) == "function,thing"
    assert told == [] and thing.told is told


def test_one_that_fails_keeps_no_other_from_its_work() -> None:
    told: list[str] = []
    fork.after_fork(lambda: [].pop())  # raises
    fork.after_fork(lambda: told.append("next"))
    assert in_child(lambda: ",".join(told)) == "next"


def test_what_is_gone_is_not_renewed() -> None:
    told: list[str] = []
    Thing(told, "gone")
    gc.collect()
    assert in_child(lambda: ",".join(told)) == ""


def test_a_process_can_fork_again_and_so_can_its_child() -> None:
    assert in_child(lambda: in_child(lambda: "grandchild")) == "grandchild"
    assert in_child(lambda: "child") == "child"


def test_a_guard_that_registers_while_others_stand_still_is_left_out_of_this_fork() -> None:
    told: list[str] = []
    late = lambda: fork.guard_fork(lambda: None, lambda: told.append("go"), lambda: None)  # noqa: E731 - said in place
    fork.guard_fork(late, lambda: None, lambda: None)
    in_child(lambda: "")
    assert told == []
