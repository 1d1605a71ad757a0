"""Keeps copied offsets from expiring until a consumer starts: commits the offsets of a plan's groups again, unchanged.

Kafka deletes the offsets of a group without members one retention after each commit, or after the group became empty
(KIP-211). So only another commit of the same value keeps it, and a conditional edit would skip it as unchanged. Each
group is locked meanwhile, so that no newer commit is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import (
    GroupActive,
    GroupNotFound,
    JournalError,
    LegacyMembersPresent,
    OffsetMgrError,
    UsageError,
)
from offsetmgr.core.lockable_store import HeldLock, LockableStore
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.former_locks import POLL_S, Waiting
from offsetmgr.migration.apply import check_endpoint
from offsetmgr.migration.group_batches import batched
from offsetmgr.migration.journal import Journal
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.planner import ReadLegacyMembers
from offsetmgr.migration.progress import MigrationState

HOLDER = "offsetmgr-refresh"
AT_ONCE = 500
"""The number of groups locked together: a broker delays the first join of an empty group (3 s by default), and these
wait in parallel."""


@dataclass(slots=True)
class RefreshReport:
    """The result, in groups. ``in_use`` have members, and Kafka keeps their offsets; ``failed`` were not renewed, each
    with the reason."""

    renewed: int = 0
    in_use: list[str] = field(default_factory=list)
    failed: dict[str, OffsetMgrError] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        return not self.failed and not self.interrupted


def renew_retention(
    plan: PlanFile,
    state: MigrationState,
    store: OffsetStore,
    journal: Journal,
    old_members: ReadLegacyMembers | None = None,
    stop: Callable[[], bool] = lambda: False,
    waiting: Waiting = lambda _groups, _seconds: None,
) -> RefreshReport:
    """Commits again the offsets of the plan's groups in the target, also after the plan was finalized.

    Groups with old consumers registered in ZooKeeper (``old_members``) are not renewed, because the lock would make the
    consumers' commits fail. The command waits for the lock of a killed run.

    Raises `UsageError` for a target whose offsets do not expire, `JournalError` if nothing was applied or it was rolled
    back, `PlanError` for another cluster.
    """
    check_endpoint("target", plan.header.target, store)
    if not isinstance(store, LockableStore):
        raise UsageError("--refresh", f"offsets in {store.uri} do not expire")
    if state.undo.may_have_written:
        raise JournalError(f"plan {plan.path}", "it was rolled back", "make a new plan")
    if not state.apply.opened:
        raise JournalError(f"plan {plan.path}", "it was not applied yet", f"run: offsetmgr migrate apply {plan.path}")
    report = RefreshReport()
    existing = set(store.groups())
    clock = SystemClock()
    for batch in batched(_with_offsets(plan), AT_ONCE):
        if stop():
            report.interrupted = True
            break
        names = {group.target_group: group for group in batch}
        for name in names.keys() - existing:
            report.failed[name] = GroupNotFound(f"group {name}", "its offsets are gone: deleted, or expired")
        members_of = old_members({*names, *(group.group for group in batch)}) if old_members else {}
        for name, group in names.items():
            if registered := sorted({*members_of.get(name, ()), *members_of.get(group.group, ())}):
                why = f"old consumers are registered in ZooKeeper, whose commits would fail: {', '.join(registered)}"
                report.failed[name] = LegacyMembersPresent(f"group {name}", why)
        locked = _renew(store, [name for name in names if name not in report.failed], report)
        started_at = clock.monotonic()
        while locked and not stop():
            remaining_s = max(locked.values()) - (clock.monotonic() - started_at)
            waiting(sorted(locked), remaining_s)
            clock.sleep(POLL_S)
            again = _renew(store, list(locked), report)
            locked = {name: locked[name] for name in again if clock.monotonic() - started_at < locked[name]}
            report.in_use.extend(again.keys() - locked.keys())
        report.interrupted = report.interrupted or bool(locked)
    journal.append([{"kind": "refreshed", "groups": report.renewed}])
    return report


def _with_offsets(plan: PlanFile) -> Iterable[GroupPlan]:
    """Yields the groups that should have offsets in the target."""
    return (group for group in plan.groups() if any(step.after is not None for step in group.steps))


def _renew(store: LockableStore, names: list[str], report: RefreshReport) -> dict[str, float]:
    """Renews the groups; returns those that another run has locked, with the maximum seconds of its lock."""
    locked: dict[str, float] = {}
    held: list[HeldLock] = []
    try:
        for name, found in store.hold_many(names, holder=HOLDER):
            if isinstance(found, GroupActive) and found.lock_ends_s:
                locked[name] = found.lock_ends_s
            elif isinstance(found, GroupActive):
                report.in_use.append(name)
            elif isinstance(found, OffsetMgrError):
                report.failed[name] = found
            else:
                held.append(found)
        for name, error in store.refresh_held(held):
            if error is None:
                report.renewed += 1
            else:
                report.failed[name] = error
    finally:
        store.release_held(held)
    return locked
