"""Selections, resets, edit plans, before-images and undo, on values and on snapshot files."""

from __future__ import annotations

import fcntl
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.cli.durations import parse_duration
from offsetmgr.cli.edit_command import _list_failures
from offsetmgr.cli.scenario import ScenarioOptions, parse_datetime, scenario_of
from offsetmgr.core.errors import (
    Conflict,
    GroupNotFound,
    MalformedData,
    OffsetMgrError,
    RewindRefused,
    UnknownTopicOrPartition,
    UnknownVersion,
    Unreachable,
    UsageError,
)
from offsetmgr.core.model import ABSENT, BrokerPartition, Committed, LogRange, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, GroupEdit, GroupOffsets, PartitionKinds
from offsetmgr.groups import edit_plan as edit_plans
from offsetmgr.groups.before_images import BeforeImageFile, header_for, holds_images, load_images, new_path
from offsetmgr.groups.copy import plan_copy, verify_copy
from offsetmgr.groups.diff import diff
from offsetmgr.groups.edit_plan import Counts, EditPlan, GroupEditPlan, PlannedChange, plan_change
from offsetmgr.groups.edits import groups_left_without_offsets, plan_delete, plan_import, plan_undo
from offsetmgr.groups.execute import execute
from offsetmgr.groups.export import SnapshotFile
from offsetmgr.groups.lag import LagRow, lag_of, needs_log_range
from offsetmgr.groups.log_checks import LogChecks
from offsetmgr.groups.reset import (
    ResolvedOffset,
    Scenario,
    ShiftBy,
    ToCurrent,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToOffsets,
    ToTime,
    plan_set,
    resolve,
)
from offsetmgr.groups.selection import (
    ALL_TOPICS,
    TopicSelection,
    choose_groups,
    matching_groups,
    require_known,
    scan_in_order,
)
from offsetmgr.snapshots import group_images
from offsetmgr.snapshots.group_images import IMAGES_SCHEMA
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.testing.memory import MemoryStore

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    """A snapshot file with group a (t-0 at 10, t-1 at 20 with metadata) and group b (t-0 at 5)."""
    with SnapshotStore(tmp_path / "store.avro") as opened:
        opened.commit("a", {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(20, "m", 3, 99)})
        opened.commit("b", {T0: OffsetAndMetadata(5)})
        yield opened


def execute_plans(store: SnapshotStore, groups: Iterable[GroupEditPlan], image: Path) -> int:
    """Executes the plans, and returns the number of failures."""
    with EditPlan.of(groups) as plan:
        results = list(execute(store, [plan], BeforeImageFile(image, header_for(store))))
    return sum(len(r.failures) for r in results)


# --- selection -------------------------------------------------------------------------------------


def test_topics_are_chosen_by_name_glob_and_number() -> None:
    chosen = TopicSelection.parse(["orders:0,2-3", "pay*", "x[*]"])
    matching = [("orders", 0), ("orders", 3), ("payments", 7), ("x*", 0)]
    assert all(chosen.matches(TopicPartition(*tp)) for tp in matching)
    assert not any(chosen.matches(TopicPartition(*tp)) for tp in [("orders", 1), ("order", 0), ("xy", 0)])
    assert chosen.named() == ["orders"]
    assert chosen.numbered() == [TopicPartition("orders", n) for n in (0, 2, 3)]


def test_unmatched_topics_are_named_as_they_were_given() -> None:
    chosen = TopicSelection.parse(["t", "t:2,1", "t:3-4", "p*", "none"])
    assert [str(pattern) for pattern in chosen.unmatched([T0, T1])] == ["t:3,4", "p*", "none"]
    assert chosen.unmatched([T0, T1, TopicPartition("t", 4), TopicPartition("p", 0), TopicPartition("none", 9)]) == []


def test_a_named_topic_means_all_its_partitions_and_a_glob_only_those_committed() -> None:
    committed = [TopicPartition("pay", 4), T1]
    assert TopicSelection.parse(["t", "p*"]).expand({"t": 3}, committed) == [TopicPartition("pay", 4), T0, T1, T2]
    assert TopicSelection.parse(["t:1"]).expand({"t": 3}, committed) == [T1]
    assert ALL_TOPICS.expand({}, committed) == sorted(committed)


