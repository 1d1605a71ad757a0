"""Checks and executes edits of groups whose consumers run. The before-images are taken while the members cannot
commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import GroupActive, OffsetMgrError, OffsetOutOfRange, UnsupportedOperation
from offsetmgr.core.log_origin import FetchLogRanges
from offsetmgr.core.model import GroupDescription, LogRange, Offset, TopicPartition
from offsetmgr.core.offset_store import OffsetStore, RunningEdit, RunningGroup
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.before_images import BeforeImageFile, image_file
from offsetmgr.groups.describe import GROUPS_AT_ONCE, DescribeGroups
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange
from offsetmgr.groups.execute import SavedEdit, execute

if TYPE_CHECKING:
    from offsetmgr.stores.kafka import KafkaStore

UNDO_OPTIONS: Final = {"running": True, "allow_rewind": True}
"""The arguments of the call that undoes an edit of running groups."""


class RunningChecks(NamedTuple):
    """The functions with which `check_running` reads the present state of groups and logs. ``all_members`` describes
    the members in Kafka and in ZooKeeper, and ``kafka_members`` only the members in Kafka."""

    all_members: DescribeGroups
    kafka_members: DescribeGroups
    log_ranges: FetchLogRanges
    inspect: Callable[[Iterable[str]], Iterator[tuple[str, RunningGroup | OffsetMgrError]]]
    found: dict[str, RunningGroup]
    """`check_running` adds the groups that can be edited."""


def require_running_store(store: OffsetStore) -> KafkaStore:
    """Returns ``store``. Raises `UnsupportedOperation` if the store cannot edit groups whose consumers run."""
    from offsetmgr.stores.kafka import KafkaStore

    if isinstance(store, KafkaStore):
        return store
    why = "only a Kafka cluster can remove members from a group for a moment"
    if store.uri.startswith("zookeeper:"):
        why = "consumers that store offsets in ZooKeeper commit before they release a partition, so no edit is safe"
    raise UnsupportedOperation(
        Advice("{running} in {}", store.uri), why, Advice("stop the consumers, then edit without {running}")
    )


def check_running(checks: RunningChecks, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
    """Yields the plans. Sets the ``problem`` of a plan if the group cannot be edited while its members run, and the
    ``problem`` of a change if its offset is outside the log."""
    for batch in batched(plans, GROUPS_AT_ONCE):
        names = [plan.name for plan in batch]
        in_kafka, everywhere = checks.kafka_members(names), checks.all_members(names)
        inspected = dict(checks.inspect(names))
        logs = checks.log_ranges(
            {c.partition for plan in batch for c in plan.changes if c.writes and c.after is not None}
        )
        for plan in batch:
            problem = plan.problem or _old_consumers(plan.name, everywhere[plan.name], in_kafka[plan.name])
            group, described = inspected[plan.name], in_kafka[plan.name]
            disturbs = isinstance(described, OffsetMgrError) or any(
                c.writes and (c.after or described.may_consume(c.partition.topic)) for c in plan.changes
            )
            if isinstance(group, OffsetMgrError):
                problem = problem or group
            elif problem is None and disturbs:
                checks.found[plan.name] = group
            changes = tuple(_within_log(change, logs.get(change.partition)) for change in plan.changes)
            if isinstance(group, RunningGroup) and group.consumer_protocol and disturbs:
                changes = tuple(_without_deletion(change) for change in changes)
            yield replace(plan, changes=changes, problem=problem)


def _old_consumers(
    group: str, everywhere: GroupDescription | OffsetMgrError, in_kafka: GroupDescription | OffsetMgrError
) -> OffsetMgrError | None:
    if isinstance(everywhere, OffsetMgrError):
        return everywhere
    if isinstance(in_kafka, OffsetMgrError):
        return in_kafka
    known = {member.member_id for member in in_kafka.members}
    # The members in ZooKeeper have no client id. A member in Kafka may have joined between the two descriptions.
    old = [str(m) for m in everywhere.members if m.member_id not in known and not m.client_id]
    if not old:
        return None
    why = f"has consumers that are registered in ZooKeeper ({', '.join(old[:5])}); they commit before they release"
    return GroupActive(
        f"group {group}", why, Advice("stop these consumers, then edit without {running}"), members=tuple(old)
    )


def _within_log(change: PlannedChange, log: LogRange | OffsetMgrError | None) -> PlannedChange:
    if change.problem is not None or change.after is None or log is None:
        return change
    if isinstance(log, OffsetMgrError):
        return change._replace(problem=log, writes=False)
    if log.start <= change.after.offset <= log.end:
        return change
    why = f"{change.after.offset} is outside the log ({log.start} to {log.end}), so auto.offset.reset would decide"
    hint = "offsets reset clamps offsets to the log"
    return change._replace(problem=OffsetOutOfRange(str(change.partition), why, hint), writes=False)


def _without_deletion(change: PlannedChange) -> PlannedChange:
    if not change.writes or change.after is not None:
        return change
    why = "the coordinator deletes no offsets of topics to which a group of the consumer protocol subscribes"
    error = UnsupportedOperation(
        f"deletion of {change.partition}", why, Advice("stop its consumers, then edit without {running}")
    )
    return change._replace(problem=error, writes=False)


class _RunningImages(BeforeImageFile):
    """A file of before-images that are taken while the members cannot commit. See `RunningEditListener`."""

    def __init__(self, image: BeforeImageFile, plan: EditPlan, on_step: Callable[[str], None]) -> None:
        super().__init__(image.path, image.header, image.on_durable)
        self._plan = plan
        self._taken: dict[str, Mapping[TopicPartition, Offset]] = {}
        self.on_step = on_step

    def intend(self, batch: Iterable[GroupEditPlan]) -> None:  # noqa: ARG002
        """Creates the file without before-images."""
        super().intend(())

    def on_before(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Adds the before-images of the group to the file: the offsets at which its members were stopped."""
        self._taken[group] = offsets
        self.rewrite(
            replace(plan, changes=tuple(c._replace(before=taken.get(c.partition, c.before)) for c in plan.changes))
            for plan in self._plan
            if (taken := self._taken.get(plan.name)) is not None
        )


