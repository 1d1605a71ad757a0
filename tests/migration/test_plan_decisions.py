"""The step that a plan decides for each offset, and the plan's file, which is written once."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from one_migration import ORDERS, commit
from stopwatch import loop_s

from offsetmgr import AheadPolicy, GroupSelection, Migration, OffsetAndMetadata, PlanOptions
from offsetmgr.core.errors import CorruptData, GroupNotFound, UsageError
from offsetmgr.core.model import ABSENT, Committed, LogRange
from offsetmgr.core.selection import TopicSelection
from offsetmgr.groups.last_writes import KnownWrite, LastWriter
from offsetmgr.migration.plan import Action, MissingTopic, PlanStep, decide


def at(offset):
    """The source's commit, with metadata and a leader epoch."""
    return OffsetAndMetadata(offset, "of the source", 3)


JUNK = CorruptData("node", "junk")
KEPT = "target is ahead by 3, kept by if_ahead=keep"
REFUSED = (
    "keeps 45; a start there skips 3 messages if the consumers are at 42 (nothing shows which store was written last);"
    " if_ahead=keep accepts it, if_ahead=rewind writes 42"
)
SKIPS = "skips 50 messages if the consumers are at 40 (EVIDENCE)"
ACCEPT = "if_ahead=keep accepts it, if_ahead=rewind writes 40"


@pytest.mark.parametrize(
    ("source", "target", "log", "options", "action", "after", "note"),
    [
        (
            *(at(42), 42, LogRange(0, 99), PlanOptions(), Action.SKIP_EQUAL, Committed(42).value()),
            "drops a client's own text",
        ),
        (at(42), 40, LogRange(0, 99), PlanOptions(), Action.COPY, at(42), ""),
        (at(42), 45, None, PlanOptions(AheadPolicy.KEEP), Action.KEEP_NEWER, Committed(45).value(), KEPT),
        (at(42), 45, LogRange(50, 99), PlanOptions(AheadPolicy.KEEP), Action.KEEP_NEWER, Committed(45).value(), KEPT),
        (at(42), 45, None, PlanOptions(), Action.REFUSE_REWIND, None, REFUSED),
        (at(42), 45, None, PlanOptions(AheadPolicy.REWIND), Action.REWIND, at(42), "moves back by 3"),
        (*(at(42), 45, None, PlanOptions(AheadPolicy.REFUSE), Action.REFUSE_REWIND, None), REFUSED),
        (
            *(at(42), 40, LogRange(50, 99), PlanOptions(clamp=True), Action.COPY),
            *(OffsetAndMetadata(50), "clamped from 42 to 50 (the log start); drops a client's own text"),
        ),
        (
            *(at(42), 30, LogRange(0, 30), PlanOptions(AheadPolicy.REWIND, clamp=True), Action.SKIP_EQUAL),
            *(Committed(30).value(), "clamped from 42 to 30 (the log end)"),
        ),
        (
            *(at(42), 40, LogRange(0, 30), PlanOptions(AheadPolicy.REWIND, clamp=True), Action.REWIND),
            *(OffsetAndMetadata(30), "clamped from 42 to 30 (the log end); drops a client's own text"),
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
        (JUNK, 40, None, PlanOptions(), Action.REFUSE_UNREADABLE, None, "source: node: junk"),
        (at(42), JUNK, None, PlanOptions(), Action.REFUSE_UNREADABLE, None, "target: node: junk"),
    ],
)
def test_a_step_has_both_offsets_the_offset_after_apply_and_the_reason(
    source, target, log, options, action, after, note
):
    there, here = (None if one is JUNK else one for one in (source, target))
    step = decide(ORDERS[0], source, JUNK if here is None else Committed(here), log, options)
    here, proven = here and Committed(here).value(), action is Action.KEEP_NEWER
    assert step == PlanStep(ORDERS[0], action, there, here, after, note, proven=proven)


@pytest.mark.parametrize(
    ("target", "newer", "policy", "action", "after", "note"),
    [
        (90, 90, None, Action.KEEP_NEWER, 90, "target is ahead by 50: EVIDENCE"),
        (90, 40, None, Action.REFUSE_REWIND, None, f"keeps 90; a start there {SKIPS}; {ACCEPT}"),
        (90, None, None, Action.REFUSE_REWIND, None, f"keeps 90; a start there {SKIPS}; {ACCEPT}"),
        (90, 40, AheadPolicy.KEEP, Action.KEEP_NEWER, 90, "target is ahead by 50, kept by if_ahead=keep"),
        (90, 90, AheadPolicy.REFUSE, Action.REFUSE_REWIND, None, f"keeps 90; a start there {SKIPS}; {ACCEPT}"),
        (90, 90, AheadPolicy.REWIND, Action.REWIND, 40, "moves back by 50"),
        (30, 40, None, Action.COPY, 40, ""),
        (30, None, None, Action.COPY, 40, ""),
        (
            *(30, 30, None, Action.REFUSE_NEWER, None),
            "would write 40; a start there skips 10 messages if the consumers are at 30 (EVIDENCE);"
            " if_ahead=rewind writes it all the same",
        ),
        (30, 30, AheadPolicy.REWIND, Action.COPY, 40, ""),
    ],
)
def test_the_store_that_was_written_last_decides_and_not_the_larger_offset(target, newer, policy, action, after, note):
    writer = LastWriter(None if newer is None else KnownWrite("a store", newer), "EVIDENCE")
    step = decide(ORDERS[0], OffsetAndMetadata(40), Committed(target), None, PlanOptions(policy), writer)
    assert (step.action, step.after and step.after.offset, step.note) == (action, after, note)


@pytest.mark.parametrize(
    ("source", "target", "shift", "action", "after"),
    [
        (40, ABSENT, 1, Action.COPY, 41),
        (40, Committed(41), 1, Action.SKIP_EQUAL, 41),
        (40, Committed(40), 1, Action.COPY, 41),
        (100, ABSENT, 1, Action.REFUSE_OUT_OF_RANGE, None),
        (40, ABSENT, -1, Action.COPY, 39),
        (0, ABSENT, -1, Action.REFUSE_OUT_OF_RANGE, None),
    ],
)
def test_a_shift_is_added_to_the_copied_offset(source, target, shift, action, after):
    step = decide(ORDERS[0], at(source), target, LogRange(0, 100), PlanOptions(shift=shift))
    assert (step.action, step.source, step.after and step.after.offset) == (action, at(source), after)
    if action is Action.COPY:  # the metadata belongs to the other number
        assert step.after == OffsetAndMetadata(after or 0)
        assert step.note == f"shifted from {source} to {after}; drops a client's own text"


@given(
    st.none() | st.integers(0, 50),
    st.none() | st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 50),
    st.booleans(),
    st.sampled_from(AheadPolicy),
)
@example(0, None, 0, 0, False, AheadPolicy.KEEP)
@example(9, None, 5, 4, False, AheadPolicy.KEEP)
@example(10, None, 5, 4, False, AheadPolicy.KEEP)
@example(4, None, 5, 4, False, AheadPolicy.KEEP)
def test_nothing_moves_backwards_or_out_of_the_log_unless_the_caller_allows_it(
    source, target, start, size, clamp, mode
):
    log = LogRange(start, start + size)
    there = None if source is None else OffsetAndMetadata(source)
    here = ABSENT if target is None else Committed(target)
    step = decide(ORDERS[0], there, here, log, PlanOptions(mode, clamp))
    if source is not None and target is None and not clamp:
        within = log.start <= source <= log.end
        assert step.action is (Action.COPY if within else Action.REFUSE_OUT_OF_RANGE)
    if step.action.writes:
        assert step.after is not None
        assert log.start <= step.after.offset <= log.end
        assert clamp or step.after.offset == source
        assert target is None or step.after.offset > target or mode is AheadPolicy.REWIND