def test_topics_and_partitions_that_do_not_exist_are_errors() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic none: does not exist"):
        TopicSelection.parse(["none"]).expand({}, [])
    with pytest.raises(UnknownTopicOrPartition, match="partition 3 of topic t: the topic has 3 partitions"):
        TopicSelection.parse(["t:0,3"]).expand({"t": 3}, [])


@pytest.mark.parametrize("text", ["", ":0", "t:", "t:x", "t:-1", "t:0,,1", "t:0-9999999"])
def test_an_invalid_topic_argument_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        TopicSelection.parse([text])


def test_a_partition_of_kafka_0_7_is_named_by_its_broker_too() -> None:
    chosen = TopicSelection.parse(["t:1-0,1-2"])

    of_broker_1 = [TopicPartition("t", BrokerPartition(1, n)) for n in (0, 2)]
    assert all(chosen.matches(tp) for tp in of_broker_1)
    assert not chosen.matches(TopicPartition("t", BrokerPartition(0, 1)))
    assert chosen.numbered(PartitionKinds.OF_BROKERS) == of_broker_1
    assert chosen.numbered(PartitionKinds.NUMBERED) == [TopicPartition("t", 1), TopicPartition("t", 2)]


def test_a_partition_of_kafka_0_7_is_rejected_for_stores_of_numbered_partitions() -> None:
    with pytest.raises(UsageError, match=r"topic t:3-1: 3-1 is not a range"):
        TopicSelection.parse(["t:3-1"]).numbered()


@pytest.mark.parametrize("number", ["2147483648", "0-2147483648", "2147483648-0", "9" * 5000, "0-" + "9" * 5000])
def test_a_partition_beyond_31_bits_is_bad_usage(number: str) -> None:
    with pytest.raises(UsageError, match="is beyond the largest partition, 2147483647"):
        TopicSelection.parse([f"t:{number}"])
    assert TopicSelection.parse(["t:00002147483647"]).numbered() == [TopicPartition("t", 2147483647)]


def test_groups_are_chosen_by_name_and_glob(store: SnapshotStore) -> None:
    assert choose_groups(store, [], all_groups=True) == ["a", "b"]
    assert choose_groups(store, ["zz", "a"]) == ["a", "zz"]
    assert choose_groups(store, ["[ab]", "zz"]) == ["a", "b", "zz"]
    with pytest.raises(GroupNotFound, match=r"no group in .* matches"):
        choose_groups(store, ["x*"])
    require_known(store, ["a"])
    with pytest.raises(GroupNotFound, match=r"group 'zz' .and 1 more.: does not exist"):
        require_known(store, ["zz", "a", "zzz"])


def test_an_existing_group_with_exactly_this_name_has_precedence_over_the_glob(store: SnapshotStore) -> None:
    store.commit("a*", {T0: OffsetAndMetadata(1)})
    store.commit("a[*]", {T0: OffsetAndMetadata(1)})
    assert choose_groups(store, ["a*"]) == ["a*"]
    assert choose_groups(store, ["a[*]"]) == ["a[*]"]
    assert choose_groups(store, ["a?*", "new[*]"]) == ["a*", "a[*]", "new*"]
    assert matching_groups(["a*"], ["ab", "a*", "a[*]"]) == ["a*"]
    assert matching_groups(["a*"], ["ab", "b"]) == ["ab"]
    assert matching_groups([], ["ab", "b"]) == ["ab", "b"]


@pytest.mark.parametrize(
    ("lag", "note", "needed"),
    [(0, "", False), (1, "", True), (None, "", True), (None, "beyond", True), (0, "below", True)],
)
def test_a_row_with_a_lag_an_unknown_lag_or_a_note_needs_attention(lag: int | None, note: str, needed: bool) -> None:
    assert needs_log_range(LagRow("g", T0, Committed(1), 0, 1, lag, note)) is needed


def test_groups_are_scanned_in_the_requested_order() -> None:
    class ReversedStore(SnapshotStore):
        def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
            return (GroupOffsets(name, {}) for name in reversed(list(groups)))

    assert [g.group for g in scan_in_order(ReversedStore("x.avro"), ["c", "a", "b"])] == ["c", "a", "b"]


# --- reset -----------------------------------------------------------------------------------------


