"""The step that a plan decides for each offset, from both sides and the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_migration import ORDERS

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.model import ABSENT, Committed, LogRange, OffsetAndMetadata
from offsetmgr.migration.plan import Action, AheadPolicy, MissingTopic, PlanOptions, PlanStep, decide


@pytest.mark.parametrize(
    ("source", "target", "log", "options", "action", "after"),
    [
        (OffsetAndMetadata(42), ABSENT, LogRange(0, 100), PlanOptions(), Action.COPY, 42),
        (OffsetAndMetadata(42), Committed(40), LogRange(0, 100), PlanOptions(), Action.COPY, 42),
        (OffsetAndMetadata(42), Committed(42), LogRange(0, 100), PlanOptions(), Action.SKIP_EQUAL, 42),
        (OffsetAndMetadata(42), Committed(43), LogRange(0, 100), PlanOptions(), Action.KEEP_NEWER, 43),
        (
            OffsetAndMetadata(42),
            Committed(43),
            None,
            PlanOptions(if_ahead=AheadPolicy.REFUSE),
            Action.REFUSE_REWIND,
            None,
        ),
        (OffsetAndMetadata(42), Committed(43), None, PlanOptions(if_ahead=AheadPolicy.REWIND), Action.REWIND, 42),
        (OffsetAndMetadata(0), ABSENT, LogRange(0, 0), PlanOptions(), Action.COPY, 0),
        (OffsetAndMetadata(100), ABSENT, LogRange(0, 100), PlanOptions(), Action.COPY, 100),
        (OffsetAndMetadata(101), ABSENT, LogRange(0, 100), PlanOptions(), Action.REFUSE_OUT_OF_RANGE, None),
        (OffsetAndMetadata(4), ABSENT, LogRange(5, 100), PlanOptions(), Action.REFUSE_OUT_OF_RANGE, None),
        (OffsetAndMetadata(4), ABSENT, LogRange(5, 100), PlanOptions(clamp=True), Action.COPY, 5),
        (OffsetAndMetadata(101), ABSENT, LogRange(5, 100), PlanOptions(clamp=True), Action.COPY, 100),
        (OffsetAndMetadata(101), Committed(100), LogRange(5, 100), PlanOptions(clamp=True), Action.SKIP_EQUAL, 100),
        (None, Committed(7), None, PlanOptions(), Action.TARGET_ONLY, 7),
        (CorruptData("node", "junk"), ABSENT, None, PlanOptions(), Action.REFUSE_UNREADABLE, None),
        (OffsetAndMetadata(1), CorruptData("group", "no answer"), None, PlanOptions(), Action.REFUSE_UNREADABLE, None),
        (OffsetAndMetadata(1), ABSENT, CorruptData("log", "no answer"), PlanOptions(), Action.REFUSE_UNREADABLE, None),
    ],
)
def test_each_step_is_decided_by_both_sides_and_the_log(source, target, log, options, action, after):
    step = decide(ORDERS[0], source, target, log, options)
    assert (step.action, step.after.offset if step.after else None) == (action, after)


def at(offset):
    """The source's commit, with metadata and a leader epoch."""
    return OffsetAndMetadata(offset, "of the source", 3)


