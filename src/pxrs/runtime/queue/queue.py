"""The queue facade: where a URL becomes a log, a registry, producers and consumers. The composition root."""

from __future__ import annotations

import os
import secrets
import socket
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, closing
from datetime import datetime
from functools import cache, partial
from typing import Any, Protocol

from pxrs.drivers import find_driver, hashes_of_other_packages
from pxrs.errors import BadSetting, Closed
from pxrs.io.clock import Clock, SystemClock
from pxrs.io.fork import renew_in_child
from pxrs.logs.base import Log, OpenOptions
from pxrs.model import Grant, MemberRow, Message, Owner, check_name
from pxrs.rules.assignment import check_assignor
from pxrs.rules.ownership import check_position
from pxrs.rules.routing.hashes import known_hashes, register_hash
from pxrs.rules.routing.partitioner import Partitioner
from pxrs.runtime import delivery
from pxrs.runtime.consumer.consumer import Consumer, Subscription
from pxrs.runtime.consumer.job import Job, MemberLink
from pxrs.runtime.consumer.workers import Workers
from pxrs.runtime.dead_letters.box import DeadLetters
from pxrs.runtime.delivery import Deliver, Handler
from pxrs.runtime.group.admin import GroupHandle
from pxrs.runtime.group.member import Member
from pxrs.runtime.group.membership import Membership
from pxrs.runtime.group.meter import Measured, Meter
from pxrs.runtime.group.until_end import FinishLine
from pxrs.runtime.group.work import Work
from pxrs.runtime.ports.events import Report
from pxrs.runtime.ports.sink import Sink, bind, check_sink
from pxrs.runtime.producer.buffer import end_buffers
from pxrs.runtime.producer.producer import NamedProducer, Producer
from pxrs.runtime.queue.housekeeping import Housekeeper, Round
from pxrs.runtime.queue.log_registry import MANUAL, Adopted, LogRegistry, group_over, make_group, message_count
from pxrs.runtime.queue.settings_file import load_settings
from pxrs.runtime.queue.urls import open_store, places_of
from pxrs.runtime.registry.registry import Registry
from pxrs.runtime.telemetry.event_log import EventLog
from pxrs.runtime.telemetry.page import serve_if_possible
from pxrs.settings import DEFAULT_HASH, DEFAULT_REDUCE, Settings, settings_or
from pxrs.stores.base import Guarantee, Store, check_guarantees

__all__ = ["DeadLetters", "Queue", "open_queue"]

Start = str | datetime
"""The start of a partition without a checkpoint: "earliest", "latest", or a time."""


def open_queue(
    url: str | None = None,
    *,
    log: str | None = None,
    registry: str | None = None,
    partitions: int | None = None,
    hash: str | Callable[[bytes], int] | None = None,
    reduce: str | None = None,
    assignor: str | None = None,
    settings: Settings | None = None,
    require: Guarantee | str | Collection[Guarantee | str] = (),
    create: bool = True,
) -> Queue:
    """Open a queue, or create it. What is left out is as recorded; what contradicts the record is refused.

    ``url`` names a log, with the registry beside it; ``log`` and ``registry`` name them apart. Where no registry is
    named, the one of PXRS_REGISTRY counts. The registry is made by the first consumer that starts, not by opening.
    """
    settings = load_settings() if settings is None else settings_or(settings, settings)
    places = places_of(url, log, registry)
    # Whatever can be refused is refused before anything is created.
    check_guarantees(find_driver("pxrs.stores", places.registry), require, places.registry)
    if assignor is not None:
        check_assignor(assignor)
    if isinstance(hash, str):
        _make_known(hash)
    wished = Partitioner(1, hash=hash or DEFAULT_HASH, reduce=reduce or DEFAULT_REDUCE)
    options = OpenOptions(partitions, wished.hash if hash else None, reduce)
    with ExitStack() as undo:
        store = None if places.is_beside else undo.enter_context(closing(open_store(places.registry, settings)))
        opened: Log = find_driver("pxrs.logs", places.log).open(places.log, options, settings, create)
        undo.callback(opened.close)
        if store is None:  # it is in the log's directory, which exists now
            store = undo.enter_context(closing(open_store(places.registry, settings)))
        _make_known(opened.identity.hash)
        partitioner = Partitioner(
            opened.identity.partitions, hash=hash or opened.identity.hash, reduce=opened.identity.reduce
        )
        undo.pop_all()
    return Queue(opened, store, partitioner, assignor, settings, SystemClock(), places.where)


