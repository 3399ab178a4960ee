"""The proof at the end of the demo: from what was sent and what the consumers wrote down. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Sent(NamedTuple):
    """A message as the producer knows it, once it is durable."""

    number: int
    key: str
    partition: int
    offset: int


class Handled(NamedTuple):
    """One call of a handler, as the consumer wrote it down. ``line`` is its line in that consumer's file."""

    member: str
    pid: int
    partition: int
    offset: int
    epoch: int
    key: str
    number: int
    line: int


@dataclass(frozen=True)
class Proof:
    """The numbers that hold; ``faults`` says what does not."""

    sent: int
    handled: int
    keys: int
    repeated: int
    faults: list[str]

    @property
    def holds(self) -> bool:
        return not self.faults


def prove(sent: Sequence[Sent], handled: Iterable[Handled], tail: Mapping[int, range]) -> Proof:
    """``tail``: for each partition of the killed consumer the offsets that it had handled and not committed."""
    calls = sorted(handled, key=lambda call: (call.partition, call.epoch, call.line))
    repeats = _repeats(calls)
    faults = [
        *_lost(sent, calls),
        *_elsewhere(sent, calls),
        *_out_of_order(sent, calls),
        *_unexplained(repeats, tail),
    ]
    distinct = len({call.number for call in calls})
    return Proof(len(sent), distinct, len({message.key for message in sent}), len(repeats), faults)


def _lost(sent: Sequence[Sent], calls: Sequence[Handled]) -> list[str]:
    missing = {message.number for message in sent} - {call.number for call in calls}
    return [f"not handled: messages {_some(missing)}"] if missing else []


def _elsewhere(sent: Sequence[Sent], calls: Sequence[Handled]) -> list[str]:
    """Find calls about a message that was not sent, or with another partition or offset than the producer's."""
    known = {message.number: (message.key, message.partition, message.offset) for message in sent}
    strange = {call.number for call in calls if known.get(call.number) != (call.key, call.partition, call.offset)}
    return [f"handled, but not as they were sent: messages {_some(strange)}"] if strange else []


def _out_of_order(sent: Sequence[Sent], calls: Sequence[Handled]) -> list[str]:
    """Per key, the first handling of each message must come in the order in which they were sent.

    Calls of one partition are ordered by the owner's epoch, then by the line in that owner's file.
    """
    wanted: dict[str, list[int]] = {}
    for message in sent:
        wanted.setdefault(message.key, []).append(message.number)
    found: dict[str, dict[int, None]] = {}
    for call in calls:
        found.setdefault(call.key, {}).setdefault(call.number)
    wrong = {key for key, numbers in found.items() if list(numbers) != [n for n in wanted.get(key, []) if n in numbers]}
    return [f"out of order: keys {_some(wrong)}"] if wrong else []


def _repeats(calls: Sequence[Handled]) -> list[Handled]:
    seen: Counter[int] = Counter()
    repeats = []
    for call in calls:
        seen[call.number] += 1
        if seen[call.number] > 1:
            repeats.append(call)
    return repeats


def _unexplained(repeats: Sequence[Handled], tail: Mapping[int, range]) -> list[str]:
    wrong = {call.number for call in repeats if call.offset not in tail.get(call.partition, range(0))}
    return [f"repeated, though their checkpoint was stored: messages {_some(wrong)}"] if wrong else []


def _some(things: Iterable[object]) -> str:
    listed = sorted(map(str, things), key=lambda text: (len(text), text))
    return ", ".join(listed[:10]) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
