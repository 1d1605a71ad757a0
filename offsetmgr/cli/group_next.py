"""The next command for a located group, with the options that name its servers. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from offsetmgr.core.document import moment
from offsetmgr.core.model import Committed
from offsetmgr.core.phase import Confidence, Phase
from offsetmgr.core.selection import group_words, literal_pattern
from offsetmgr.groups.last_writes import TITLES
from offsetmgr.migration.progress import Stage
from offsetmgr.migration.runbook_commands import file_label

if TYPE_CHECKING:
    from offsetmgr.migration.group_location import GroupLocation, MigratedGroup


def next_command(one: GroupLocation, options: str) -> tuple[str | None, str]:
    """Returns the next command, or None if there is nothing to do, and the reason. ``options`` are the connection
    options of the present command line; they start with a space."""
    plan, phase = one.sample.plan, one.phase.phase
    if phase is Phase.UNKNOWN:
        return _determine(one, shlex.join(group_words(one.group)), options)
    if phase is Phase.MOVED:
        if plan is not None and (expires := expiry_of(one)) is not None:
            command = shlex.join(("offsetmgr", "migrate", "apply", plan.path, "--refresh"))
            why = f"commits the copied offsets again: without a consumer they expire about {moment(expires)} UTC"
            return f"{command}{options}", why
        if plan is None or plan.source_deleted:
            return None, "the migration is finalized, and the offsets in the source are deleted"
        if _may_be_dual(one, plan):
            why = "writes the steps from dual commit to Kafka, after which the old offsets can be deleted"
            return _runbook(one, Phase.KAFKA, options), why
        command = f"{_finalize(plan)} --delete-source{options}"
        return command, "deletes the old offsets in the source, once you do not need a way back"
    if plan is not None and (found := _with_plan(one, plan, options)) is not None:
        return found
    if phase is Phase.DUAL:
        return _runbook(one, Phase.KAFKA, options), "writes the steps from dual commit to Kafka"
    zookeeper, kafka = one.sample.store("zookeeper"), one.sample.store("kafka")
    if phase is Phase.ZOOKEEPER and kafka is not None and zookeeper is not None:
        sides = shlex.join(("--from", zookeeper.uri, "--to", kafka.uri, "--group", one.group))
        return f"offsetmgr migrate plan {sides} -o {_plan_file(one)}{options}", "plans the copy of the offsets to Kafka"
    return None, f"the group is in phase {phase.value}"


def _with_plan(one: GroupLocation, plan: MigratedGroup, options: str) -> tuple[str | None, str] | None:
    """Returns the next step of the plan; None if the plan has no step for the phase of the group."""
    phase, source, target = one.phase.phase, plan.source, plan.target
    if plan.finalized_at is not None and phase == source:
        again = f"the group commits to {TITLES[phase]} again after the plan was finalized"
        return _show_members(one, options), f"{again}; find the consumer that still commits there"
    if plan.stage is Stage.ROLLED_BACK_IN_PART:
        return f"{_of_group('rollback', plan)}{options}", "completes the rollback"
    if plan.stage in (Stage.PLANNED, Stage.APPLIED_IN_PART) and phase in (source, Phase.DUAL):
        return f"{_of_group('apply', plan)}{options}", "copies the offsets of the plan"
    if plan.stage is not Stage.APPLIED:
        return None
    if phase == target:
        return f"{_finalize(plan)}{options}", "verifies again, and records the end of the migration"
    if phase is Phase.DUAL:
        last = Phase.ZOOKEEPER if target == Phase.ZOOKEEPER else Phase.KAFKA
        return _runbook(one, last, options), f"writes the steps from dual commit to {TITLES[last]}"
    registry = one.sample.store("zookeeper")
    has_old_members = registry is not None and bool(registry.members)
    if phase != source or (phase is Phase.ZOOKEEPER and target == Phase.KAFKA and not has_old_members):
        return None  # without members that commit, only a new plan copies the offsets that were committed since
    names = f"{TITLES[phase]} to dual commit"
    if {source, target} == {Phase.ZOOKEEPER, Phase.KAFKA} and has_old_members:
        return _runbook(one, Phase.DUAL, options), f"the offsets are copied; writes the steps from {names}"
    return None, f"the offsets are copied to {plan.target_uri}, and the group still commits to {TITLES[phase]}"


def _may_be_dual(one: GroupLocation, plan: MigratedGroup) -> bool:
    """Whether the members of a group that was moved to Kafka may still commit to ZooKeeper too: old consumers are
    registered, and Kafka is ahead on no partition. ``migrate finalize --delete-source`` refuses such a group."""
    zookeeper, kafka = one.sample.store("zookeeper"), one.sample.store("kafka")
    if (plan.source, plan.target) != ("zookeeper", "kafka") or zookeeper is None or kafka is None:
        return False
    ahead = (
        isinstance(old := zookeeper.of(tp), Committed) and offset > old.offset for tp, offset in kafka.committed.items()
    )
    return bool(zookeeper.members) and not any(ahead)


def expiry_of(one: GroupLocation) -> int | None:
    """Returns the time at which the copied offsets of a group expire; None if it is unknown, if the group has members,
    or if the target shows a commit after the copy."""
    plan, copied = one.sample.plan, {tp for tp, writer in one.sample.writers.items() if writer.is_unchanged}
    if plan is None or any(store.members or store.members_error for store in one.sample.stores):
        return None
    source, target = one.sample.side(plan.source), one.sample.side(plan.target)
    old = {} if source is None else source.committed
    new = {} if target is None else {tp: offset for tp, offset in target.committed.items() if tp not in copied}
    moved_on = target is None or any(offset > old.get(tp, offset) for tp, offset in new.items())
    return None if moved_on else plan.expires_at


def _runbook(one: GroupLocation, to: Phase, options: str) -> str:
    """Returns the command that writes the runbook to the phase, as a file for offsetmgr and as a page."""
    plan, label = one.sample.plan, file_label(one.group)
    named = ("--plan", plan.path) if plan is not None and plan.stage is Stage.APPLIED else ()
    outputs = ("-o", f"{label}.json", "-o", f"{label}.html")
    return shlex.join(("offsetmgr", "runbook", "write", "--group", one.group, "--to", to, *named, *outputs)) + options


def _show_members(one: GroupLocation, options: str) -> str:
    return f"offsetmgr groups describe --members --group {shlex.quote(one.group)}{options}"


def _plan_file(one: GroupLocation) -> str:
    """Returns the name of a new plan file. It differs from the plan that the user named, which cannot be replaced."""
    name = f"{file_label(one.group)}.plan"
    return name if one.sample.plan is None or one.sample.plan.path != name else f"{file_label(one.group)}-2.plan"


def _of_group(command: str, plan: MigratedGroup) -> str:
    return shlex.join(("offsetmgr", "migrate", command, plan.path, "--group", literal_pattern(plan.group)))


def _finalize(plan: MigratedGroup) -> str:
    return shlex.join(("offsetmgr", "migrate", "finalize", plan.path, *group_words(literal_pattern(plan.group))))


def _determine(one: GroupLocation, group: str, options: str) -> tuple[str | None, str]:
    """Returns the command that can determine an unknown phase."""
    sample = one.sample
    if unread := next((s for s in sample.stores if s.error is not None), None):
        return None, f"{unread.title} cannot be read: correct its address, its access or the server first"
    for name, option in (("zookeeper", "--zookeeper HOST:PORT/CHROOT"), ("kafka", "--bootstrap-server HOST:PORT")):
        if sample.store(name) is None and sample.store("manager") is None:
            return f"offsetmgr groups where {group}{options} {option}", "also reads the other store"
    if one.phase.confidence is Confidence.SEEN or all(
        any(s.members for s in sample.stores if (s.name == "zookeeper") is old) for old in (True, False)
    ):
        return _show_members(one, options), "shows the members that differ"
    return f"offsetmgr groups where {group} --window 60{options}", "watches commits for at most 60 s"
