"""The next command for a located group, with the options that name its servers. Pure."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from offsetmgr.groups.selection import literal_pattern
from offsetmgr.migration.evidence import Confidence
from offsetmgr.migration.group_location import GroupPhase

if TYPE_CHECKING:
    from offsetmgr.migration.group_location import GroupLocation, MigratedGroup


def next_command(one: GroupLocation, options: str) -> tuple[str | None, str]:
    """Returns the next command, or None if there is nothing to do, and the reason. ``options`` are the connection
    options of the present command line; they start with a space."""
    group, sample, plan = shlex.quote(one.group), one.sample, one.sample.plan
    zookeeper, kafka = sample.store("zookeeper"), sample.store("kafka")
    old = bool(zookeeper and zookeeper.members)
    match one.phase.phase:
        case GroupPhase.UNKNOWN:
            return _find_out(one, group, options)
        case GroupPhase.MOVED:
            if plan is None or plan.source_deleted:
                return None, "the migration is finalized, and the offsets in the source are deleted"
            command = f"{_finalize(plan)} --delete-source{options}"
            return command, "deletes the old offsets in the source, once you do not need a way back"
        case GroupPhase.DUAL:
            command = f"offsetmgr runbook write --group {group} --to kafka -o {group}.json{options}"
            return command, "writes the steps from dual commit to Kafka"
        case GroupPhase.ZOOKEEPER if kafka is not None and zookeeper is not None:
            if plan is not None and plan.state == "applied" and old:
                command = f"offsetmgr runbook write --group {group} --to dual -o {group}.json{options}"
                return command, "the offsets are copied; writes the steps from ZooKeeper to dual commit"
            sides = f"--from {shlex.quote(zookeeper.uri)} --to {shlex.quote(kafka.uri)}"
            return (
                f"offsetmgr migrate plan {sides} --group {group} -o {group}.plan{options}",
                "plans the copy of the offsets to Kafka",
            )
        case GroupPhase.KAFKA if plan is not None and plan.state == "applied":
            command = f"{_finalize(plan)}{options}"
            return command, "verifies again, and records the end of the migration"
        case _:
            return None, f"the group is in phase {one.phase.phase.value}"


def _finalize(plan: MigratedGroup) -> str:
    return shlex.join(("offsetmgr", "migrate", "finalize", plan.path, literal_pattern(plan.group)))


def _find_out(one: GroupLocation, group: str, options: str) -> tuple[str | None, str]:
    """Returns the command that can find out an unknown phase."""
    sample = one.sample
    if unread := next((s for s in sample.stores if s.error is not None), None):
        return None, f"{unread.title} cannot be read: correct its address, its access or the server first"
    for name, option in (("zookeeper", "--zookeeper HOST:PORT/CHROOT"), ("kafka", "--bootstrap-server HOST:PORT")):
        if sample.store(name) is None and sample.store("manager") is None:
            return f"offsetmgr groups where {group}{options} {option}", "also reads the other store"
    if one.phase.confidence is Confidence.SEEN or all(
        any(s.members for s in sample.stores if (s.name == "zookeeper") is old) for old in (True, False)
    ):
        return f"offsetmgr groups describe --members --group {group}{options}", "shows the members that differ"
    return f"offsetmgr groups where {group} --window 60{options}", "watches commits for at most 60 s"
