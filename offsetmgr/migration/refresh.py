"""Keeps copied offsets from expiring until a consumer starts: commits them again, unchanged.

If a group has no members, Kafka deletes its offsets after the retention time. The time is measured from the commit, or
from the moment at which the group became empty (KIP-211). Only a new commit extends the retention. A conditional edit
does not extend the retention, because the edit skips unchanged values. Each group is locked while its offsets are
committed, so that no newer commit is overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import (
    GroupActive,
    GroupNotFound,
    JournalError,
    LegacyMembersPresent,
    OffsetMgrError,
    RecreatedTopic,
    UsageError,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import HeldLock, LockableStore, OffsetStore
from offsetmgr.core.plurals import SHOWN, count_of
from offsetmgr.groups.describe import POLL_S
from offsetmgr.migration.apply import check_endpoint, recreated_topics
from offsetmgr.migration.journaled_writer import JournaledWriter
from offsetmgr.migration.plan import GroupPlan, PlanFile
from offsetmgr.migration.planner import ReadLegacyMembers, registered_members
from offsetmgr.migration.progress import MigrationState

HOLDER = "offsetmgr-refresh"
_NOT_RENEWED: Final = "none of its offsets were renewed: set a new one (offsets reset), and repeat the command"
GROUPS_AT_ONCE = 500
"""The number of groups that are locked together. A broker delays the first join of an empty group (3 s by default). The
groups of a batch join in parallel, so the delay occurs once for each batch."""


@dataclass(slots=True)
class RefreshReport:
    """The result. ``renewed`` are groups; ``in_use`` are groups with members, for which Kafka keeps the offsets;
    ``failed`` are groups that were not renewed, each with the reason."""

    renewed: set[str] = field(default_factory=set)
    in_use: list[str] = field(default_factory=list)
    failed: dict[str, OffsetMgrError] = field(default_factory=dict)
    interrupted: bool = False
    expires: str = ""
    """The new expiry as text; empty if it is unknown."""

    @property
    def ok(self) -> bool:
        return not self.failed and not self.interrupted

    def lines(self) -> Iterator[str]:
        """Describes the result, and at most `SHOWN` failures."""
        until = f"; without a consumer they expire about {self.expires}" if self.expires else ""
        yield f"{count_of(len(self.renewed), 'group')} renewed: their offsets were committed again, unchanged{until}"
        if self.in_use:
            yield f"{count_of(len(self.in_use), 'group')} in use: the offsets of a group with members do not expire"
        yield from (Advice("  ! {}", error.text) for error in islice(self.failed.values(), SHOWN))
        if self.failed:
            yield f"NOT renewed: {count_of(len(self.failed), 'group')}"


def renew_retention(
    plan: PlanFile, state: MigrationState, writer: JournaledWriter, old_members: ReadLegacyMembers | None
) -> RefreshReport:
    """Reads the offsets of the plan's groups in the target, and commits the same offsets again. A finalized plan can be
    refreshed too.

    A group is not renewed if it still has the plan's offset of a topic that was recreated since. It is not renewed
    either if old consumers are registered in ZooKeeper (``old_members``), because the lock would make
    their commits fail. If a killed run has locked a group, the function waits until the lock ends.

    Raises `UsageError` for a target whose offsets do not expire, `JournalError` if the plan was not applied or was
    rolled back, `PlanError` if the store of ``writer`` is not the plan's target.
    """
    store = writer.store
    check_endpoint("target", plan.header.target, store)
    if not isinstance(store, LockableStore):
        raise UsageError(Advice("{refresh}"), f"offsets in {store.uri} do not expire")
    state.reject_ended(plan.path, finalized=False)
    if not state.apply.opened:
        hint = Advice("run: {}", Invocation("migrate apply", (str(plan.path),)))
        raise JournalError(f"plan {plan.path}", "it was not applied yet", hint)
    report = RefreshReport()
    existing, recreated = set(store.groups()), recreated_topics(plan, store)
    clock = writer.clock
    for batch in batched(_with_offsets(plan), GROUPS_AT_ONCE):
        if writer.plan_run.stop():
            report.interrupted = True
            break
        names = {group.target_group: group for group in batch}
        for name in names.keys() - existing:
            report.failed[name] = GroupNotFound(
                f"group {name}", "its offsets are gone: they were deleted or have expired"
            )
        report.failed |= _with_old_members(names, old_members)
        report.failed |= _of_deleted_logs(store, names, recreated)
        stale = {name: [step.tp for step in group.steps if step.may_be_stale] for name, group in names.items()}
        locked = _renew(store, [name for name in names if name not in report.failed], stale, report)
        started_at = clock.monotonic()
        while locked and not writer.plan_run.stop():
            remaining_s = max(locked.values()) - (clock.monotonic() - started_at)
            writer.plan_run.on_lock_wait(sorted(locked), remaining_s)
            clock.sleep(POLL_S)
            again = _renew(store, list(locked), stale, report)
            locked = {name: locked[name] for name in again if clock.monotonic() - started_at < locked[name]}
            report.in_use.extend(again.keys() - locked.keys())
        report.interrupted = report.interrupted or bool(locked)
    every = {group.target_group for group in _with_offsets(plan)}
    left = sorted(every - report.renewed)
    writer.journal.append([{"kind": "refreshed", "groups": len(report.renewed), "not_renewed": left}])
    return report


def _with_old_members(
    names: Mapping[str, GroupPlan], old_members: ReadLegacyMembers | None
) -> dict[str, OffsetMgrError]:
    """Returns an error for each group with old consumers, and for each whose old consumers cannot be read. ``names``
    has the groups by their names in the target."""
    members_of = old_members({*names, *(group.name for group in names.values())}) if old_members else {}
    found: dict[str, OffsetMgrError] = {}
    for name, group in names.items():
        registered = registered_members(members_of, name, group.name)
        if isinstance(registered, OffsetMgrError):
            found[name] = registered
        elif registered:
            why = f"old consumers are registered in ZooKeeper, whose commits would fail: {', '.join(registered)}"
            found[name] = LegacyMembersPresent(f"group {name}", why)
    return found


def _with_offsets(plan: PlanFile) -> Iterable[GroupPlan]:
    """Yields the groups that should have offsets in the target."""
    return (group for group in plan.groups() if any(step.after is not None for step in group.steps))


def _of_deleted_logs(
    store: OffsetStore, names: Mapping[str, GroupPlan], recreated: Mapping[str, str]
) -> dict[str, OffsetMgrError]:
    """Returns the groups that still have the plan's offset of a recreated topic, or that cannot be read, each with the
    error."""
    planned = {
        name: {s.tp: s.after.offset for s in group.steps if s.after is not None and s.tp.topic in recreated}
        for name, group in names.items()
    }
    failed: dict[str, OffsetMgrError] = {}
    for found in store.scan([name for name, offsets in planned.items() if offsets]):
        if found.error is not None:
            failed[found.name] = found.error
        for tp, offset in planned[found.name].items():
            if tp in found.offsets and found.offsets[tp].offset == offset:
                why = f"{tp} still has the planned offset {offset}, but {recreated[tp.topic]}"
                failed[found.name] = RecreatedTopic(f"group {found.name}", why, _NOT_RENEWED)
    return failed


def _renew(
    store: LockableStore, names: list[str], stale: Mapping[str, Collection[TopicPartition]], report: RefreshReport
) -> dict[str, float]:
    """Renews the groups, without the partitions in ``stale``. Returns the groups that another run has locked, each with
    the maximum number of seconds until the lock ends."""
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
        for name, error in store.refresh_locked(held, stale):
            if error is None:
                report.renewed.add(name)
            else:
                report.failed[name] = error
    finally:
        store.release_locks(held)
    return locked
