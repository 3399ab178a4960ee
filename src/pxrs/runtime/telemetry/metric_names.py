"""The names of all metrics, with what each means. They are stable: dashboards and alerts are built on them."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]


class Metric(NamedTuple):
    """``labels`` are in the order in which samples give them."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]


class Sample(NamedTuple):
    """One value of one metric now."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


_MEMBER = ("queue", "group", "member")
_QUEUE = ("queue",)
_GROUP = ("queue", "group")
_PARTITION = (*_GROUP, "partition")
# A partition's series must go on when it moves, so they have no label for the member; one series names the owner.
_OWNER = (*_PARTITION, "member")

LAG_MESSAGES = Metric("pxrs_lag_messages", "gauge", "messages behind the end of the log", _PARTITION)
LAG_SECONDS = Metric("pxrs_lag_seconds", "gauge", "how long the next message has been waiting", _PARTITION)
CHECKPOINT = Metric("pxrs_checkpoint", "gauge", "the committed offset: the next message to process", _PARTITION)
OWNER_EPOCH = Metric("pxrs_owner_epoch", "gauge", "the epoch under which this member owns the partition", _OWNER)
OWNED_PARTITIONS = Metric("pxrs_owned_partitions", "gauge", "partitions in this member's hands", _MEMBER)
PARKED_PARTITIONS = Metric(
    "pxrs_parked_partitions", "gauge", "owned partitions that wait for their log, sink, dead letters or a disk", _MEMBER
)
BEAT_AGE_SECONDS = Metric("pxrs_beat_age_seconds", "gauge", "time since the registry confirmed a beat", _MEMBER)
LEADS = Metric("pxrs_leads", "gauge", "1 if this member leads its group", _MEMBER)
REBALANCES = Metric("pxrs_rebalances_total", "counter", "rebalances that this member led to their end", _MEMBER)
CLAIMS = Metric("pxrs_claims_total", "counter", "partitions claimed", _MEMBER)
RELEASES = Metric("pxrs_releases_total", "counter", "partitions handed over cleanly", _MEMBER)
LOSSES = Metric("pxrs_losses_total", "counter", "partitions lost without a clean hand-over", _MEMBER)
COMMITS = Metric("pxrs_commits_total", "counter", "checkpoints stored", _MEMBER)
FENCED_WRITES = Metric("pxrs_fenced_writes_total", "counter", "late writes that were refused", _MEMBER)
TROUBLES = Metric("pxrs_registry_troubles_total", "counter", "rounds in which the registry did not answer", _MEMBER)
BATCHES = Metric("pxrs_batches_total", "counter", "batches that a pipeline has worked off", _MEMBER)
HANDLED = Metric("pxrs_handled_total", "counter", "messages processed", _MEMBER)
RETRIED = Metric("pxrs_retried_total", "counter", "calls of the handler after a failure", _MEMBER)
SKIPPED = Metric("pxrs_skipped_total", "counter", "messages skipped by the failure policy", _MEMBER)
DEAD_LETTERED = Metric("pxrs_dead_lettered_total", "counter", "messages put into the dead letters", _MEMBER)
PASSED_OVER = Metric(
    "pxrs_passed_over_total", "counter", "dead letters that were sent again for another group, passed over", _MEMBER
)
HANDLER_SECONDS = Metric("pxrs_handler_seconds_total", "counter", "time spent in the handler", _MEMBER)
EXPIRED = Metric(
    "pxrs_expired_messages_total", "counter", "messages that retention deleted before they were processed", _MEMBER
)
SEALED_SEGMENTS = Metric("pxrs_sealed_segments_total", "counter", "segments that this process made Parquet", _QUEUE)
TRIMMED_MESSAGES = Metric(
    "pxrs_trimmed_messages_total", "counter", "messages that retention deleted in this process", _QUEUE
)

# Metrics of whole groups, read from the registry's rows and the log by `pxrs metrics`. The dead letters
# are also on the page of the consumer that leads the group.
GROUP_DEAD_LETTERS = Metric(
    "pxrs_group_dead_letters", "gauge", "dead letters that were not sent again: they wait for somebody", _GROUP
)
GROUP_OLDEST_DEAD_LETTER = Metric(
    "pxrs_group_oldest_dead_letter_seconds", "gauge", "age of the oldest dead letter that waits; 0 = none", _GROUP
)
GROUP_LAG_MESSAGES = Metric("pxrs_group_lag_messages", "gauge", "messages behind the checkpoint", _PARTITION)
GROUP_LAG_SECONDS = Metric(
    "pxrs_group_lag_seconds", "gauge", "how long the message at the checkpoint has been waiting", _PARTITION
)
GROUP_CHECKPOINT = Metric("pxrs_group_checkpoint", "gauge", "the committed offset of the row", _PARTITION)
GROUP_MEMBERS = Metric(
    "pxrs_group_members", "gauge", "members by state: alive, or dead (their processes show no life)", (*_GROUP, "state")
)
GROUP_PARTITIONS = Metric(
    "pxrs_group_partitions", "gauge", "partitions by state: owned, free, paused, parked or damaged", (*_GROUP, "state")
)
GROUP_UP = Metric("pxrs_group_up", "gauge", "1 if the group's rows and its part of the log could be read", _GROUP)
UP = Metric("pxrs_up", "gauge", "1 if the registry could be read", _QUEUE)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