def slow_oracle(scenario: Scenario, given: int | None, current: int | None, log: LogRange, for_time: int | None) -> int:
    """The rules of Kafka's tool, applied by a search over all offsets."""
    allowed = list(range(log.start, log.end + 1))
    if isinstance(scenario, ToEarliest):
        return allowed[0]
    if isinstance(scenario, ToLatest):
        return allowed[-1]
    if isinstance(scenario, ToCurrent):
        return allowed[-1] if current is None else current
    if isinstance(scenario, ToTime):
        return allowed[-1] if for_time is None else for_time
    if isinstance(scenario, ShiftBy):
        assert current is not None
        requested = current + scenario.by
    else:
        requested = scenario.offset if isinstance(scenario, ToOffset) else given or 0
    return min(allowed, key=lambda offset: abs(offset - requested))


@given(
    start=st.integers(0, 50),
    length=st.integers(0, 50),
    current=st.none() | st.integers(0, 150),
    number=st.integers(-150, 150),
    for_time=st.none() | st.integers(0, 100),
    kind=st.sampled_from(["earliest", "latest", "current", "offset", "shift", "time", "given"]),
)
def test_a_reset_gives_the_offset_that_kafkas_tool_would_give(
    start: int, length: int, current: int | None, number: int, for_time: int | None, kind: str
) -> None:
    log = LogRange(start, start + length)
    scenarios: dict[str, Scenario] = {
        "earliest": ToEarliest(),
        "latest": ToLatest(),
        "current": ToCurrent(),
        "offset": ToOffset(abs(number)),
        "shift": ShiftBy(number),
        "time": ToTime(0),
        "given": ToOffsets({}),
    }
    scenario = scenarios[kind]
    committed: Offset = ABSENT if current is None else Committed(current)
    if kind == "shift" and current is None:
        with pytest.raises(UsageError, match="nothing is committed that could be shifted"):
            resolve(scenario, None, committed, log, None)
        return
    found = resolve(scenario, abs(number), committed, log, for_time)
    assert found.offset == slow_oracle(scenario, abs(number), current, log, for_time)


def test_clamping_and_falling_back_are_reported() -> None:
    log = LogRange(5, 9)
    assert resolve(ToOffset(99), None, ABSENT, log, None) == ResolvedOffset(9, "clamped from 99 to the log's end")
    assert resolve(ShiftBy(-9), None, Committed(8), log, None) == ResolvedOffset(
        5, "clamped from -1 to the log's start"
    )
    assert resolve(ToTime(1), None, ABSENT, log, None) == ResolvedOffset(
        9, "no record at or after that time: the log's end"
    )
    assert resolve(ToCurrent(), None, ABSENT, log, None) == ResolvedOffset(9, "nothing committed: the log's end")
    assert resolve(ToOffset(7), None, ABSENT, log, None) == ResolvedOffset(7)
    with pytest.raises(UsageError, match="gives no offset"):
        resolve(ToOffsets({}), None, ABSENT, log, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("P1D", 86_400_000),
        ("PT2H30M", 9_000_000),
        ("P1DT1S", 86_401_000),
        ("pt0.5s", 500),
        ("PT-1.5S", -1500),
        ("-PT1M", -60_000),
        ("PT1.2345S", 1234),
    ],
)
def test_durations_are_read_as_java_reads_them(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1DT", "P1H", "P1Y", "PT1", "P1D T1H", "1m1h", "1 h", "m"])
def test_other_durations_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="PnDTnHnMnS"):
        parse_duration(text)


def no_file(snapshot: SnapshotFile) -> CrossClusterCheck:
    raise AssertionError(f"no file is given, and {snapshot} is compared")


