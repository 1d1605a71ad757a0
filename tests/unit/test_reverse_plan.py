"""The reverse plan after a cutover, between two stores in memory."""

from __future__ import annotations

from one_migration import ORDERS, Migration, commit

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import CorruptData
from offsetmgr.core.model import Committed, OffsetAndMetadata
from offsetmgr.migration.plan import Action, AheadPolicy, GroupPlan, PlanOptions
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.reverse_plan import ReversePlanner, reverse_options

pytest_plugins = ["migration_fixtures"]


def reverse_plan_of(
    migration: Migration,
    *,
    allow_rewind: bool = False,
    only: frozenset[str] | None = None,
    if_ahead: AheadPolicy | None = None,
) -> dict[str, GroupPlan]:
    """The groups of the reverse plan, read from its file, by their names in the store that they leave."""
    plan = PlanFile(migration.path)
    options = reverse_options(plan, only, if_ahead)
    planner = Planner(migration.target, migration.source, options, SystemClock())
    path = migration.directory / "back.json"
    path.unlink(missing_ok=True)
    reverse = ReversePlanner(plan, migration.state(), planner, allow_rewind, only)
    write_plan(path, planner.header(), reverse.steps())
    return {group.group: group for group in PlanFile(path).groups()}


def actions(group: GroupPlan) -> list[tuple[int, str]]:
    return [(step.tp.partition, step.action.value) for step in group.steps]


def test_a_group_that_was_never_copied_is_named_and_does_not_stop_the_others(migration):
    commit(migration.source, "live", 10)
    migration.source.data["nothing"] = {}
    migration.plan()
    migration.apply()
    migration.target.data["live"][ORDERS[0]] = Committed(30)
    found = reverse_plan_of(migration)
    assert actions(found["live"]) == [(0, "copy")]
    assert found["live"].note == ""
    assert found["nothing"].steps == ()
    assert found["nothing"].note == "left out: there was nothing to copy, and memory:target holds none of it"


def test_a_reverse_plan_is_limited_to_groups_although_another_cannot_be_planned(migration):
    for group in ("shop", "audit"):
        commit(migration.source, group, 10)
    migration.options = PlanOptions(rename={"shop": "new"})
    migration.plan()
    migration.apply()
    migration.target.broken = {"audit": CorruptData("audit", "no answer")}
    assert reverse_plan_of(migration)["audit"].error
    found = reverse_plan_of(migration, only=frozenset(["shop"]))
    assert actions(found.pop("new")) == [(0, "skip-equal")]
    assert found == {}


def test_a_group_that_the_plan_rejected_is_left_out(migration):
    commit(migration.source, "live", 10)
    commit(migration.source, "bad", 10)
    migration.source.broken = {"bad": CorruptData("bad", "no answer")}
    migration.plan()
    migration.apply()
    migration.source.broken.clear()
    found = reverse_plan_of(migration)
    assert actions(found["bad"]) == [(0, "target-only")]
    assert found["bad"].note == "left out: it was never copied (source: bad: no answer)"
    assert not found["bad"].error


def test_a_copied_offset_that_was_deleted_since_is_rejected_and_the_rest_is_planned(migration):
    for group in ("kept", "deleted"):
        commit(migration.source, group, 10, 20)
    migration.plan()
    migration.apply()
    del migration.target.data["deleted"]
    del migration.target.data["kept"][ORDERS[1]]
    commit(migration.target, "kept", 15)
    found = reverse_plan_of(migration)
    assert actions(found["kept"]) == [(0, "copy"), (1, "refuse-lost")]
    assert actions(found["deleted"]) == [(0, "refuse-lost"), (1, "refuse-lost")]
    assert "gone from there" in found["deleted"].steps[0].note
    assert found["deleted"].note == ""


def test_a_copied_offset_that_was_deleted_from_both_stores_is_rejected(migration):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    migration.source.data.clear()
    migration.target.data.clear()
    assert actions(reverse_plan_of(migration)["g"]) == [(0, "refuse-lost")]


def test_a_renamed_group_goes_back_under_its_old_name(migration):
    commit(migration.source, "old", 10)
    migration.options = PlanOptions(rename={"old": "new"})
    migration.plan()
    migration.apply()
    commit(migration.target, "new", 12)
    found = reverse_plan_of(migration)["new"]
    assert (found.target_group, [step.action for step in found.steps]) == ("old", [Action.COPY])


def test_an_offset_that_was_lowered_in_the_target_after_the_copy_is_a_rewind_and_not_an_older_offset(migration):
    commit(migration.source, "g", 500, 500, 500)
    migration.plan()
    migration.apply()
    commit(migration.target, "g", 100, 500, 100)
    commit(migration.source, "g", None, 510, 510)  # a consumer has continued there
    left = "the target still holds the 500 of offsetmgr's last copy, and the source has changed since"
    (refused, kept, unknown) = reverse_plan_of(migration)["g"].steps
    assert (refused.action, refused.note) == (
        Action.REFUSE_REWIND,
        f"keeps 500; a start there skips 400 messages if the consumers are at 100 ({left}); --if-ahead keep accepts it,"
        " --if-ahead rewind writes 100",
    )
    assert (kept.action, kept.after, kept.proven) == (Action.KEEP_NEWER, OffsetAndMetadata(510), True)
    assert unknown.action is Action.REFUSE_REWIND  # both stores have changed since the copy
    (allowed, kept, unknown) = reverse_plan_of(migration, allow_rewind=True)["g"].steps
    assert (allowed.action, allowed.after) == (Action.REWIND, OffsetAndMetadata(100))
    assert (kept.action, unknown.action) == (Action.KEEP_NEWER, Action.REFUSE_REWIND)
    (_, _, accepted) = reverse_plan_of(migration, if_ahead=AheadPolicy.KEEP)["g"].steps
    assert (accepted.action, accepted.after) == (Action.KEEP_NEWER, OffsetAndMetadata(510))


def test_a_rewind_is_also_detected_if_the_target_was_ahead_before_the_copy(migration):
    commit(migration.source, "g", 500)
    commit(migration.target, "g", 600)
    migration.options = PlanOptions(AheadPolicy.KEEP)
    migration.plan()
    migration.apply()
    commit(migration.target, "g", 100)
    assert actions(reverse_plan_of(migration)["g"]) == [(0, "refuse-rewind")]


def test_an_offset_that_was_never_copied_is_no_rewind(migration):
    commit(migration.source, "g", 500)
    commit(migration.target, "g", 100)
    migration.plan()
    (step,) = reverse_plan_of(migration)["g"].steps
    assert step.action is Action.REFUSE_REWIND
    assert "still holds" not in step.note  # the plan was not applied, so its journal is no evidence
