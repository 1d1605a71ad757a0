"""Keeps copied offsets from expiring until a consumer starts: commits them again, unchanged.

If a group has no members, Kafka deletes its offsets after the retention time. The time is measured from the commit, or
from the moment at which the group became empty (KIP-211). Only a new commit extends the retention. A conditional edit
does not extend the retention, because the edit skips unchanged values. Each group is locked while its offsets are
committed, so that no newer commit is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from offsetmgr.core.batches import batched
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
from offsetmgr.groups.leftover_locks import POLL_S, OnWait
from offsetmgr.migration.apply import check_endpoint
from offsetmgr.migration.journal import Journal
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.planner import ReadLegacyMembers
from offsetmgr.migration.progress import MigrationState

HOLDER = "offsetmgr-refresh"
GROUPS_AT_ONCE = 500
"""The number of groups that are locked together. A broker delays the first join of an empty group (3 s by default). The
groups of a batch join in parallel, so the delay occurs once for each batch."""


@dataclass(slots=True)
class RefreshReport:
    """The result. ``renewed`` counts groups; ``in_use`` are groups with members, for which Kafka keeps the offsets;
    ``failed`` are groups that were not renewed, each with the reason."""

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
    on_lock_wait: OnWait = lambda _groups, _seconds: None,
) -> RefreshReport:
    """Reads the offsets of the plan's groups in the target, and commits the same offsets again. A finalized plan can be
    refreshed too.

    A group is not renewed if old consumers are registered in ZooKeeper (``old_members``), because the lock would make
    their commits fail. If a killed run has locked a group, the function waits until the lock ends.

    Raises `UsageError` for a target whose offsets do not expire, `JournalError` if the plan was not applied or was
    rolled back, `PlanError` if ``store`` is not the plan's target.
    """
    check_endpoint("target", plan.header.target, store)
    if not isinstance(store, LockableStore):
        raise UsageError("--refresh", f"offsets in {store.uri} do not expire")
    if state.is_rolled_back:
        raise JournalError(f"plan {plan.path}", "it was rolled back", "make a new plan")
    if not state.apply.opened:
        raise JournalError(f"plan {plan.path}", "it was not applied yet", f"run: offsetmgr migrate apply {plan.path}")
    report = RefreshReport()
    existing = set(store.groups())
    clock = SystemClock()
    for batch in batched(_with_offsets(plan), GROUPS_AT_ONCE):
        if stop():
            report.interrupted = True
            break
        names = {group.target_group: group for group in batch}
        for name in names.keys() - existing:
            report.failed[name] = GroupNotFound(
                f"group {name}", "its offsets are gone: they were deleted or have expired"
            )
        members_of = old_members({*names, *(group.group for group in batch)}) if old_members else {}
        for name, group in names.items():
            if registered := sorted({*members_of.get(name, ()), *members_of.get(group.group, ())}):
                why = f"old consumers are registered in ZooKeeper, whose commits would fail: {', '.join(registered)}"
                report.failed[name] = LegacyMembersPresent(f"group {name}", why)
        locked = _renew(store, [name for name in names if name not in report.failed], report)
        started_at = clock.monotonic()
        while locked and not stop():
            remaining_s = max(locked.values()) - (clock.monotonic() - started_at)
            on_lock_wait(sorted(locked), remaining_s)
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
    """Renews the groups. Returns the groups that another run has locked, each with the maximum number of seconds until
    the lock ends."""
    locked: dict[str, float] = {}
    held: list[HeldLock] = []
    try:
        for name, found in store.lock_many(names, holder=HOLDER):
            if isinstance(found, GroupActive) and found.lock_ends_s:
                locked[name] = found.lock_ends_s
            elif isinstance(found, GroupActive):
                report.in_use.append(name)
            elif isinstance(found, OffsetMgrError):
                report.failed[name] = found
            else:
                held.append(found)
        for name, error in store.refresh_locked(held):
            if error is None:
                report.renewed += 1
            else:
                report.failed[name] = error
    finally:
        store.release_locks(held)
    return locked
