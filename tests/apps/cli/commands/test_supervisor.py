"""The supervisor's decisions, on a clock that is moved by hand and with processes that are none."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pxrs.apps.cli.commands.work import supervisor
from pxrs.apps.cli.commands.work.member import NAME_IS_TAKEN, SET_UP_IS_WRONG, Order
from pxrs.apps.cli.commands.work.supervisor import Supervisor, pause_after

ORDER = Order("app:handle", "memory:", None, "billing", "message", "earliest", None, None, False, False, "shop")


class Hand:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    wall = monotonic


class Fake:
    """A process: it ends when the test says so, and keeps what it was told."""

    def __init__(self, order: Order, theirs: socket.socket) -> None:
        self.order, self.theirs, self.pid = order, theirs, 4711
        self.code: int | None = None
        self.told: list[str] = []

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.told.append("terminate")

    def kill(self) -> None:
        self.told.append("kill")
        self.code = -signal.SIGKILL


class Setup:
    """A supervisor, its clock and all processes that it has started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, processes: int, sources: Any = None) -> None:
        self.clock, self.started, self._ties = Hand(), list[Fake](), list[socket.socket]()
        self.refusal: OSError | None = None
        monkeypatch.setattr(supervisor, "_started", self._start)
        self.it = Supervisor(ORDER, processes, 30.0, sources, self.clock)
        self.step()

    def _start(self, order: Order) -> tuple[Any, socket.socket]:
        if self.refusal is not None:
            raise self.refusal
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._ties += ours, theirs
        self.started.append(Fake(order, theirs))
        return self.started[-1], ours

    def step(self, seconds: float = 0.0) -> None:
        self.clock.now += seconds
        self.it._step()

    def join(self, index: int) -> None:
        self.started[index].theirs.send(b"j")
        self.step()

    def end(self, index: int, code: int) -> None:
        self.started[index].code = code
        self.started[index].theirs.close()
        self.step()

    def signal(self, number: int) -> None:
        self.it._signals.append(number)
        self.step()

    def close(self) -> None:
        for tie in self._ties:
            tie.close()

    @property
    def is_over(self) -> bool:
        return not self.it._is_needed()


Make = Callable[..., Setup]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    with ExitStack() as closing:

        def setup(processes: int, sources: Any = None) -> Setup:
            made = Setup(monkeypatch, processes, sources)
            closing.callback(made.close)
            return made

        yield setup


@pytest.fixture
def one(make: Make) -> Setup:
    return make(1)


@pytest.fixture
def three(make: Make) -> Setup:
    return make(3)


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_after(n) for n in (1, 2, 3, 6, 7, 8, 10_000)] == [1, 2, 4, 32, 60, 60, 60]


def test_the_others_follow_when_the_first_has_joined(three: Setup) -> None:
    three.step(100)
    assert [fake.order.member for fake in three.started] == ["shop-1"]
    three.join(0)
    assert [fake.order.member for fake in three.started] == ["shop-1", "shop-2", "shop-3"]


def test_a_process_that_fails_again_waits_longer_and_a_steady_one_does_not(one: Setup) -> None:
    for life, pause in enumerate([1, 2, 4, 8]):
        one.end(life, 1)
        one.step(pause - 0.01)
        assert len(one.started) == life + 1
        one.step(0.02)
        assert len(one.started) == life + 2
    one.step(61)
    one.end(4, -signal.SIGSEGV)
    one.step(1.01)
    assert len(one.started) == 6 and {fake.order.member for fake in one.started} == {"shop-1"}


def test_a_process_that_keeps_failing_is_named_once_and_started_again(
    one: Setup, capsys: pytest.CaptureFixture[str]
) -> None:
    for life in range(7):
        one.end(life, 1)
        one.step(61)
    said = capsys.readouterr().err
    assert said.count("process 1 keeps failing: 5 times in a row") == 1 and len(one.started) == 8
    assert "it has failed with exit code 1. Its last lines above say why" in said