def execute_running(
    store: OffsetStore, plan: EditPlan, path: Path, on_durable: Callable[[Path], None], options: RunningEdit
) -> SavedEdit:
    """Works like `start_edit`, for groups whose consumers run. The file is empty at first. Before the write of a group,
    it receives the offsets at which the members of the group were stopped. So the undo of a killed edit does not move
    the groups that the edit had not reached."""
    image = _RunningImages(image_file(path, store, plan, on_durable), plan, options.on_step)
    edit_running, wait_s, conditional = require_running_store(store).edit_running, options.wait_s, options.conditional
    edit = partial(edit_running, listener=image, wait_s=wait_s, conditional=conditional)
    return SavedEdit((image,), execute(edit, [plan], image))


def notice(groups: Mapping[str, RunningGroup], wait_s: float) -> list[str]:
    """Returns the lines of the prompt that describe the effect on the applications of these groups. ``wait_s`` is the
    time in seconds for which an edit waits until the members of a group are back."""
    lines = [
        "the consumers keep running, and their applications notice this:",
        "  - one commit fails, and the rebalance listener receives onPartitionsLost",
    ]
    for consumer_protocol in (False, True):
        chosen = {
            name: group
            for name, group in groups.items()
            if group.members and group.consumer_protocol == consumer_protocol
        }
        if not chosen:
            continue
        heartbeat_s = max(group.heartbeat_s for group in chosen.values())
        first = next(iter(chosen))
        which = f"group {first}" if len(chosen) == 1 else f"{first} and {count_of(len(chosen) - 1, 'other group')}"
        lines.append(f"  - {which}: {_pause(heartbeat_s, consumer_protocol=consumer_protocol)}")
    return [
        *lines,
        f"  - while a consumer is processing records, the other consumers wait for its next poll: up to {wait_s:g} s",
        "  - if a consumer overwrites the new offsets, the edit and its pause are repeated, at most twice",
        "  - the other partitions repeat the records that were processed but not committed",
        "  - transactions with the metadata of the group abort; transactions without it may overwrite the edit",
    ]


def _pause(heartbeat_s: float, *, consumer_protocol: bool) -> str:
    """Describes the pause. The consumers notice their removal with a heartbeat. In the consumer protocol they need up
    to two further heartbeats until they have the partitions."""
    if consumer_protocol:
        longest = f"up to {3 * heartbeat_s + 3:g} s"
        setting = f"the group's heartbeat interval is {heartbeat_s:g} s"
        return f"all partitions pause for about {heartbeat_s + 1:g} s, {longest} ({setting})"
    setting = f"with a heartbeat.interval.ms of {heartbeat_s:g} s, the default"
    return (
        f"the edited partitions pause for about {heartbeat_s + 2:g} s, the others for up to {heartbeat_s + 1:g} s"
        f" ({setting})"
    )
