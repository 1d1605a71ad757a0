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
from offsetmgr.testing.blocking_writer import BlockingWriter


def log_with(form: RecordFormat) -> MemoryLog:
    log = MemoryLog(8)
    writer = BlockingWriter(log.writer(3))
    writer.claim(1)
    writer.append({3: form.encode_commit("g", "t", [(0, 5, -1, "")], 1_700_000_000_000, None)}, 1)
    return log


@pytest.mark.parametrize(("written", "configured"), [("avro", "kafka"), ("kafka", "avro")])
def test_a_topic_with_records_of_the_other_format_is_rejected(written: str, configured: str) -> None:
    log = log_with(record_format(written))
    with pytest.raises(
        FormatMismatch, match=f"it has records of the format {written}, but this manager would write {configured}"
    ):
        check_format(log, configured, "offsets", 5)
    check_format(log, written, "offsets", 5)
    check_format(MemoryLog(8), configured, "offsets", 5)


def keys_in(log: MemoryLog, partition: int, *keys: bytes) -> MemoryLog:
    writer = BlockingWriter(log.writer(partition % 8))
    writer.claim(2)
    writer.append({partition: [(key, b"x") for key in keys]}, 2)
    return log


@pytest.mark.parametrize("configured", ["avro", "kafka"])
@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"customer-17", "key b'customer-17'"),
        (b"", "no key"),
        (b"\x00\x00\x00\x07", "key b'\\x00\\x00\\x00\\x07'"),
        (b"O\x00" + b"x" * 20, "key b'O\\x00" + "x" * 18 + "'..."),
    ],
    ids=["text", "none", "number", "prefix of our keys"],
)
def test_a_topic_with_records_of_another_program_is_rejected_and_one_key_is_named(
    key: bytes, shown: str, configured: str
) -> None:
    with pytest.raises(UnsuitableTopic) as refused:
        check_format(keys_in(MemoryLog(8), 3, key), configured, "customers", 5)

    assert (
        str(refused.value) == f"topic customers: it has records that are not committed offsets (partition 3: {shown})"
    )
    assert refused.value.hint.startswith("choose another --offsets-topic")


@pytest.mark.parametrize("name", ["avro", "kafka"])
def test_a_foreign_record_with_offsets_does_not_keep_a_manager_from_starting(name: str) -> None:
    check_format(keys_in(log_with(record_format(name)), 4, b"customer-17", b""), name, "offsets", 5)


KNOWN = OffsetsTopicState("t", "first", 50, 3, 2, 1_000_000)


def monitored_ids(outcomes: Sequence[OffsetMgrError | None], note: Callable[[OffsetsTopicMonitor], None]) -> list[str]:
    """Runs a monitor whose checks have these outcomes. ``note`` is called before each check and after the last one.
    Returns the topic ids that the monitor reported."""
    seen: list[str] = []

    async def run() -> None:
        left = iter(outcomes)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def check(_known: OffsetsTopicState) -> None:
            note(monitor)
            outcome = next(left, ...)
            if outcome is ...:
                loop.call_soon_threadsafe(done.set)
            elif outcome is not None:
                raise outcome

        monitor = OffsetsTopicMonitor(KNOWN, check, seen.append, interval_s=0.001)
        monitor.start()
        await asyncio.wait_for(done.wait(), 90)
        await monitor.close()

    asyncio.run(run())
    return seen


def test_an_unsuitable_topic_is_an_alarm_until_it_is_suitable_again() -> None:
    alarms: list[str | None] = []
    outcomes = [
        None,
        TimedOut("topic", "no answer"),
        UnsuitableTopic("topic t", "is gone"),
        TimedOut("t"),
        None,
    ]

    seen = monitored_ids(outcomes, lambda monitor: alarms.append(monitor.alarm))

    gone = "topic t: is gone"
    assert alarms[:6] == [None, None, None, gone, gone, None]
    assert set(seen) == {"first"}


UNEXPLAINED = ServerError("topic t", "the broker met an error that it does not explain")


def test_a_failed_check_is_no_alarm_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    alarms: list[str | None] = []
    outcomes = [*[UNEXPLAINED] * (MAX_FAILED_CHECKS - 1), None, UNEXPLAINED, None]

    with caplog.at_level(logging.INFO):
        monitored_ids(outcomes, lambda monitor: alarms.append(monitor.alarm))

    assert set(alarms) == {None}
    unknown = "the check of the offsets topic failed; its state is unknown until a check succeeds"
    assert [record.message for record in caplog.records] == [unknown, unknown]


def test_many_failed_checks_in_succession_are_an_alarm_until_one_succeeds() -> None:
    alarms: list[str | None] = []
    outcomes = [*[UNEXPLAINED] * (MAX_FAILED_CHECKS - 1), TimedOut("t"), UNEXPLAINED, TimedOut("t"), None, None]

    monitored_ids(outcomes, lambda monitor: alarms.append(monitor.alarm))

    unchecked = f"the offsets topic could not be checked 12 times in succession: {UNEXPLAINED}"
    assert alarms[: MAX_FAILED_CHECKS + 4] == [*[None] * (MAX_FAILED_CHECKS + 1), unchecked, unchecked, None]


def test_a_failed_check_does_not_hide_an_earlier_finding() -> None:
    alarms: list[str | None] = []
    outcomes = [UnsuitableTopic("topic t", "not compacted"), *[UNEXPLAINED] * (MAX_FAILED_CHECKS + 1), None]

    monitored_ids(outcomes, lambda monitor: alarms.append(monitor.alarm))

    assert alarms[: MAX_FAILED_CHECKS + 4] == [None, *["topic t: not compacted"] * (MAX_FAILED_CHECKS + 2), None]


def test_a_recreated_topic_is_reported_immediately_and_stays_reported() -> None:
    reported: list[tuple[str | None, bool]] = []
    outcomes = [None, TopicRecreated("topic t", "second", "first"), UnsuitableTopic("topic t", "not compacted"), None]

    seen = monitored_ids(outcomes, lambda monitor: reported.append((monitor.alarm, monitor.recreated is not None)))

    # From then on, the monitor checks the new topic.
    assert reported[:5] == [(None, False), (None, False), (None, True), ("topic t: not compacted", True), (None, True)]
    assert seen[:4] == ["first", "second", "second", "second"]