def _make_known(hash_name: str) -> None:
    """A hash that another installed package brings along is registered when a queue asks for it."""
    if hash_name not in known_hashes():
        for function in hashes_of_other_packages(hash_name)[:1]:
            register_hash(hash_name, function)


class Queue:
    """A queue with its fixed number of partitions. Close it, or use it in a ``with`` block."""

    def __init__(
        self,
        log: Log,
        store: Store,
        partitioner: Partitioner,
        assignor: str | None,
        settings: Settings,
        clock: Clock,
        where: str = "",
    ) -> None:
        self.name = log.identity.name
        self.partitions = log.identity.partitions
        self.log = log
        self.store = store
        self.partitioner = partitioner
        self.settings = settings
        self._assignor = assignor
        self._clock = clock
        self._leave_producers()
        # Consumers and pipelines live from their start to their end, or as long as their queue: drop both, drop them.
        self.users: set[User] = set()
        self._subscriptions: set[Subscription] = set()
        self._stop_metrics: Callable[[], None] | None = None
        self._where = where
        self._is_told = False
        renew_in_child(self, Queue._leave_producers)
        self._housekeeper = Housekeeper(log, store, settings, clock, self._belonging(settings))
        self._closed = False

    # ---- writing and reading ---------------------------------------------------------------------------------------

    def producer(self) -> Producer:
        """Something to send with. Closing it, or its ``with`` block, waits until everything is durable."""
        self._check_open()
        producer = Producer(self.log, self.partitioner, self.settings, self._clock)
        self._producers.add(producer)
        self._housekeeper.start()
        return producer

    def named_producer(self, name: str) -> NamedProducer:
        """A producer whose numbered batches are stored once, also if another process of that name sends them again."""
        self._check_open()
        self._housekeeper.start()
        return NamedProducer(self.log, self.partitioner, self.settings, self._clock, name)

    def read(self, partition: int, offset: int, limit: int = 10) -> list[Message]:
        """Read messages without consuming them."""
        self._check_open()
        delivery.check_reading(self.name, self.partitions, partition, limit)
        check_position(partition, offset)
        found: list[Message] = []
        while len(found) < limit:
            batch = self.log.read(partition, offset + len(found), limit - len(found))
            if batch is None:
                break
            found.extend(delivery.messages_of(batch, partition))
        return found

    def ends(self) -> dict[int, int]:
        """The offset that the next message of each partition will get."""
        self._check_open()
        return {p: self.log.bounds(p)[1] for p in range(self.partitions)}

    # ---- consuming -------------------------------------------------------------------------------------------------

    def consumer(
        self,
        group: str,
        handler: Handler,
        member: str | None = None,
        deliver: Deliver = "message",
        start: Start = "earliest",
        assigned: Callable[..., Any] | None = None,
        revoked: Callable[..., Any] | None = None,
        settings: Settings | None = None,
        report: Report | None = None,
        sink: Sink | None = None,
    ) -> Consumer:
        """A member of a group. ``handler(message)`` or ``handler(message, context)``; nothing runs before ``start``.

        With a ``sink`` the handler gets Arrow batches (``deliver="arrow"``) and returns one, or None: what it returns
        is written aside and published by the commit, each message's output exactly once.

        ``assigned(partition, checkpoint, epoch)`` and ``revoked(partition, position, epoch)`` are called in the
        partition's own thread, before its first and after its last message. ``report(kind, facts)`` is called with
        everything that this member does.
        """
        self._check_open()
        settings = settings_or(settings, self.settings)
        name = check_name("member", random_member() if member is None else member)
        registry = self._registry(group, name, settings)
        handle = self._handle(registry)
        job = self._job(handle, handler, deliver, start, assigned, revoked)
        if sink is not None:
            check_sink(sink)
            if deliver != "arrow":
                raise BadSetting(
                    f"deliver = {deliver!r}: a handler with a sink gets and returns Arrow batches, deliver='arrow'"
                )
            bind(sink, self.store)
        workers = Workers()
        membership = self._join(registry, handle, workers, name, {"engine": "threads"}, settings, report)
        workers.take(job(settings=settings, link=MemberLink.to(membership), sink=sink, group=group, member=name))
        clock = self._clock
        return Consumer(membership, workers, self.users, lambda: FinishLine(handle(), clock))

    def join(
        self,
        group: str,
        work: Joined,
        member: str | None = None,
        info: Mapping[str, str] | None = None,
        settings: Settings | None = None,
        report: Report | None = None,
    ) -> Membership:
        """Take part in a group with work of any kind, as consumers and pipelines do. Nothing runs yet."""
        self._check_open()
        settings = settings_or(settings, self.settings)
        name = check_name("member", random_member() if member is None else member)
        registry = self._registry(group, name, settings)
        return self._join(registry, self._handle(registry), work, name, info, settings, report)

    def _join(
        self,
        registry: Registry,
        handle: Callable[[], GroupHandle],
        work: Joined,
        name: str,
        info: Mapping[str, str] | None,
        settings: Settings,
        report: Report | None,
    ) -> Membership:
        delivery.check_called("report", report, "kind, facts")
        # What can be refused is refused now; what is missing is made at the start.
        self._belonging(settings).check()
        registry.check(group_over(self.log, self._assignor))
        row = MemberRow(
            name, secrets.token_hex(16), lease_ms=settings.lease_ms, grace_ms=settings.grace_ms,
            joined=self._clock.wall(), info=tuple((about_this_process() | dict(info or {})).items()),
            beat_ms=settings.beat_ms,
        )  # fmt: skip
        group = registry.group_name
        told = EventLog(self.name, group, self._clock, report)
        meter = Meter(self.log, group, self._clock, told, lambda: handle().dead_letters.waiting())
        taking_part = Member(registry, work, row, settings, self._clock, _nonce, told)
        meter.connect(taking_part, work)
        enter = partial(self._enter, registry, name, told, settings)
        return Membership(registry, taking_part, meter, self._clock, f"{group}-{name}", work.halt, told, enter)

    def _enter(self, registry: Registry, member: str, told: Report, settings: Settings) -> None:
        """Make what the start of a member needs: the group, if there is none, and the threads beside the members."""
        self._check_open()
        made = make_group(self._belonging(settings), registry, self.log, self._assignor)
        if made is not None:
            told(made, {"member": member, "messages": message_count(self.log)})
        self._serve_metrics(settings)
        self._housekeeper.start()

    def _serve_metrics(self, settings: Settings) -> None:
        """Serve one page for all consumers of this queue object, opened with the first of them."""
        if settings.metrics_port and self._stop_metrics is None:
            keeper = self._housekeeper
            self._stop_metrics = serve_if_possible(
                settings.metrics_host,
                settings.metrics_port,
                lambda: [*(user.meter for user in list(self.users)), keeper],
            )

    def subscribe(self, offsets: Mapping[int, int], handler: Handler, deliver: Deliver = "message") -> Subscription:
        """Process given partitions from given offsets on, outside any group: no member, no checkpoints.

        A message that keeps failing goes to the dead letters of the group "_manual".
        """
        self._check_open()
        handle = self._handle(self._registry(MANUAL, "manual", self.settings))
        begin = handle().resolve(offsets)
        job, workers = self._job(handle, handler, deliver, "earliest", None, None), Workers()
        subscription = Subscription(workers, self._subscriptions)
        workers.take(job(settings=self.settings, link=subscription.link, group=MANUAL, member="manual"))
        workers.job.alive_until = float("inf")
        workers.start_all({Grant(p, Owner("manual", "manual"), 0): offset for p, offset in sorted(begin.items())})
        return subscription

    def group(self, name: str) -> GroupHandle:
        """The handle of a consumer group, to look at and to operate; nothing joins it by this."""
        self._check_open()
        self.tell_of_other_registry()
        own, registry = self._belonging(self.settings), self._registry(name, "operator", self.settings)
        return GroupHandle(registry, self.log, self._clock, own.record, own.check)

    def groups(self) -> list[str]:
        """The names of all groups that have consumed this queue."""
        self._check_open()
        self.tell_of_other_registry()
        base = f"{self.settings.prefix}{self.name}/"
        keys = (row.key.removeprefix(base).split("/") for row in self.store.scan(base))
        return sorted({parts[0] for parts in keys if parts[1:] == ["group"]})

    def make_group(self, name: str) -> GroupHandle:
        """Make a group that nobody is a member of yet, or find it. The log belongs to this registry from then on."""
        self._check_open()
        registry = self._registry(name, "operator", self.settings)
        make_group(self._belonging(self.settings), registry, self.log, self._assignor)
        return self.group(name)

    def check_registry(self) -> None:
        """Raise Mismatch if the log belongs to another registry. Makes nothing."""
        self._check_open()
        self._belonging(self.settings).check()

    def record_registry(self) -> None:
        """Let a log that has no registry yet belong to this one. Raise Mismatch if it has another."""
        self._check_open()
        self._belonging(self.settings).record()

    def adopt_registry(self) -> Adopted:
        """Let the log belong to this registry from now on: groups of the one that it has belonged to are refused."""
        self._check_open()
        return self._belonging(self.settings).adopt()

    def housekeep(self) -> Round:
        """Seal what is full and delete what is kept no longer, as the settings say, now instead of from time to time.

        A process that sends or consumes does this by itself, every ``housekeeping_ms``.
        """
        self._check_open()
        return self._housekeeper.round()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop consumers cleanly, flush producers, and free everything. Closing twice is harmless.

        Everything is closed whatever happens; the first error is raised at the end.
        """
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:  # in reverse: what is used by others closes last
            closing.callback(self.log.close)
            closing.callback(self.store.close)
            closing.callback(self._housekeeper.close)
            if self._stop_metrics is not None:
                closing.callback(self._stop_metrics)
            closing.callback(end_buffers, self.log)  # of producers that nobody has kept, and so nobody closes
            for producer in list(self._producers):  # after the consumers, whose handlers may send with them
                closing.callback(producer.close)
            for stop in [*(s.stop for s in self._subscriptions), *(user.stop for user in self.users)]:
                closing.callback(stop)

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}, {self.partitions} partitions{', closed' if self._closed else ''}>"

    def _leave_producers(self) -> None:
        """Begin without any. In a forked child: those that were open are the parent's, which sends what is in them."""
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"queue {self.name!r} was closed before this call")

    def _belonging(self, settings: Settings) -> LogRegistry:
        return LogRegistry(self.log, self.store, settings.prefix, self._where)

    def tell_of_other_registry(self) -> None:
        """Say once if what is shown here is not of the log's own registry."""
        if not self._is_told:
            self._is_told = True
            self._belonging(self.settings).warn_of_other()

    def _registry(self, group: str, waker: str, settings: Settings) -> Registry:
        return Registry(self.store, self.name, check_name("group", group), self._clock, settings.prefix, waker)

    def _handle(self, registry: Registry) -> Callable[[], GroupHandle]:
        """The handle of a group that is worked for; made when somebody asks for it."""
        return cache(partial(GroupHandle, registry, self.log, self._clock))  # it must not keep the queue alive

    def _job(
        self,
        group: Callable[[], GroupHandle],
        handler: Handler,
        deliver: Deliver,
        start: Start,
        assigned: Callable[..., Any] | None,
        revoked: Callable[..., Any] | None,
    ) -> Callable[..., Job]:
        """The job as the user wants it; the member that it is done for is still missing."""
        delivery.check_deliver(deliver)
        delivery.check_handler(handler)
        delivery.check_called("assigned", assigned, "partition, checkpoint, epoch")
        delivery.check_called("revoked", revoked, "partition, position, epoch")
        if start != "earliest":
            group().resolve({0: start})  # a bad start is refused here, not later in a thread
        called = delivery.taking(handler, 2)
        assert called is not None
        return partial(
            Job,
            log=self.log,
            clock=self._clock,
            handler=called,
            deliver=deliver,
            start_at=lambda partition: group().resolve({partition: start})[partition],
            dead_letters=lambda: group().dead_letters,
            assigned=delivery.taking(assigned, 3),
            revoked=delivery.taking(revoked, 3),
        )


def _nonce() -> str:
    return secrets.token_hex(16)


# ---- what a member says about the process that it runs in -----------------------------------------------------------


def random_member() -> str:
    """A name for a member that was given none: unique, and people see where it runs."""
    return f"{short_host()}-{os.getpid()}-{secrets.token_hex(3)}"


def short_host() -> str:
    """The name of this machine up to its first dot, with what no member name may hold replaced."""
    host = "".join(c if c.isalnum() or c in "-_" else "-" for c in socket.gethostname().split(".")[0])
    return host.strip("-")[:60] or "host"


def about_this_process() -> dict[str, str]:
    """The facts about its process in a member's row."""
    return {"host": short_host(), "pid": str(os.getpid())}


# ---- what works with a queue, as the queue sees it ------------------------------------------------------------------


class Joined(Work, Measured, Protocol):
    """The parts that an engine gets when it joins a group."""

    def halt(self) -> None:
        """End as a crash would: nothing more is taken, nothing is flushed."""


class User(Protocol):
    """Something that works with a queue, and ends before it."""

    @property
    def meter(self) -> Meter: ...

    def stop(self) -> None: ...
