"""What can go wrong when NATS is asked something."""

from __future__ import annotations

import json
from typing import Any

from pxrs.clients.nats_address import Address
from pxrs.errors import Unavailable


class NobodyAnswers(Unavailable):
    """The server is there, and nothing in it answers to this subject: JetStream is starting, or the stream is gone."""


class NotDoneInTime(Unavailable):
    """The loop itself has not come to an end with it: it may still happen."""


class ApiError(Exception):
    """JetStream's own answer that it will not do it; ``number`` is its err_code."""

    def __init__(self, status: int, number: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.number = number


def nobody_answers(address: Address) -> NobodyAnswers:
    return NobodyAnswers(f"{address} has no JetStream ready for this (starting, without a leader, or not enabled)")


def checked(answer: bytes) -> dict[str, Any]:
    """JetStream's answer; ApiError if it is a refusal."""
    found: dict[str, Any] = json.loads(answer)
    if error := found.get("error"):
        raise ApiError(int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description")))
    return found
