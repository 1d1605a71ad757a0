"""Apply, verify and finalize between two stores in memory."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
from edited_plans import edit_plan
from in_process import rows
from memory_stores import HidingStore, LockableMemoryStore, OneLog
from one_migration import ORDERS, commit

from offsetmgr import AheadPolicy, Migration, PlanOptions, TopicPartition
from offsetmgr.core.errors import CorruptData, GateRefused, GroupsFailed, OffsetOutOfRange, PlanError, Unreachable
from offsetmgr.core.model import Committed, LogRange
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.testing.memory import MemoryStore


def steps(plan: Migration) -> dict[TopicPartition, str]:
    return {step.tp: step.action.value for group in plan.groups() for step in group.steps}


def test_apply_writes_offsets_that_are_behind_and_keeps_those_that_are_ahead(migration):
    commit(migration.source, "g", 10, 20, 30)
    commit(migration.target, "g", 5, 25, None, 7)
    migration.options = PlanOptions(AheadPolicy.KEEP)
    plan = migration.plan()
    assert steps(plan) == dict(zip(ORDERS, ["copy", "keep-newer", "copy", "target-only"], strict=True))
    report = migration.apply()
    assert (report.ok, report.written) == (True, 2)
    assert migration.target_offsets() == {"g": dict(zip(ORDERS, [10, 25, 30, 7], strict=True))}


def test_a_group_arrives_under_its_new_name_and_rolls_back_to_nothing(migration):
    commit(migration.source, "old", 10, 20)
    migration.options = PlanOptions(rename={"old": "new"})
    migration.plan()
    migration.apply()
    assert migration.target_offsets() == {"new": {ORDERS[0]: 10, ORDERS[1]: 20}}
    assert set(migration.verify().values()) == {"equal"}
    assert migration.rollback().written == 2
    assert migration.target_offsets() == {}


def test_one_bad_group_does_not_stop_the_others(migration):
    for group in ("g1", "g2", "g3"):
        commit(migration.source, group, 10)
    migration.plan()
    migration.target.active["g2"] = ("consumer-1 at /host",)
    with migration.opened() as library, pytest.raises(GroupsFailed, match="g2: ") as failed:
        library.apply()
    report = failed.value.report
    assert (list(report.failed), report.written, report.changed) == (["g2"], 2, 2)
    assert report.failed["g2"].active_members == ("consumer-1 at /host",)
    assert set(migration.target_offsets()) == {"g1", "g3"}
    migration.target.active.clear()
    assert migration.apply().ok  # the same command again writes only the rest
    assert set(migration.target_offsets()) == {"g1", "g2", "g3"}


def test_an_unreadable_source_is_never_treated_as_absent(migration):
    commit(migration.source, "g1", 10)
    commit(migration.source, "g2", 10, 20)
    migration.source.broken = {"g1": CorruptData("g1", "no answer"), ("g2", ORDERS[1]): CorruptData("node", "junk")}
    plan = migration.plan()
    assert [g.error for g in plan.groups()] == ["source: g1: no answer", ""]
    migration.apply()
    assert migration.target_offsets() == {"g2": {ORDERS[0]: 10}}
    migration.source.broken.clear()
    assert migration.verify() == {
        "g1 None": "refused",
        "g1 orders-0": "not-in-plan",
        "g2 orders-0": "equal",
        "g2 orders-1": "refused",
    }


def test_a_target_that_changed_since_the_plan_is_not_overwritten(migration):
    migration.start([10, 20, 30], [5, 5, 5], apply=False)
    commit(migration.target, "g", 7, 21)  # 0: changed, still behind; 1: beyond the plan
    report = migration.apply()
    assert list(report.failed["g"].failed) == [ORDERS[0]]
    assert migration.target_offsets() == {"g": {ORDERS[0]: 7, ORDERS[1]: 21, ORDERS[2]: 30}}


def test_a_rewind_happens_only_if_allowed_and_not_if_the_offset_has_moved(migration):
    migration.start([10, 10], [15, 50], options=PlanOptions(AheadPolicy.REWIND), apply=False)
    commit(migration.target, "g", None, 60)
    assert list(migration.apply().failed["g"].failed) == [ORDERS[1]]
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10, ORDERS[1]: 60}}
    assert migration.verify() == {"g orders-0": "equal", "g orders-1": "not-rewound"}
    migration.rollback()
    assert migration.target_offsets() == {"g": {ORDERS[0]: 15, ORDERS[1]: 60}}


def test_a_plan_for_another_cluster_is_refused(migration):
    migration.start([10], apply=False)
    migration.target.id = "another"
    with pytest.raises(PlanError, match="the plan was made for memory target"):
        migration.apply()


def test_a_name_has_precedence_over_the_pattern_that_it_looks_like(migration):
    for group in ("g[1]", "g1"):
        commit(migration.source, group, 10)
    migration.options = PlanOptions(groups=("g[1]",))
    assert [g.name for g in migration.plan().groups()] == ["g[1]"]
    migration.apply()
    commit(migration.target, "g1", 10)
    with migration.opened() as library, library.plan_reverse(migration.directory / "back.json") as back:
        assert [g.name for g in back.groups()] == ["g[1]"]


def test_a_rename_never_merges_into_an_existing_group(migration):
    commit(migration.source, "a", 80)
    commit(migration.target, "b", 50, 90)
    migration.options = PlanOptions(rename={"a": "b"})
    assert "exists, and a rename would mix the offsets of both" in next(iter(migration.plan().groups())).error
    migration.options = PlanOptions(rename={"a": "b"}, onto_existing=True)
    assert next(iter(migration.plan_again().groups())).error == ""


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (LogRange(800, 1000), "log holds 800 to 1000; clamping would give 800 (the log start)"),
        (LogRange(0, 10), "log holds 0 to 10; clamping would give 10 (the log end)"),  # the topic was recreated
    ],
)
def test_an_offset_that_left_its_log_since_the_plan_is_refused_and_the_others_are_written(migration, log, why):
    migration.start([300, 900 if log.start else 5], logs=OneLog(LogRange(0, 1000)), apply=False)
    report = migration.apply(logs=OneLog(log))
    assert (report.written, set(migration.target_offsets()["g"])) == (1, {ORDERS[1]})
    refused = report.failed["g"].failed[ORDERS[0]]
    assert isinstance(refused, OffsetOutOfRange)
    assert refused.why == f"300 is outside its log now; {why}"


def test_an_offset_refused_for_its_log_is_written_once_the_log_allows_it(migration):
    migration.start([900, 5], [3], logs=OneLog(LogRange(0, 1000)), apply=False)
    assert not migration.apply(logs=OneLog(LogRange(0, 10))).ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 3, ORDERS[1]: 5}}
    assert migration.apply(logs=OneLog(LogRange(0, 1000))).ok  # the broker had reported only a part of its log
    assert migration.target_offsets() == {"g": {ORDERS[0]: 900, ORDERS[1]: 5}}
    assert migration.rollback().ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 3}}


def test_nothing_is_written_if_the_log_range_cannot_be_read(migration):
    migration.start([900], logs=OneLog(LogRange(0, 1000)), apply=False)
    report = migration.apply(logs=OneLog(CorruptData("log", "no answer")))
    assert "its log range could not be read: log: no answer" in str(report.failed["g"].failed[ORDERS[0]])
    assert migration.target_offsets() == {}
    assert not migration.state().apply.written


def test_a_log_is_read_once_and_again_only_if_an_offset_is_beyond_its_end(migration):
    class GrowingLog(OneLog):
        def log_ranges(self, partitions):
            found = super().log_ranges(partitions)
            self.log = LogRange(0, 1000)
            return found

    for number in range(300):
        commit(migration.source, f"g{number:03}", 900 if number == 299 else 5)
    plan = migration.plan(growing := GrowingLog(LogRange(0, 10)))
    assert {step.action.value for group in plan.groups() for step in group.steps} == {"copy"}
    assert growing.requested == [ORDERS[0]] * 2  # again for the offset beyond the end that is known
    for found in CorruptData("log", "no answer"), LogRange(6, 1000), LogRange(0, 1000):
        migration.plan_again(logs=(log := OneLog(found)))
        assert log.requested == [ORDERS[0]]
    assert migration.apply(logs=log).written == 300
    assert log.requested == [ORDERS[0]] * 2


def test_a_plan_is_not_applied_with_the_logs_of_another_cluster(migration):
    migration.start([5], logs=OneLog(LogRange(0, 1000)), apply=False)
    with pytest.raises(PlanError, match="checked against the logs of one-log, this is another"):
        migration.apply(logs=OneLog(LogRange(0, 1000), id="another"))


@pytest.mark.parametrize(("partition", "offset"), [(0, 10), (1, 9999)])
def test_verify_compares_equal_and_unplanned_offsets_with_the_log(migration, partition, offset):
    migration.start([10])
    migration.target.data["g"][ORDERS[partition]] = Committed(offset)
    log = OneLog(LogRange(0, 5)) if partition == 0 else OneLog(LogRange(0, 100))
    assert migration.verify(log)[f"g {ORDERS[partition]}"] == "beyond-log-end"


@pytest.mark.parametrize(
    ("source", "target", "status"),
    [
        ((10,), (10,), "equal"),
        ((10,), (50,), "progress"),
        ((10,), (100,), "progress"),
        ((10,), (101,), "beyond-log-end"),
        ((10,), (9,), "behind"),
        ((10,), (None,), "missing"),
        ((12,), (10,), "source-ahead"),
        ((12,), (12,), "progress"),
        ((8,), (10,), "source-rewound"),
        ((None,), (10,), "source-gone"),
        ((10, 3), (10,), "not-in-plan"),
        ((10,), (10, 3), "new-in-target"),
    ],
)
def test_verify_checks_a_fresh_read_of_both_sides(migration, source, target, status):
    migration.start([10])
    migration.source.data["g"].clear()
    migration.target.data["g"].clear()
    commit(migration.source, "g", *source)
    commit(migration.target, "g", *target)
    results = {one.tp: one.status for one in migration.results(OneLog(LogRange(0, 100)))}
    found = results[ORDERS[1] if len(source) + len(target) == 3 else ORDERS[0]]
    assert found.value == status
    assert migration.verified.ok is found.ok is (status in ("equal", "progress", "source-gone", "new-in-target"))


def test_progress_without_a_known_log_end_is_unknown_and_does_not_pass(migration):
    migration.start([10])
    commit(migration.target, "g", 11)
    assert migration.verify() == {"g orders-0": "unknown"}


@pytest.mark.parametrize("offset", [300, 799])
def test_verify_does_not_pass_an_offset_below_the_log_start(migration, offset):
    migration.source = MemoryStore("source", kind="file")
    migration.start([offset, 900], logs=OneLog(LogRange(0, 1000)))
    logs = OneLog(LogRange(800, 1000))
    found = {one.tp: one for one in migration.results(logs)}
    assert {tp: one.status.value for tp, one in found.items()} == {ORDERS[0]: "below-log-start", ORDERS[1]: "equal"}
    below = 800 - offset
    assert found[ORDERS[0]].detail == (
        f"below the log start by {below}; log holds 800 to 1000; clamping would give 800 (the log start)"
    )
    assert not migration.verified.ok
    with migration.opened(logs) as library, pytest.raises(GateRefused, match="below-log-start"):
        library.finalize()


def test_verify_distinguishes_equal_offsets_from_those_kept_ahead(migration):
    migration.start([100, 100], [500, 500], options=PlanOptions(AheadPolicy.KEEP))
    assert set(migration.verify().values()) == {"kept-ahead"}
    commit(migration.source, "g", 500)
    assert migration.verify() == {"g orders-0": "equal", "g orders-1": "kept-ahead"}
    commit(migration.target, "g", None, 300)
    assert migration.verify()["g orders-1"] == "behind"


def test_an_offset_kept_ahead_by_an_old_plan_without_a_word_is_neither_verified_nor_kept_by_its_renewal(migration):
    migration.start([40, 40], [90, 40], options=PlanOptions(AheadPolicy.KEEP), apply=False)
    edit_plan(migration.path, ('"if_ahead_given": true', '"if_ahead_given": false'), (',"proven":true', ""))
    migration.apply()
    (found,) = [result for result in migration.results() if result.tp == ORDERS[0]]
    assert (found.status.value, found.status.ok) == ("ahead-unproven", False)
    assert found.detail.startswith("keeps 90; a start there skips 50 messages if the consumers are at 40 (")
    blocked = migration.status("--window", "0")["g"]["blocked_by"]
    assert blocked.endswith("to accept it, plan it again with --if-ahead keep")
    assert found.detail.endswith("to accept it, plan it again with if_ahead=keep")
    for action, *words in (("refuse-rewind",), ("keep-newer", "--if-ahead", "keep")):
        new = replace(migration, name=f"{action}.json")
        migration.run("renew", "-o", str(new.path), *words)
        migration = new
        with migration.opened() as library:
            assert list(steps(library).values()) == [action, "skip-equal"]


@pytest.mark.parametrize(
    ("partition", "source", "target", "status"),
    [
        (1, 10, 90, "ahead-unproven"),
        (1, 10, 95, "progress"),
        (1, 90, 90, "equal"),
        (1, 95, 90, "source-ahead"),
        (2, 10, 90, "ahead-unproven"),
        (2, 90, 90, "progress"),
    ],
)
def test_a_source_that_was_committed_after_the_plan_is_compared_with_a_target_that_is_ahead(
    migration, partition, source, target, status
):
    """When the plan is made, only the target has partition 1, and neither store has partition 2."""
    migration.start([5], [5, 90], apply=False)
    commit(migration.source, "g", 5, *(None,) * (partition - 1), source)
    commit(migration.target, "g", 5, *(None,) * (partition - 1), target)
    assert migration.verify(OneLog(LogRange(0, 1000)))[f"g {ORDERS[partition]}"] == status


class MovingStore(MemoryStore):
    """A store in which a consumer commits partition 1 before each read after the first, unless ``step`` is 0."""

    parallel_calls = 2
    layout, session = "0.8", "no session"
    reads = -1
    step = 1

    def commit_times(self, _groups, _limit_s):
        return {}

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        self.reads += 1
        if self.reads and self.step:
            self.data["g"][ORDERS[1]] = Committed(self.data["g"][ORDERS[1]].offset + self.reads)
        return super().scan(groups)


@pytest.mark.parametrize(
    ("moving", "planned", "target", "status"),
    [
        ("", False, 90, "ahead-unproven"),
        ("target", False, 90, "kept-ahead"),
        ("source", False, 90, "ahead-unproven"),
        ("", True, 95, "progress"),
        ("target", True, 95, "progress"),
        ("source", True, 95, "ahead-unproven"),
    ],
)
def test_commits_that_are_seen_during_verify_show_whether_a_target_that_is_ahead_was_written_last(
    migration, moving, planned, target, status
):
    migration.start([5, 5 if planned else None], [5, None if planned else 90])
    commit(migration.source, "g", 5, 10)
    commit(migration.target, "g", 5, target)
    for side in ("source", "target"):
        store = MovingStore(side, data=getattr(migration, side).data)
        store.step = int(side == moving)
        setattr(migration, side, store)
    assert migration.verify(OneLog(LogRange(0, 1000)))[f"g {ORDERS[1]}"] == status


@pytest.mark.parametrize(("moving", "action"), [("zookeeper", "refuse-rewind"), ("kafka", "keep-newer")])
def test_movement_decides_although_read_on_the_offsets_topic_is_missing(migration, monkeypatch, moving, action):
    for path in ("kafka.KafkaStore", "zookeeper.ZookeeperStore"):
        monkeypatch.setattr(f"offsetmgr.stores.{path}", MovingStore)
    monkeypatch.setattr("offsetmgr.migration.group_locator.owners_many", lambda *_: [])
    migration.source, migration.target = MovingStore("source"), MovingStore("target")
    for kind, store, offset in (("zookeeper", migration.source, 10), ("kafka", migration.target, 90)):
        commit(store, "g", None, offset)
        store.step = int(kind == moving)
    ((step,),) = (group.steps for group in migration.plan().groups())
    assert (step.action.value, " changed while it was watched (" in step.note) == (action, True)
    sides = {"zookeeper": "memory:source", "kafka": "memory:target"}
    monkeypatch.setattr("offsetmgr.app.connections.Connections.configured_stores", lambda _: sides)
    monkeypatch.setattr("offsetmgr.core.clock.SystemClock.sleep", lambda *_: None)
    with migration.stores():
        (found,) = rows("groups", "where", "g", "--window", "1")
    assert (found["phase"], found["confidence"]) == (moving, "seen")


def test_a_target_with_data_that_may_be_offsets_is_neither_written_nor_verified_nor_called_empty(migration):
    commit(migration.source, "g", 5)
    (planned,) = migration.plan().groups()
    migration.apply()
    assert (planned.error, set(migration.verify().values())) == ("", {"equal"})
    migration.target = HidingStore("target", data=migration.target.data)
    assert set(migration.verify().values()) == {"unreadable"}
    commit(migration.source, "g", 9)
    sides = ("--from", "memory:source", "--to", "memory:target", "--group", "g")
    migration.command("migrate", "mirror", *sides, "--once", "--yes", code=1)
    assert migration.target_offsets() == {"g": {ORDERS[0]: 5}}
    assert "to remove:" not in migration.run("rollback", "--yes")
    assert migration.target_offsets() == {}
    migration.name = "another.json"
    (planned,) = migration.plan().groups()
    assert planned.error == "target: group 'g': its offsets may be incomplete"


def test_verify_and_the_reverse_plan_know_the_shift(migration):
    commit(migration.source, "g", 40, 7)
    migration.options = PlanOptions(shift=1)
    assert migration.plan().header.version == 5
    migration.apply()
    assert migration.target_offsets() == {"g": {ORDERS[0]: 41, ORDERS[1]: 8}}
    assert set(migration.verify().values()) == {"equal"}
    commit(migration.source, "g", 44)
    (moved,) = [result for result in migration.results() if result.tp == ORDERS[0]]
    assert (moved.status.value, moved.source, moved.target) == ("source-ahead", 44, 41)
    assert moved.detail.endswith("would repeat 4 messages")
    commit(migration.source, "g", 40)
    commit(migration.target, "g", 50)
    with migration.opened() as library, library.plan_reverse(migration.directory / "back.json") as back:
        (group,) = back.groups()
    steps = [(step.action.value, step.after and step.after.offset) for step in group.steps]
    assert steps == [("copy", 49), ("skip-equal", 7)]
    commit(migration.target, "g", 41)
    assert migration.rollback().ok
    assert migration.target_offsets() == {}


def test_missing_offsets_are_explained_from_the_journal(migration):
    migration.start([10, 20], apply=False)

    def why() -> set[str]:
        return {one.detail for one in migration.results() if one.status.value == "missing"}

    assert why() == {"the target has no commit: not applied yet, run migrate apply"}
    migration.apply()
    assert why() == set()
    migration.target.data["g"].clear()
    assert why() == {"the target has no commit: deleted or expired since, so make a new plan"}
    commit(migration.target, "g", 10, 20)
    migration.rollback()
    assert why() == {"the target has no commit: the plan was rolled back"}


def test_finalize_counts_only_partitions_that_passed_as_verified(migration):
    migration.source = MemoryStore("source", kind="file")  # no member commits to a file
    migration.start([10, 2000], logs=OneLog(LogRange(0, 1000)), apply=False)
    migration.apply()
    with migration.opened() as library:
        done = library.finalize(accept_refused=True)
    assert (done.verified, done.left_out) == (1, 1)


def test_unreadable_offsets_block_finalize_with_a_hint(migration):
    migration.source = MemoryStore("source", kind="file")
    commit(migration.source, "g", 10, 20)
    commit(migration.source, "h", 2000)
    migration.source.broken = {("g", ORDERS[1]): CorruptData("node", "junk")}
    migration.plan(OneLog(LogRange(0, 1000)))
    migration.apply()
    for accept, wrong in ((False, 2), (True, 1)):
        with (
            migration.opened() as library,
            pytest.raises(GateRefused, match=f"{wrong} of 3 partitions do not verify") as refused,
        ):
            library.finalize(accept_refused=accept)
        assert refused.value.hint == (
            "unreadable offsets are never skipped silently: fix the cause, or make a new plan without them "
            "(groups=, topics=)"
        )


def test_a_refresh_renews_the_other_groups(migration, monkeypatch):
    unread, names = Unreachable("group bad", "it cannot\nbe read"), ("first", "members", "locked", "offsets", "last")
    migration.target = target = LockableMemoryStore("target", unlockable={"locked": unread})
    for name in names:
        commit(migration.source, name, 5)
    migration.plan()
    migration.apply()
    for name in names:
        commit(target, name, 6)
    target.broken["offsets"] = unread
    monkeypatch.setattr(target, "topic_creation_times", lambda topics: dict.fromkeys(topics, 2**62))
    members = nullcontext(lambda _: {"members": unread})
    monkeypatch.setattr("offsetmgr.app.connections.SourceAndTarget.legacy_members", lambda _: members)
    shown = migration.run("apply", "--refresh", "--yes", code=1)
    assert "NOT renewed: 3" in shown
    assert "  ! group bad: it cannot be read\n" in shown  # one line for each
    assert target.refreshed == {"first": {ORDERS[0]}, "last": {ORDERS[0]}}