def test_a_plan_reads_back_as_it_was_written_and_is_valid_json(migration):
    commit(migration.source, "g1", 1, 2)
    commit(migration.source, "g2", 3)
    migration.source.data["g2"][ORDERS[1]] = Committed(9, "métadata", 4)
    first, second = migration.plan().groups()
    assert (first.name, second.name) == ("g1", "g2")
    value = OffsetAndMetadata(9, "métadata", 4)
    step = second.steps[1]
    assert (step.tp, step.action.value, step.source, step.target, step.after) == (
        *(ORDERS[1], "copy", value, None, value),
    )
    assert json.loads(migration.path.read_text())["summary"]["actions"] == {"copy": 4}


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        (PlanOptions(rename={"a": "b"}), UsageError, "groups a and b would both become b"),
        (PlanOptions(groups=("missing",)), GroupNotFound, "'missing': does not exist"),
    ],
)
def test_groups_that_cannot_be_planned_are_an_error_and_not_an_empty_plan(migration, options, error, why):
    commit(migration.source, "a", 1)
    commit(migration.source, "b", 2)
    migration.options = options
    with pytest.raises(error, match=why):
        migration.plan()


@pytest.mark.parametrize(
    ("groups", "existing", "selected"),
    [
        (None, ["any"], ["any"]),
        (("billing", "stock-*"), ["billing", "billing-2", "stock-7"], ["billing", "stock-7"]),
        (("job[1]",), ["job[1]", "job1"], ["job[1]"]),  # a name that looks like a glob
        (("job[1]",), ["job1"], ["job1"]),
    ],
)
def test_groups_are_selected_by_name_and_glob(groups, existing, selected):
    options = PlanOptions(groups=groups).literal_first(existing)
    assert [name for name in existing if options.selects_group(name)] == selected


def test_an_empty_selection_is_not_all_groups_except_in_plans_of_earlier_releases() -> None:
    with pytest.raises(UsageError, match="the selection is empty"):
        PlanOptions(groups=())
    golden = Path(__file__).parents[1] / "data" / "formats" / "0.1" / "planned.json"
    old = Migration(golden).header.options
    assert old.groups == GroupSelection()
    assert old.selects_group("any")


@pytest.mark.parametrize("topic", ["orders:0-3,9", "orders:1-2", "orders:7-2,2", "ord*:1,2", "orders"])
def test_a_plan_keeps_its_topics_and_excluded_groups(migration, topic):
    for group in ("a", "b"):
        commit(migration.source, group, 1, 1, 1)
    migration.options = PlanOptions(topics=TopicSelection.parse([topic]), groups=GroupSelection(exclude="b"))
    assert [group.name for group in migration.plan().groups()] == ["a"]
    assert Migration(migration.path).header.options == migration.options


def test_the_reverse_plan_of_twenty_thousand_groups_is_not_quadratic() -> None:
    names = tuple(f"group-{n}" for n in range(20_000))
    options = PlanOptions(groups=names)
    began = time.thread_time()
    found = sum(options.selects_group(name) for name in names)
    others = sum(options.selects_group(f"other-{n}") for n in range(20_000))
    assert (found, others) == (20_000, 0)
    assert time.thread_time() - began < 2_000 * loop_s()  # a comparison of each name with every other takes minutes
