"""The only hook into ``os.fork``: what a child does with the things that its parent had open.

A forked child has copies of the parent's descriptors and locks, and none of its threads. An object with something that
must not be shared registers here. In the child functions run first, in the order of their registration: they renew
what the objects use.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[[], None])

logger = logging.getLogger(__name__)


class _Guard(NamedTuple):
    """Three functions that stop something before a fork, and let it go on in parent and child."""

    before: Callable[[], Any]
    in_parent: Callable[[], Any]
    in_child: Callable[[], Any]


_one_fork = threading.Lock()
_guards: list[_Guard] = []
_stopped: list[_Guard] = []
"""The guards of the fork that is under way. One that registers meanwhile has not stopped anything."""
_functions: list[Callable[[], None]] = []
_objects: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def guard_fork(before: Callable[[], Any], in_parent: Callable[[], Any], in_child: Callable[[], Any]) -> None:
    """Stop something before each fork, and let it go on in both processes."""
    _guards.append(_Guard(before, in_parent, in_child))


def after_fork(function: F) -> F:
    """Call the function in each forked child."""
    _functions.append(function)
    return function


def renew_in_child(thing: Any, how: Callable[[Any], None]) -> None:
    """Call ``how(thing)`` in each forked child, as long as the thing lives."""
    _objects[thing] = how


def _before() -> None:
    _one_fork.acquire()
    _stopped.extend(_guards)
    for guard in reversed(_stopped):
        _call(guard.before)


def _in_parent() -> None:
    for guard in _stopped:
        _call(guard.in_parent)
    _end()


def _in_child() -> None:
    for guard in _stopped:
        _call(guard.in_child)
    for function in _functions:
        _call(function)
    for thing, how in list(_objects.items()):
        _call(how, thing)
    _end()


def _end() -> None:
    _stopped.clear()
    _one_fork.release()


def _call(function: Callable[..., Any], *args: Any) -> None:
    """Call one hook; its failure must not keep the others from their work."""
    try:
        function(*args)
    except Exception:
        logger.exception("after a fork: %s failed", getattr(function, "__qualname__", function))


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