def test_a_wrong_set_up_at_the_start_ends_it(one: Setup) -> None:
    one.end(0, SET_UP_IS_WRONG)
    assert one.is_over and one.it._code == 1


def test_a_wrong_set_up_later_ends_nobody_else(three: Setup) -> None:
    three.join(0)
    three.end(1, SET_UP_IS_WRONG)  # the module was spoilt while the others work
    assert not three.is_over and [fake.told for fake in three.started] == [[], [], []]
    three.step(1.01)
    assert three.started[-1].order.number == 2


def test_a_process_that_leaves_is_not_started_again_and_the_last_one_ends_it(three: Setup) -> None:
    three.join(0)
    for index in range(3):
        assert not three.is_over
        three.end(index, 0)
        three.step(1_000)
    assert three.is_over and three.it._code == 0 and len(three.started) == 3


def test_a_name_that_is_taken_ends_all(three: Setup) -> None:
    three.join(0)
    three.end(1, NAME_IS_TAKEN)
    assert [fake.told for fake in three.started] == [["terminate"], [], ["terminate"]]
    three.end(0, 0)
    three.end(2, 0)
    assert three.is_over and three.it._code == 1


def test_a_process_that_does_not_leave_in_time_is_killed_and_the_exit_code_says_so(three: Setup) -> None:
    three.join(0)
    three.signal(signal.SIGTERM)
    three.signal(signal.SIGTERM)  # said again: nothing new
    three.end(0, 0)
    three.end(1, -signal.SIGTERM)  # it had not come far enough to leave
    three.step(29.9)
    assert [fake.told for fake in three.started] == [["terminate"]] * 3
    three.step(0.2)
    three.step()
    assert three.started[2].told == ["terminate", "kill"] and three.is_over and three.it._code == 1


def test_a_second_ctrl_c_does_not_wait(one: Setup) -> None:
    one.signal(signal.SIGINT)
    assert one.started[0].told == ["terminate"]
    one.signal(signal.SIGINT)
    assert one.started[0].told == ["terminate", "kill"] and one.is_over and one.it._code == 130


def test_a_process_that_waits_for_its_start_is_not_started_after_sigterm(one: Setup) -> None:
    one.end(0, 1)
    one.signal(signal.SIGTERM)
    assert one.is_over and one.it._code == 0


def test_a_machine_without_room_for_a_process_is_tried_again(three: Setup, capsys: pytest.CaptureFixture[str]) -> None:
    three.refusal = BlockingIOError(11, "Resource temporarily unavailable")
    three.join(0)
    assert "process 2 cannot be started (Resource temporarily unavailable); it starts again in 1 s" in (
        capsys.readouterr().err
    )
    three.refusal = None
    three.step(1.01)
    assert len(three.started) == 3


class Changes:
    """Source files that change when the test says so."""

    def __init__(self) -> None:
        self.path: str | None = None

    def changed(self) -> str | None:
        found, self.path = self.path, None
        return found


def test_a_change_lets_all_leave_and_start_again_the_first_one_ahead(make: Make) -> None:
    sources = Changes()
    setup = make(2, sources)
    setup.join(0)
    sources.path = "app.py"
    setup.step(1)
    assert [fake.told for fake in setup.started] == [["terminate"], ["terminate"]]
    setup.end(1, 0)
    assert len(setup.started) == 2, "the second one waits for the first"
    setup.step(31)
    setup.step()
    assert setup.started[0].told == ["terminate", "kill"] and setup.started[2].order.number == 1
    setup.join(2)
    assert setup.started[3].order.number == 2 and setup.it._code == 0


def test_with_reload_a_wrong_set_up_waits_for_a_change(make: Make) -> None:
    sources = Changes()
    setup = make(2, sources)
    setup.end(0, SET_UP_IS_WRONG)
    setup.step(1_000)
    assert len(setup.started) == 1 and not setup.is_over
    sources.path = "app.py"
    setup.step(1)
    assert len(setup.started) == 2
    setup.signal(signal.SIGTERM)
    setup.end(1, 0)
    assert setup.is_over
