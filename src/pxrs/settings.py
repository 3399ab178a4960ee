"""All settings, in one frozen object whose relations are checked when it is made.

Three ways to set one, the later wins: a YAML file, an environment variable (``PXRS_LEASE_MS=2000``), an
argument (``lease_ms=2000``). ``pxrs.load_settings`` puts the three together, and so does a queue that is opened
without settings; an object made in code is taken as it is. Durations carry their unit in the name.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pxrs.errors import BadSetting

OnFailure = Literal["dead-letter", "skip", "stop"]
Durability = Literal["fsync", "flush"]
Compression = Literal["none", "lz4", "zstd"]
SealCompression = Literal["zstd", "snappy", "lz4", "none"]

DEFAULT_PARTITIONS = 16
DEFAULT_HASH = "xxh64-spark"
DEFAULT_REDUCE = "pmod"
MAX_PARTITIONS = 65_536


@dataclass(frozen=True, slots=True)
class Settings:
    """How the members of a queue behave. The value 0 of a derived duration means: follow the lease."""

    # Membership
    lease_ms: int = 10_000
    """A member that is silent for this long is judged dead by the leader."""
    beat_ms: int = 0
    """The interval between heartbeats of a member; 0 = a third of the lease."""
    stop_taking_ms: int = 0
    """Without a confirmed beat for this long a member stops its own handlers; 0 = two thirds of the lease."""
    poll_ms: int = 10_000
    """The registry is read at least this often: the safety net behind the watch."""
    grace_ms: int = 0
    """A member that comes back within this time finds its partitions where they were; 0 = the lease alone."""
    drain_ms: int = 20_000
    """A member that leaves waits this long for running handlers."""
    revoke_timeout_ms: int = 30_000
    """The leader waits this long for a member to give a partition up before it takes it by force."""
    progress_limit_ms: int = 300_000
    """A handler that runs longer than this on one message makes its member step back from the group."""

    # Commits
    commit_every: int = 1_000
    """Commit a partition after this many messages..."""
    commit_interval_ms: int = 1_000
    """...or after this long, whichever comes first; and always when it is handed over."""

    # Handlers
    tries: int = 3
    """A failing message is given to the handler this many times before the failure policy decides."""
    backoff_ms: int = 100
    """The wait before the second try; it doubles with each further one."""
    backoff_max_ms: int = 10_000
    """The longest of these waits."""
    on_failure: OnFailure = "dead-letter"
    """After the last try: keep the message with its cause in the dead letters, skip it, or stop the consumer."""
    prefetch_rows: int = 10_000
    """The most messages of one partition that are held in memory ahead of the handler."""

    deliver_rows: int = 1_000
    """The most messages that a handler of lists or Arrow batches gets at once."""

    # Pipelines
    target_batch_ms: int = 1_000
    """A pipeline makes its batches as large as it can process in about this time; it must be below ``drain_ms``."""
    max_batch_rows: int = 10_000_000
    """No batch of a pipeline has more messages than this."""
    fast_rows: int = 10_000
    """A batch of at most this many messages is read in the driver, which saves a Spark job; 0 = never."""

    # Producer
    linger_ms: int = 5
    """The longest time that a message waits for others before it is written together with them."""
    batch_rows: int = 10_000
    """A batch is written as soon as it holds this many messages..."""
    batch_bytes: int = 1_048_576
    """...or this many bytes."""
    buffer_bytes: int = 33_554_432
    """The most bytes that may wait to be written; then ``send`` blocks..."""
    send_timeout_ms: int = 60_000
    """...for this long at most."""

    # Log
    segment_bytes: int = 134_217_728
    """A segment file of this size is full; the next batch opens a new one."""
    durability: Durability = "fsync"
    """The meaning of an acknowledgement: on the disk ("fsync"), or handed to the operating system ("flush")."""
    compression: Compression = "none"
    """The compression of batches in segments. What is not compressed is read without a copy."""

    # Housekeeping
    housekeeping_ms: int = 10_000
    """The interval at which a process that sends or consumes seals full segments and deletes old messages."""
    seal: Literal["auto", "manual"] = "auto"
    """Whether full segments become Parquet by themselves, or by ``pxrs log seal`` only."""
    seal_after_ms: int = 60_000
    """A segment is sealed when it has been full for this long: consumers that are close behind read it uncopied."""
    seal_compression: SealCompression = "snappy"
    """The compression of sealed segments."""
    retention_ms: int = 0
    """Messages older than this are deleted; 0 = kept."""
    retention_bytes: int = 0
    """The oldest messages of a partition that is larger than this are deleted; 0 = kept."""
    retain: Literal["all", "unconsumed"] = "all"
    """Whether messages that every group has consumed are kept. No rule deletes what a group has still to consume."""
    delete_delay_ms: int = 60_000
    """Files are deleted this much later than their messages: a job that was planned before still finds them."""
    on_expired: Literal["stop", "skip"] = "stop"
    """A consumer whose next message is deleted: stop with an error, or go on with the oldest there is."""

    # Elsewhere
    prefix: str = "/pxrs/"
    """The beginning of every key in the registry: several deployments can share one store."""
    metrics_port: int = 0
    """Serve Prometheus text on this port; 0 = do not. One that is taken is a warning: the consumer goes on."""
    metrics_host: str = "127.0.0.1"
    """The address on which the metrics page is served; "0.0.0.0" = all of this machine, for all who reach it."""

    def __new__(cls, *_: Any, **values: Any) -> Settings:
        check_names(values, "Settings")  # before the dataclass's own TypeError, which does not say what to write
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for field, kind in _KINDS.items():
            _check_kind(field, getattr(self, field), kind)
        _fill(self, "beat_ms", max(1, self.lease_ms // 3))
        _fill(self, "stop_taking_ms", self.lease_ms * 2 // 3)
        _check_ranges(self)
        _check_relations(self)

    def with_(self, **changes: Any) -> Settings:
        """A copy with some values changed. Durations that follow the lease follow the new one."""
        if "lease_ms" in changes:
            changes = {"beat_ms": 0, "stop_taking_ms": 0, **changes}
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Every setting by name."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], source: str = "settings") -> Settings:
        """Make settings from parsed YAML. Unknown names are refused, with the nearest known one in the text."""
        check_names(values, source)
        return cls(**values)


_KINDS: dict[str, Any] = get_type_hints(Settings)

_MINIMUM = {
    "lease_ms": 50, "poll_ms": 1, "drain_ms": 1, "revoke_timeout_ms": 1, "progress_limit_ms": 1,
    "commit_every": 1, "commit_interval_ms": 1, "tries": 1, "prefetch_rows": 1, "deliver_rows": 1, "batch_rows": 1,
    "batch_bytes": 1, "buffer_bytes": 1, "send_timeout_ms": 1, "segment_bytes": 1, "housekeeping_ms": 1,
    "target_batch_ms": 1, "max_batch_rows": 1,
}  # fmt: skip

_LONGEST_MS, _LARGEST = 2**63 // 10**6, 2**63 - 1
"""The largest numbers: system clocks can wait for 292 years, and files and stores can count as far."""
_SHOWN = 60
_SIMILAR = 0.8
"""The least likeness of two names, by difflib, at which one is taken for a slip of the other."""


def _fill(settings: Settings, field: str, value: int) -> None:
    if getattr(settings, field) == 0:
        object.__setattr__(settings, field, value)


def _check_kind(name: str, value: object, kind: Any) -> None:
    if get_origin(kind) is Literal:
        if not isinstance(value, str) or value not in get_args(kind):
            raise BadSetting(f"{name} = {shown(value)}: one of {', '.join(map(repr, get_args(kind)))}")
    elif type(value) is not kind:
        raise BadSetting(f"{name} = {shown(value)}: must be {kind.__name__}, not {type(value).__name__}")


def _check_ranges(settings: Settings) -> None:
    for name, kind in _KINDS.items():
        value = getattr(settings, name)
        if kind is int and value < _MINIMUM.get(name, 0):
            raise BadSetting(f"{name} = {shown(value)}: must be at least {_MINIMUM.get(name, 0)}")
        if kind is int and value > (most := _LONGEST_MS if name.endswith("_ms") else _LARGEST):
            raise BadSetting(f"{name} = {shown(value)}: must be at most {most}")
    if not settings.prefix.isprintable():
        raise BadSetting(f"prefix = {shown(settings.prefix)}: must be printable, as '/pxrs/' is")
    if not settings.prefix.startswith("/") or not settings.prefix.endswith("/"):
        raise BadSetting(f"prefix = {settings.prefix!r}: must begin and end with '/', as '/pxrs/' does")
    if settings.metrics_port > 65_535:
        raise BadSetting(f"metrics_port = {settings.metrics_port}: ports end at 65535")
    if not settings.metrics_host.strip():
        raise BadSetting(f"metrics_host = {settings.metrics_host!r}: an address or a name; '0.0.0.0' means all")


def _check_relations(settings: Settings) -> None:
    # (smaller, larger, why): each line is a way in which such a system has really failed.
    rules = (
        ("beat_ms", "stop_taking_ms", "a member must be able to miss one beat before it stops itself"),
        ("stop_taking_ms", "lease_ms", "a member must stop itself before others may take over"),
        ("drain_ms", "revoke_timeout_ms", "a leader must not force what is still being drained"),
        ("lease_ms", "progress_limit_ms", "a handler may be slower than a beat"),
        ("batch_bytes", "buffer_bytes", "a whole batch must fit into the buffer"),
        ("backoff_ms", "backoff_max_ms", "the first wait is the shortest"),
    )
    for small, large, why in rules:
        low, high = getattr(settings, small), getattr(settings, large)
        if low > high or (low == high and small in ("beat_ms", "stop_taking_ms")):
            raise BadSetting(f"{small} = {low} must be below {large} = {high}: {why}")


def shown(value: object) -> str:
    """A value in an error, however large it is: a nest of YAML, or a number of thousands of digits."""
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python does not write out such a number
        return f"a {type(value).__name__} of many digits"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def settings_or(given: Settings | None, otherwise: Settings) -> Settings:
    """The settings that were given, or those that count if none were; anything else is refused."""
    if given is not None and not isinstance(given, Settings):
        raise BadSetting(f"settings = {shown(given)}: must be pxrs.Settings, not {type(given).__name__}")
    return otherwise if given is None else given


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no number of seconds. None and a number below 0 are for the caller to understand."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or value != value):
        raise BadSetting(f"{name} = {shown(value)}: must be a number of seconds, as 2.5 is")


def check_patience(patience: object) -> None:
    """Refuse what does not say how many seconds to wait for something that does not answer."""
    if isinstance(patience, bool) or not isinstance(patience, Real) or not float(patience) >= 0:
        raise BadSetting(f"patience = {shown(patience)}: seconds are needed, 0 or more")


def check_names(values: Mapping[str, Any], source: str) -> None:
    """Refuse names that are no settings; ``source`` says where they were written."""
    if not isinstance(values, Mapping):
        raise BadSetting(
            f"{source} = {shown(values)}: must be a mapping of names to values, as {{'lease_ms': 2000}} is"
        )
    for name in values:
        if name not in _KINDS:
            raise BadSetting(f"{source}: unknown setting {shown(name)}{_nearest(shown(name))}")


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, _KINDS, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(_KINDS))}"


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the settings in the environment, as values of the right kind. Misspelt names are refused."""
    _check_spelling(environ)
    found: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        text = environ.get(f"PXRS_{name.upper()}")
        if text is not None:
            found[name] = _parse(name, text, kind)
    return found


def _check_spelling(environ: Mapping[str, str]) -> None:
    """Names that merely begin with PXRS_ may be anybody's; one that is nearly a setting's is a slip."""
    for name in map(str, environ):
        word = name.removeprefix("PXRS_").lower()
        near = difflib.get_close_matches(word, _KINDS, n=1, cutoff=_SIMILAR) if name.startswith("PXRS_") else []
        if near and word not in _KINDS:
            raise BadSetting(f"{name} in the environment is no setting; did you mean PXRS_{near[0].upper()}?")


def _parse(name: str, text: str, kind: Any) -> Any:
    if kind is not int:
        return text
    try:
        return int(text)
    except ValueError:
        raise BadSetting(f"PXRS_{name.upper()} = {shown(text)}: must be a whole number") from None