@pytest.mark.parametrize(
    ("duration", "time", "why"),
    [
        ("P99999999999D", None, "P99999999999D ago is before 1970"),
        ("-P99999999999999D", None, "-P99999999999999D ago is beyond all times"),
        ("P9999999999999999999D", None, "is not of the form PnDTnHnMnS"),
        (None, "1969-12-31T23:59:59", "is before 1970"),
    ],
)
def test_a_time_that_no_record_can_have_is_bad_usage(duration: str | None, time: str | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        scenario_of(ScenarioOptions(by_duration=duration, to_datetime=time), ["g"], no_file)


def test_times_are_utc_unless_they_name_a_zone() -> None:
    assert parse_datetime("1970-01-02T00:00:00.001") == 86_400_001
    assert parse_datetime("1970-01-01T01:00:00+01:00") == 0
    assert parse_datetime("2026-11-21T09:51:35Z") == 1_795_254_695_000
    assert parse_datetime("2026-11-21 9:51:35") == parse_datetime("2026-11-21T09:51:35")
    for text in (
        "2026-11-21",
        "2026-11-21 25:00",
        "yesterday 24:00",
        "tomorrow",
        "yesterday14:00",
        "yesterday 14:00+25:00",
    ):
        with pytest.raises(UsageError, match="YYYY-MM-DD"):
            parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yesterday 14:00", "2026-11-20T14:00"),
        ("Yesterday  9:05:01", "2026-11-20T09:05:01"),
        ("today", "2026-11-21T00:00"),
        ("yesterday 14:00Z", "2026-11-20T14:00"),
        ("today 10:00 +02:00", "2026-11-21T08:00"),
        ("today 18:00-0800", "2026-11-21T02:00"),  # in this zone the day is still 2026-11-20
    ],
)
def test_times_of_today_and_yesterday_are_in_utc_or_in_their_zone(text: str, expected: str) -> None:
    now_ms = parse_datetime("2026-11-21T00:30:00+00:00")
    assert parse_datetime(text, now_ms=now_ms) == parse_datetime(expected)


def test_an_error_names_its_partition_once(capsys: pytest.CaptureFixture[str]) -> None:
    tp = TopicPartition("orders", 0)
    assert _list_failures([("shop", tp, UnknownTopicOrPartition("orders-0", "does not exist"))]) == 1
    assert capsys.readouterr().err == "error: group shop, orders-0: does not exist\n"


@pytest.mark.parametrize(("text", "warned"), [("2999-01-01 00:00", True), ("yesterday", False)])
def test_a_time_in_the_future_gets_a_warning(text: str, warned: bool, capsys: pytest.CaptureFixture[str]) -> None:
    scenario_of(ScenarioOptions(to_datetime=text), ["g"], no_file)
    shown = capsys.readouterr().err
    assert ("is 2999-01-01 00:00:00 UTC" in shown) == warned
    assert ("hint: a time without a zone is in UTC" in shown) == warned


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1h30m", 5_400_000), ("1d", 86_400_000), ("90s", 90_000), ("2d3h4m5.5s", 183_845_500), ("0s", 0)],
)
def test_short_durations(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("committed", "log", "expected"),
    [(5, LogRange(0, 9), 4), (9, LogRange(0, 9), 0), (2, LogRange(5, 9), 4), (10, LogRange(0, 9), None)],
)
def test_lag_counts_from_the_logs_start_and_is_unknown_beyond_its_end(
    committed: int, log: LogRange, expected: int | None
) -> None:
    assert lag_of(committed, log) == expected


# --- edit plans ------------------------------------------------------------------------------------


def test_a_large_plan_moves_to_disk_and_is_read_back_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_plans, "MAX_CHANGES_IN_MEMORY", 3)
    refused = RewindRefused("what", "why", "hint")
    given = [
        GroupEditPlan(
            f"g{n}", (PlannedChange(T0, Committed(n), OffsetAndMetadata(n + 1)), PlannedChange(T1, ABSENT, None))
        )
        for n in range(10)
    ]
    given.append(GroupEditPlan("refused", (PlannedChange(T0, ABSENT, None, problem=refused, writes=False),)))
    with EditPlan.of(given) as plan:
        for _ in range(2):
            found = list(plan)
            assert [g.group for g in found] == [g.group for g in given]
            assert found[:10] == given[:10]
            problem = found[10].changes[0].problem
            assert problem is not None
            assert (str(problem), problem.hint) == ("what: why", "hint")
        assert (plan.counts.groups, plan.counts.writes, plan.counts.problems) == (10, 20, 1)


def test_an_edit_contains_only_writes_each_conditional_on_its_before_image() -> None:
    changes = (
        PlannedChange(T0, Committed(1, version=7), OffsetAndMetadata(2)),
        PlannedChange(T1, Committed(5), OffsetAndMetadata(5), writes=False),
        PlannedChange(T2, ABSENT, OffsetAndMetadata(0), problem=UsageError("no")),
    )
    edit = GroupEditPlan("g", changes).edit()
    assert edit is not None
    assert {tp: (c.expected, c.after) for tp, c in edit.changes.items()} == {
        T0: (Committed(1, version=7), OffsetAndMetadata(2))
    }
    assert GroupEditPlan("g", changes, problem=UsageError("no")).edit() is None


