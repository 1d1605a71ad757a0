"""The checks of the offsets topic before and while a manager serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest

from offsetmgr.core.errors import OffsetMgrError, ServerError, TimedOut
from offsetmgr.manager.log.format_check import check_format
from offsetmgr.manager.log.memory import MemoryLog
from offsetmgr.manager.log.topic import OffsetsTopicState, TopicRecreated, UnsuitableTopic
from offsetmgr.manager.node.topic_monitor import MAX_FAILED_CHECKS, OffsetsTopicMonitor
from offsetmgr.records.base import FormatMismatch, RecordFormat
from offsetmgr.records.registry import record_format


def log_with(form: RecordFormat) -> MemoryLog:
    log = MemoryLog(8)
    writer = log.writer(3)
    writer.claim(1)
    writer.append({3: form.encode_commit("g", "t", [(0, 5, -1, "")], 1_700_000_000_000, None)}, 1)
    return log


@pytest.mark.parametrize(("written", "asked"), [("avro", "kafka"), ("kafka", "avro")])
def test_a_topic_with_records_of_the_other_format_is_rejected(written: str, asked: str) -> None:
    log = log_with(record_format(written))
    with pytest.raises(
        FormatMismatch, match=f"it has records of the format {written}, but this manager would write {asked}"
    ):
        check_format(log, asked, "offsets", 5)
    check_format(log, written, "offsets", 5)
    check_format(MemoryLog(8), asked, "offsets", 5)


def keys_in(log: MemoryLog, partition: int, *keys: bytes) -> MemoryLog:
    writer = log.writer(partition % 8)
    writer.claim(2)
    writer.append({partition: [(key, b"x") for key in keys]}, 2)
    return log


@pytest.mark.parametrize("asked", ["avro", "kafka"])
@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"customer-17", "key b'customer-17'"),
        (b"", "no key"),
        (b"\x00\x00\x00\x07", "key b'\\x00\\x00\\x00\\x07'"),
        (b"O\x00" + b"x" * 20, "key b'O\\x00" + "x" * 18 + "'..."),
    ],
    ids=["text", "none", "number", "as ours begin"],
)
def test_a_topic_with_records_of_another_program_is_rejected_and_one_key_is_named(
    key: bytes, shown: str, asked: str
) -> None:
    with pytest.raises(UnsuitableTopic) as refused:
        check_format(keys_in(MemoryLog(8), 3, key), asked, "customers", 5)

    assert (
        str(refused.value) == f"topic customers: it has records that are not committed offsets (partition 3: {shown})"
    )
    assert refused.value.hint.startswith("choose another --offsets-topic")


@pytest.mark.parametrize("name", ["avro", "kafka"])
def test_a_foreign_record_with_offsets_does_not_keep_a_manager_from_starting(name: str) -> None:
    check_format(keys_in(log_with(record_format(name)), 4, b"customer-17", b""), name, "offsets", 5)


KNOWN = OffsetsTopicState("t", "first", 50, 3, 2, 1_000_000)


def looked(outcomes: Sequence[OffsetMgrError | None], note: Callable[[OffsetsTopicMonitor], None]) -> list[str]:
    """A watch whose looks end so; ``note`` is called before each of them and after the last. Gives the ids that were
    said to be seen."""
    seen: list[str] = []

    async def run() -> None:
        left = iter(outcomes)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def check(_known: OffsetsTopicState) -> None:
            note(watch)
            outcome = next(left, ...)
            if outcome is ...:
                loop.call_soon_threadsafe(done.set)
            elif outcome is not None:
                raise outcome

        watch = OffsetsTopicMonitor(KNOWN, check, seen.append, interval_s=0.001)
        watch.start()
        await asyncio.wait_for(done.wait(), 10)
        await watch.close()

    asyncio.run(run())
    return seen


def test_a_topic_that_is_not_fit_any_more_is_an_alarm_until_it_is() -> None:
    alarms: list[str | None] = []
    outcomes = [
        None,
        TimedOut("topic", "nobody answers"),
        UnsuitableTopic("topic t", "is gone"),
        TimedOut("t"),
        None,
    ]

    seen = looked(outcomes, lambda watch: alarms.append(watch.alarm))

    gone = "topic t: is gone"
    assert alarms[:6] == [None, None, None, gone, gone, None]
    assert set(seen) == {"first"}


UNEXPLAINED = ServerError("topic t", "the broker met an error that it does not explain")


def test_a_look_that_failed_is_no_alarm_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    alarms: list[str | None] = []
    outcomes = [*[UNEXPLAINED] * (MAX_FAILED_CHECKS - 1), None, UNEXPLAINED, None]

    with caplog.at_level(logging.INFO):
        looked(outcomes, lambda watch: alarms.append(watch.alarm))

    assert set(alarms) == {None}
    unknown = "the check of the offsets topic failed; its state is unknown until a check succeeds"
    assert [record.message for record in caplog.records] == [unknown, unknown]


def test_when_no_client_can_look_any_more_it_is_an_alarm_until_a_client_can() -> None:
    alarms: list[str | None] = []
    outcomes = [*[UNEXPLAINED] * (MAX_FAILED_CHECKS - 1), TimedOut("t"), UNEXPLAINED, TimedOut("t"), None, None]

    looked(outcomes, lambda watch: alarms.append(watch.alarm))

    blind = f"the offsets topic could not be checked 12 times in succession: {UNEXPLAINED}"
    assert alarms[: MAX_FAILED_CHECKS + 4] == [*[None] * (MAX_FAILED_CHECKS + 1), blind, blind, None]


def test_a_look_that_failed_does_not_hide_what_was_seen_before() -> None:
    alarms: list[str | None] = []
    outcomes = [UnsuitableTopic("topic t", "not compacted"), *[UNEXPLAINED] * (MAX_FAILED_CHECKS + 1), None]

    looked(outcomes, lambda watch: alarms.append(watch.alarm))

    assert alarms[: MAX_FAILED_CHECKS + 4] == [None, *["topic t: not compacted"] * (MAX_FAILED_CHECKS + 2), None]


def test_a_topic_that_was_recreated_is_reported_at_once_and_the_loss_stays() -> None:
    told: list[tuple[str | None, bool]] = []
    outcomes = [None, TopicRecreated("topic t", "second", "first"), UnsuitableTopic("topic t", "not compacted"), None]

    seen = looked(outcomes, lambda watch: told.append((watch.alarm, watch.recreated is not None)))

    # From then on it is the new one that has to be fit.
    assert told[:5] == [(None, False), (None, False), (None, True), ("topic t: not compacted", True), (None, True)]
    assert seen[:4] == ["first", "second", "second", "second"]
