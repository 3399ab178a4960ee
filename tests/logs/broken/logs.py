"""Logs that are broken on purpose, one fault each: the conformance suite must catch every one.

``BROKEN_LOGS`` says which promise must break for which fault. A suite that lets one pass proves nothing about a driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pxrs.errors import NotFound
from pxrs.logs.base import Log, OpenOptions, agree
from pxrs.logs.memory import MemoryLog
from pxrs.model import check_name
from pxrs.settings import Settings
from pxrs.testing.log_conformance import LogSuite
from tests.logs.broken import keeping, messages

BROKEN_LOGS: dict[str, tuple[type[MemoryLog], str]] = {
    # messages
    "loses headers": (messages.LosesHeaders, "test_keys_headers_tenants_ids_and_times_come_back_bit_for_bit"),
    "null key becomes empty": (
        messages.NullKeyIsEmpty,
        "test_keys_headers_tenants_ids_and_times_come_back_bit_for_bit",
    ),
    "empty tenant becomes null": (
        messages.EmptyTenantIsNull,
        "test_keys_headers_tenants_ids_and_times_come_back_bit_for_bit",
    ),
    "times in milliseconds": (
        messages.RoundsTimes,
        "test_keys_headers_tenants_ids_and_times_come_back_bit_for_bit",
    ),
    "large values cut": (messages.CutsLargeValues, "test_large_values_are_stored"),
    "reorders": (messages.SortsByTime, "test_messages_keep_the_order_they_were_sent_in"),
    "a slice from its parent's beginning": (
        messages.ForgetsWhereASliceBegins,
        "test_a_part_of_a_larger_batch_is_stored_alone",
    ),
    "an empty batch takes an offset": (messages.EmptyTakesAnOffset, "test_an_empty_batch_stores_nothing"),
    "partitions mixed up": (messages.MixesPartitions, "test_batches_for_several_partitions_go_each_to_its_own"),
    "stores before it checks": (
        messages.StoresBeforeChecking,
        "test_a_batch_of_another_shape_is_refused_before_anything_is_stored",
    ),
    "waits beyond the end": (
        messages.WaitsBeyondTheEnd,
        "test_b27_an_offset_beyond_the_end_is_an_error_not_a_wait",
    ),
    "no Expired below the start": (messages.SkipsToTheStart, "test_b39_a_reader_behind_a_trim_is_told_the_gap"),
    "Expired without the gap": (keeping.ExpiredWithoutTheGap, "test_b39_a_reader_behind_a_trim_is_told_the_gap"),
    "forgets stamps of a few messages": (
        messages.FewRowsAreNotStamped,
        "test_a_few_messages_as_plain_values_are_stored_as_batches_are",
    ),
    "drops a message at max_rows": (messages.DropsAtMaxRows, "test_reads_start_anywhere_and_keep_to_max_rows"),
    "ignores max_rows": (messages.IgnoresMaxRows, "test_reads_start_anywhere_and_keep_to_max_rows"),
    "believes that times rise": (
        messages.BelievesThatTimesRise,
        "test_finds_an_offset_by_time_where_times_do_not_rise",
    ),
    "finds what is trimmed by time": (
        messages.FindsWhatIsTrimmed,
        "test_an_offset_by_time_is_never_below_the_start",
    ),
    # retries
    "stores retries again": (messages.StoresRetriesAgain, "test_b62_the_same_stamp_is_stored_once"),
    "a new offset for a retry": (messages.RetryGetsTheEnd, "test_b62_a_retry_gets_the_old_offset"),
    "forgets stamps at reopening": (
        messages.ForgetsStampsAtReopening,
        "test_b62_a_retry_after_reopening_is_known",
    ),
    "believes any content": (
        messages.BelievesAnyContent,
        "test_b62_other_content_under_a_used_stamp_is_refused_and_nothing_is_stored",
    ),
    "takes what it forgot for new": (
        messages.ForgetsAndGuesses,
        "test_b62_a_retry_that_says_since_when_is_never_stored_twice",
    ),
    "compares the sequence alone": (
        messages.ComparesTheSequenceAlone,
        "test_b62_another_producer_or_sequence_is_another_batch",
    ),
    "producer and sequence run together": (
        messages.JoinsProducerAndSequence,
        "test_b62_another_producer_or_sequence_is_another_batch",
    ),
    "one window for all partitions": (
        messages.OneWindowForAllPartitions,
        "test_b62_a_stamp_counts_for_its_partition_alone",
    ),
    "remembers what it refused": (
        messages.RemembersWhatItRefused,
        "test_b62_a_refused_batch_does_not_use_up_its_stamp",
    ),
    "swallows late retries": (
        messages.SwallowsLateRetries,
        "test_b62_a_retry_long_after_is_never_swallowed",
    ),
    # several who use it
    "acknowledges before it stores": (
        keeping.AcknowledgesFirst,
        "test_what_is_acknowledged_is_there_after_reopening",
    ),
    "looks and writes in two steps": (
        keeping.LooksThenWrites,
        "test_threads_that_append_to_one_partition_stay_dense_and_lose_nothing",
    ),
    "half a batch visible": (keeping.HalfBatches, "test_readers_see_no_half_batch"),
    "wakes before it stores": (
        keeping.WakesBeforeStoring,
        "test_a_reader_that_looks_when_told_misses_nothing",
    ),
    "lost wake-up of another opener": (
        keeping.WakesItsOwnOnly,
        "test_every_subscriber_hears_of_an_append_by_another_opener",
    ),
    "fails with its subscriber": (
        keeping.FailsWithItsSubscriber,
        "test_a_subscriber_that_fails_harms_nobody",
    ),
    "cancel does nothing": (keeping.NeverCancels, "test_a_cancelled_subscription_is_silent"),
    # chunks, trims, seals, pieces
    "chunks without the last": (
        keeping.ChunksWithoutTheLast,
        "test_chunks_are_contiguous_and_cover_what_can_be_read",
    ),
    "chunks without a size": (keeping.ChunksWithoutSize, "test_chunks_tell_their_size_and_their_newest_time"),
    "chunks with the last time": (
        keeping.ChunksWithTheLastTime,
        "test_chunks_tell_their_size_and_their_newest_time",
    ),
    "trims too much": (keeping.TrimsTooMuch, "test_a_trim_deletes_whole_chunks_only"),
    "end resets after a trim": (
        keeping.EndGoesBackToZero,
        "test_a_trim_of_everything_keeps_the_end_and_the_next_offset",
    ),
    "offset gap after a trim": (keeping.GapAfterATrim, "test_offsets_go_on_without_a_gap_after_a_trim"),
    "trims beyond the end": (keeping.TrimsBeyondTheEnd, "test_a_trim_beyond_the_end_is_refused"),
    "trims every partition": (keeping.TrimsEveryPartition, "test_a_trim_concerns_its_partition_alone"),
    "start goes back": (keeping.AnswersWithWhatWasAsked, "test_a_trim_never_goes_back"),
    "forgets trims": (keeping.ForgetsTrims, "test_a_trim_is_seen_by_others_and_after_reopening"),
    "seal turns messages round": (keeping.SealTurnsRound, "test_a_seal_changes_no_message"),
    "seal forgets stamps": (
        keeping.SealForgetsStamps,
        "test_appends_retries_and_trims_go_on_after_a_seal",
    ),
    "seal tells of old chunks": (keeping.SealTellsEverything, "test_a_seal_tells_only_what_it_made"),
    "pieces that are not there": (
        keeping.PiecesThatAreNotThere,
        "test_pieces_cover_exactly_what_was_asked_for",
    ),
    # names and the end
    "shares siblings": (keeping.OneForAllSiblings, "test_a_sibling_is_a_log_of_its_own"),
    "any name of a sibling": (keeping.AnySiblingName, "test_b66_bad_sibling_names_are_refused"),
    "any count of a sibling": (
        keeping.AnyCountOfASibling,
        "test_b67_a_sibling_with_another_count_is_refused",
    ),
    "a new id each time": (keeping.ANewIdEachTime, "test_every_log_has_an_id_of_its_own_and_keeps_it"),
    "works when closed": (keeping.WorksWhenClosed, "test_a_closed_log_says_so"),
}


class BrokenLogSuite(LogSuite):
    """The suite over a log in memory. What must happen happens in milliseconds there, so it waits less."""

    patience: ClassVar[float] = 0.5

    def __init__(self, kind: type[MemoryLog]) -> None:
        self.kind = kind
        self._made: dict[tuple[Path, str], MemoryLog] = {}

    def make_log(
        self, place: Path, name: str = "q", create: bool = True, settings: Settings | None = None, **wish: Any
    ) -> Log:
        made = self._made.get((place, check_name("queue", name)))
        if made is None and not create:
            raise NotFound(f"there is no log {name!r}")
        if made is None:
            made = MemoryLog.open("memory:", OpenOptions(**wish), settings or Settings(), create)
            made._content.identity = agree(name, OpenOptions(**wish), None)
            self._made[place, name] = made
        agree(name, OpenOptions(**wish), made._content.identity)
        return self.kind(made._content)