def test_an_edit_is_based_on_the_scan_of_its_plan_and_allows_rewinds() -> None:
    change = PlannedChange(T0, Committed(5), OffsetAndMetadata(2))
    assert GroupEditPlan("g", (change,), as_of=7).edit() == GroupEdit(
        "g", {T0: Change(OffsetAndMetadata(2), Committed(5), True)}, as_of=7
    )


def test_a_plan_counts_what_it_writes_what_stays_and_what_has_a_problem() -> None:
    problem = UsageError("no")
    written = PlannedChange(T0, ABSENT, OffsetAndMetadata(1))
    unchanged = PlannedChange(T1, Committed(1), OffsetAndMetadata(1), writes=False)
    refused = PlannedChange(T2, Committed(1), None, problem=problem, writes=False)
    counted = {
        GroupEditPlan("mixed", (written, unchanged, refused)): Counts(1, 1, 1, 1),
        GroupEditPlan("unchanged", (unchanged, unchanged)): Counts(0, 0, 2, 0),
        GroupEditPlan("refused", (written, unchanged), problem): Counts(0, 0, 0, 2),
        GroupEditPlan("refused-without-changes", (), problem): Counts(0, 0, 0, 1),
        GroupEditPlan("empty", ()): Counts(0, 0, 0, 0),
    }
    for group, expected in counted.items():
        assert EditPlan.of([group]).counts == expected, group.group
    assert EditPlan.of(counted).counts == Counts(1, 1, 3, 4)


def test_a_plan_moves_its_changes_to_disk_each_time_that_too_many_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files: list[io.BytesIO] = []

    def temporary_file(**_: object) -> io.BytesIO:
        files.append(io.BytesIO())
        return files[-1]

    monkeypatch.setattr(edit_plans, "MAX_CHANGES_IN_MEMORY", 3)
    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    sizes = []
    with EditPlan() as plan:
        for n in range(8):
            plan.add(GroupEditPlan(f"g{n}", (PlannedChange(T0, ABSENT, OffsetAndMetadata(n)),)))
            sizes.append(len(files[0].getvalue()) if files else 0)
        assert len(list(plan)) == 8
    assert sizes[:3] == [0] * 3 and 0 < sizes[3] == sizes[6] < sizes[7]
    assert len(files) == 1


@pytest.mark.parametrize(
    ("before", "after", "note", "planned_note", "writes"),
    [
        (ABSENT, OffsetAndMetadata(5), "", "", True),
        (ABSENT, None, "", "", False),
        (Committed(5, "m"), OffsetAndMetadata(6, "m"), "clamped", "clamped", True),
        (Committed(5, "m"), OffsetAndMetadata(5, "m"), "", "unchanged", False),
        (Committed(5, "m"), OffsetAndMetadata(5, "m"), "clamped", "clamped", False),
        (Committed(5, "m"), OffsetAndMetadata(5, "n"), "", "", True),
        (Committed(5, "m"), OffsetAndMetadata(4, "m"), "", "rewinds", True),
        (Committed(5, "m"), OffsetAndMetadata(4, "m"), "clamped", "clamped; rewinds", True),
        (Committed(5, "m"), None, "", "", True),
    ],
)
def test_a_planned_change_notes_a_rewind_and_writes_only_another_value(
    before: Offset, after: OffsetAndMetadata | None, note: str, planned_note: str, writes: bool
) -> None:
    capabilities = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=True, conditional="version")
    assert plan_change(T0, before, after, capabilities, note=note) == PlannedChange(
        T0, before, after, planned_note, None, writes
    )


# --- edits of a snapshot file, and their undo ------------------------------------------------------


