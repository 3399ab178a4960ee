"""The text of an error can always be made and stored: dead letters and log lines live on it."""

from __future__ import annotations

import pytest

from pxrs.runtime.failures.error_summary import STACK_BYTES, TEXT_BYTES, error_stack, error_summary, error_text


class _NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class _Number(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # as users' classes do


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as found:
        return found


def test_a_lone_surrogate_is_escaped() -> None:
    assert error_text(ValueError("unknown \ud800")) == "ValueError: unknown \\ud800"
    assert "unknown \\ud800" in error_stack(raised(ValueError("unknown \ud800")))
    assert error_summary(ValueError("unknown \ud800")) == "ValueError: unknown \\ud800"


@pytest.mark.parametrize(
    ("kind", "trouble"), [(_NoText, "RuntimeError"), (_Exits, "SystemExit"), (_Number, "TypeError")]
)
def test_an_error_that_cannot_say_its_text_is_named_by_its_type(kind: type[Exception], trouble: str) -> None:
    expected = f"{kind.__name__}: (its text cannot be shown: {trouble})"
    assert error_text(kind()) == expected
    assert error_summary(kind()) == expected
    assert kind.__name__ in error_stack(raised(kind()))


def test_nuls_and_an_empty_text_are_fine() -> None:
    assert error_text(ValueError("a\0b")) == "ValueError: a\0b"
    assert error_text(ValueError()) == "ValueError"


@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
def test_a_text_keeps_its_beginning_and_a_stack_its_end(letter: str) -> None:
    error = raised(ValueError("first " + letter * 30_000 + " last"))
    text, stack = error_text(error), error_stack(error)
    assert TEXT_BYTES - 6 < len(text.encode()) <= TEXT_BYTES
    assert text.startswith("ValueError: first " + letter) and text.endswith(letter + "…")
    assert STACK_BYTES - 6 < len(stack.encode()) <= STACK_BYTES
    assert stack.startswith("…" + letter) and stack.endswith(letter + " last\n")