@pytest.mark.parametrize(
    ("source", "target", "log", "options", "action", "after", "note"),
    [
        (at(42), 42, LogRange(0, 99), PlanOptions(), Action.SKIP_EQUAL, Committed(42).value(), ""),
        (at(42), 40, LogRange(0, 99), PlanOptions(), Action.COPY, at(42), ""),
        (at(42), 45, None, PlanOptions(), Action.KEEP_NEWER, Committed(45).value(), "target is ahead by 3"),
        (at(42), 45, LogRange(50, 99), PlanOptions(), Action.KEEP_NEWER, Committed(45).value(), "target is ahead by 3"),
        (at(42), 45, None, PlanOptions(AheadPolicy.REWIND), Action.REWIND, at(42), "moves back by 3"),
        (
            *(at(42), 45, None, PlanOptions(AheadPolicy.REFUSE), Action.REFUSE_REWIND, None),
            "would move back by 3; --allow-rewind allows it",
        ),
        (
            *(at(42), 40, LogRange(50, 99), PlanOptions(clamp=True), Action.COPY),
            *(OffsetAndMetadata(50, "of the source"), "clamped from 42 to 50 (the log start)"),
        ),
        (
            *(at(42), 30, LogRange(0, 30), PlanOptions(AheadPolicy.REWIND, clamp=True), Action.SKIP_EQUAL),
            *(Committed(30).value(), "clamped from 42 to 30 (the log end)"),
        ),
        (
            *(at(42), 40, LogRange(0, 30), PlanOptions(AheadPolicy.REWIND, clamp=True), Action.REWIND),
            *(OffsetAndMetadata(30, "of the source"), "clamped from 42 to 30 (the log end)"),
        ),
        (
            *(at(42), 40, LogRange(0, 30), PlanOptions(), Action.REFUSE_OUT_OF_RANGE, None),
            "log holds 0 to 30; clamping would give 30 (the log end)",
        ),
        (
            *(at(42), 40, MissingTopic.TOPIC, PlanOptions(), Action.REFUSE_TOPIC_MISSING, None),
            "the topic does not exist in the Kafka cluster",
        ),
        (
            *(at(42), 40, MissingTopic.PARTITION, PlanOptions(), Action.REFUSE_PARTITION_MISSING, None),
            "the partition does not exist in the Kafka cluster",
        ),
        (
            *(at(42), 40, CorruptData("log", "no answer"), PlanOptions(), Action.REFUSE_UNREADABLE, None),
            "log: log: no answer",
        ),
        (None, 40, None, PlanOptions(), Action.TARGET_ONLY, Committed(40).value(), ""),
    ],
)
def test_a_step_has_both_offsets_the_offset_after_apply_and_the_reason(
    source, target, log, options, action, after, note
):
    step = decide(ORDERS[0], source, Committed(target), log, options)
    assert step == PlanStep(ORDERS[0], action, source, Committed(target).value(), after, note)


def test_a_step_names_the_side_that_cannot_be_read_and_has_the_offset_of_the_other_side():
    unreadable = CorruptData("node", "junk")
    assert decide(ORDERS[0], unreadable, Committed(40), None, PlanOptions()) == PlanStep(
        ORDERS[0], Action.REFUSE_UNREADABLE, None, Committed(40).value(), None, "source: node: junk"
    )
    assert decide(ORDERS[0], at(42), unreadable, None, PlanOptions()) == PlanStep(
        ORDERS[0], Action.REFUSE_UNREADABLE, at(42), None, None, "target: node: junk"
    )


def test_an_offset_out_of_range_is_refused_with_the_clamped_offset():
    step = decide(ORDERS[0], OffsetAndMetadata(4), ABSENT, LogRange(5, 100), PlanOptions())
    assert step.note == "log holds 5 to 100; clamping would give 5 (the log start)"


@given(
    st.none() | st.integers(0, 50),
    st.none() | st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 50),
    st.booleans(),
    st.sampled_from(AheadPolicy),
)
def test_nothing_moves_backwards_or_out_of_the_log_unless_the_caller_allows_it(
    source, target, start, size, clamp, mode
):
    log = LogRange(start, start + size)
    there = None if source is None else OffsetAndMetadata(source)
    here = ABSENT if target is None else Committed(target)
    step = decide(ORDERS[0], there, here, log, PlanOptions(mode, clamp))
    if step.action.writes:
        assert step.after is not None
        assert log.start <= step.after.offset <= log.end
        assert clamp or step.after.offset == source
        assert target is None or step.after.offset > target or mode is AheadPolicy.REWIND