def test_an_edit_that_creates_and_deletes_offsets_can_be_undone(store: SnapshotStore, tmp_path: Path) -> None:
    before = {g: dict(store.fetch(g)) for g in ("a", "b", "new")}
    image = tmp_path / "images" / "i.avro"

    def new_offsets(_: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {T0: OffsetAndMetadata(3, "x"), T2: OffsetAndMetadata(0)}

    edits = [
        plan_set(store, "a", new_offsets),
        plan_set(store, "new", new_offsets, create=True),
        *plan_delete(store, ["b"], ALL_TOPICS),
    ]
    assert execute_plans(store, edits, image) == 0
    assert {tp: c.offset for tp, c in store.fetch("a").items() if isinstance(c, Committed)} == {T0: 3, T1: 20, T2: 0}
    assert store.fetch("b") == {}
    assert holds_images(image)

    assert execute_plans(store, plan_undo(store, load_images(image)), tmp_path / "undo.avro") == 0

    assert {g: dict(store.fetch(g)) for g in ("a", "b", "new")} == before
    # The undo can be undone.
    assert execute_plans(store, plan_undo(store, load_images(tmp_path / "undo.avro")), tmp_path / "redo.avro") == 0
    assert store.fetch("new", [T0])[T0] == Committed(3, "x")


def test_before_images_are_a_snapshot_that_any_reader_can_read(store: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    execute_plans(store, plan_delete(store, ["a"], ALL_TOPICS), image)
    with SnapshotStore(image) as snapshot:
        assert snapshot.fetch("a") == {T0: Committed(10), T1: Committed(20, "m", 3, 99)}


def test_an_offset_that_changed_since_is_not_undone_unless_forced(store: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    execute_plans(store, [plan_set(store, "a", lambda _: {T0: OffsetAndMetadata(3), T1: OffsetAndMetadata(4)})], image)
    store.commit("a", {T0: OffsetAndMetadata(8)})

    (plan,) = plan_undo(store, load_images(image))

    assert [type(c.problem) for c in plan.changes] == [Conflict, type(None)]
    assert "has changed since: 8 now, the edit wrote 3" in str(plan.changes[0].problem)
    (forced,) = plan_undo(store, load_images(image), force=True)
    assert [(c.problem, c.after and c.after.offset) for c in forced.changes] == [(None, 10), (None, 20)]


def test_before_images_never_replace_a_file(store: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    image.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        execute_plans(store, plan_delete(store, ["a"], ALL_TOPICS), image)
    assert image.read_text() == "precious"
    assert store.fetch("a", [T0])[T0] == Committed(10)


def test_damaged_before_images_are_an_error_before_anything_is_planned(store: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    execute_plans(store, plan_delete(store, ["a"], ALL_TOPICS), image)
    image.write_bytes(image.read_bytes()[:-20])
    with pytest.raises(MalformedData):
        list(plan_undo(store, load_images(image)))


def test_before_images_of_an_unknown_version_are_rejected_with_it(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_images, "VERSION", 9)
    image = tmp_path / "i.avro"
    execute_plans(store, plan_delete(store, ["a"], ALL_TOPICS), image)
    monkeypatch.undo()

    assert holds_images(image)
    with pytest.raises(UnknownVersion, match=r"version 9 is not known \(known: 2\)"):
        list(load_images(image))


def test_other_files_hold_no_before_images(store: SnapshotStore, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,t,0,1\n")
    assert [holds_images(tmp_path / name) for name in ("x.csv", "store.avro", "none")] == [False, False, False]


def test_the_schema_of_before_images_is_published() -> None:
    published = Path(__file__).parents[2] / "schemas" / "before-images.avsc"
    assert json.loads(published.read_text()) == IMAGES_SCHEMA


def test_names_of_before_images_sort_by_time(tmp_path: Path) -> None:
    early, late = new_path(tmp_path, "offsets reset", 1_000), new_path(tmp_path, "offsets reset", 2_000_000_000_123)
    assert early.name.startswith("19700101T000001.000Z-offsets-reset-")
    assert late.name.startswith("20330518T033320.123Z-")


def test_an_import_rejects_a_rewind_unless_allowed(store: SnapshotStore) -> None:
    imported = [GroupOffsets("a", {T0: Committed(9), T1: Committed(20, "m", 3), T2: Committed(1)})]
    (refused,) = plan_import(store, imported)
    assert [(type(c.problem), c.writes) for c in refused.changes] == [
        (RewindRefused, False),
        (type(None), False),
        (type(None), True),
    ]
    (allowed,) = plan_import(store, imported, allow_rewind=True)
    assert [(c.writes, c.note) for c in allowed.changes] == [(True, "rewinds"), (False, "unchanged"), (True, "")]


def test_an_import_clamps_offsets_to_their_logs_except_those_that_the_store_holds(store: SnapshotStore) -> None:
    """The logs of t-0 and t-1 end at 8 and 15; the store is at 10 and 20."""
    logs: dict[TopicPartition, LogRange | OffsetMgrError] = {
        T0: LogRange(0, 8), T1: LogRange(0, 15), T2: UnknownTopicOrPartition("t-2", "does not exist")
    }  # fmt: skip

    def planned(*offsets: Committed, allow_rewind: bool = False) -> list[tuple[int | None, str, type, bool]]:
        source = [GroupOffsets("a", dict(zip((T0, T1, T2), offsets, strict=False)))]
        checks = LogChecks(lambda partitions: {tp: logs[tp] for tp in partitions})
        (plan,) = plan_import(store, source, allow_rewind=allow_rewind, checks=checks)
        return [(c.after and c.after.offset, c.note, type(c.problem), c.writes) for c in plan.changes]

    clamped = "clamped from 11 to the log's end"
    none = type(None)
    assert planned(Committed(10), Committed(20, "m")) == [
        (10, "unchanged", none, False),
        (20, "unchanged", none, False),
    ]
    assert planned(Committed(11)) == [(8, clamped, RewindRefused, False)]
    assert planned(Committed(11), allow_rewind=True) == [(8, f"{clamped}; rewinds", none, True)]
    assert planned(Committed(10, "other")) == [(8, "clamped from 10 to the log's end", RewindRefused, False)]
    assert planned(Committed(10), Committed(20, "m"), Committed(1))[2] == (1, "", UnknownTopicOrPartition, False)


def test_copying_a_group_leaves_it_and_the_copy_can_be_verified(store: SnapshotStore, tmp_path: Path) -> None:
    assert execute_plans(store, plan_copy(store, "a", store, "copy"), tmp_path / "i.avro") == 0
    assert verify_copy(store, "a", store, "copy") == 2
    store.commit("a", {T0: OffsetAndMetadata(11)})
    with pytest.raises(Conflict, match="t-0 is 10 in the copy and 11 in the original"):
        verify_copy(store, "a", store, "copy")
    with pytest.raises(GroupNotFound):
        list(plan_copy(store, "zz", store, "copy"))


def test_setting_an_unknown_group_is_an_error_unless_it_may_be_created(store: SnapshotStore) -> None:
    with pytest.raises(GroupNotFound):
        plan_set(store, "zz", lambda _: {T0: OffsetAndMetadata(1)})
    created = plan_set(store, "zz", lambda _: {T0: OffsetAndMetadata(1)}, create=True)
    assert created.changes == (PlannedChange(T0, ABSENT, OffsetAndMetadata(1)),)


def test_existing_groups_without_offsets_are_empty() -> None:
    store = MemoryStore(data={"empty": {}, "full": {T0: Committed(5)}, "dark": {}}, broken={"dark": Unreachable("it")})
    assert groups_left_without_offsets(store, ["empty", "full", "dark", "gone"]) == ["empty"]


def test_diff_compares_the_union_of_both_sides(store: SnapshotStore, tmp_path: Path) -> None:
    with SnapshotStore(tmp_path / "other.avro") as other:
        other.commit("a", {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(20, "other", 3), T2: OffsetAndMetadata(1)})
        other.commit("c", {T0: OffsetAndMetadata(1)})
        found = [(d.group, d.partition, d.kind) for d in diff(store, other, ["a", "b", "c"])]
    assert found == [
        ("a", T1, "metadata"),
        ("a", T2, "only-right"),
        ("b", T0, "only-left"),
        ("c", T0, "only-right"),
    ]
    assert list(diff(store, store, ["a", "b"])) == []


def test_new_before_images_remove_the_temporary_files_of_killed_edits(store: SnapshotStore, tmp_path: Path) -> None:
    """A living writer holds a lock on its temporary file. Other files stay."""
    directory = tmp_path / "before-images"
    directory.mkdir()
    killed = directory / ".20261121T111115.941Z-offsets-reset-25778.avro.0123abcd.tmp"
    living = directory / ".20261121T111115.942Z-migrate-mirror-25779.avro.0123abcd.tmp"
    fresh = directory / ".20261121T111115.943Z-offsets-set-25780.avro.0123abcd.tmp"
    other = directory / ".backup.avro.0123abcd.tmp"
    for path in (killed, living, fresh, other):
        path.write_bytes(b"half")
    for path in (killed, living, other):
        os.utime(path, (0, 0))
    with living.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        BeforeImageFile(new_path(directory, "offsets set", 1_000), header_for(store)).intend([])
    assert {path for path in (killed, living, fresh, other) if path.exists()} == {living, fresh, other}
