"""Describes groups: their state and members, in addition to offsets and lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import GroupActive, GroupNotFound, OffsetMgrError, value_of
from offsetmgr.core.model import (
    PERSISTENT_MEMBERS,
    PERSISTENT_MEMBERS_HINT,
    GroupDescription,
    GroupMember,
    TopicPartition,
)
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.lag import LagRow, lag, uncommitted
from offsetmgr.groups.last_writes import LastWrites
from offsetmgr.groups.scan import require_known_somewhere
from offsetmgr.kafka.cluster.base import Cluster

if TYPE_CHECKING:
    from offsetmgr.groups.edit_plan import GroupEditPlan

GROUPS_AT_ONCE: Final = 500
"""The number of groups whose members are requested together."""

DescribeGroups: TypeAlias = Callable[[Iterable[str]], Mapping[str, GroupDescription | OffsetMgrError]]
"""Returns the state and the live members of groups, from the group coordinators of a Kafka cluster or from the consumer
registry in ZooKeeper. An unknown group has the state DEAD."""


class DescribedPartition(NamedTuple):
    """One partition of a described group, and the member to which it is assigned."""

    row: LagRow
    owner: GroupMember | None


class DescribedGroup(NamedTuple):
    """One group: its ``description``, and the ``partitions`` that have a commit or an owner, sorted.

    If the group could not be described, ``error`` is the reason, and ``partitions`` is empty. ``read`` is what the
    store returned.
    """

    name: str
    description: GroupDescription
    partitions: list[DescribedPartition]
    error: OffsetMgrError | None = None
    read: GroupOffsets | None = None


def describe(
    store: OffsetStore,
    cluster: Cluster | None,
    describe_groups: DescribeGroups,
    groups: Iterable[str],
    topics: TopicSelection = ALL_TOPICS,
    *,
    others: Sequence[OffsetStore] = (),
    writes: Callable[..., LastWrites] = LastWrites,
) -> Iterator[DescribedGroup]:
    """Yields the described groups in the order of ``groups``. Without a ``cluster``, the log ranges and the lag are
    unknown. ``others`` and ``writes`` have the same meaning as in `offsetmgr.groups.lag.lag`.

    If neither a store nor ``describe_groups`` knows a group, the group's ``error`` is `GroupNotFound`.
    """
    names = list(dict.fromkeys(groups))
    remaining = iter(names)
    descriptions: Mapping[str, GroupDescription | OffsetMgrError] = {}
    for found in lag(store, cluster, names, topics, others=others, writes=writes):
        if found.name not in descriptions:
            descriptions = describe_groups(list(islice(remaining, GROUPS_AT_ONCE)))
        description = descriptions[found.name]
        if isinstance(description, OffsetMgrError) or found.error is not None:
            error = found.error if isinstance(description, GroupDescription) else description
            yield DescribedGroup(found.name, GroupDescription(found.name, "UNKNOWN"), [], error)
            continue
        if description.state == "DEAD" and found.rows:
            description = GroupDescription(found.name, "EMPTY", coordinator=description.coordinator)
        owners = {tp: member for member in description.members for tp in member.partitions}
        unowned = [tp for tp in owners if topics.matches(tp) and tp not in {row.partition for row in found.rows}]
        rows = found.rows + _uncommitted(found.name, cluster, unowned)
        # Brokers of Kafka 0.8.2 do not track group members, so their responses do not show whether a group exists.
        unseen = description.state == "DEAD" or not (description.membership or description.members)
        if unseen and not rows:
            try:
                require_known_somewhere([store, *others], found.name)
            except GroupNotFound as missing:
                yield DescribedGroup(found.name, description, [], missing)
                continue
        rows.sort(key=_partition)
        partitions = [DescribedPartition(row, owners.get(row.partition)) for row in rows]
        yield DescribedGroup(found.name, description, partitions, read=found.read)


def require_idle(describe_groups: DescribeGroups, groups: Iterable[str], what: str) -> None:
    """Raises `GroupActive` if a group has members. If ``describe_groups`` returned an error for a group, raises this
    error."""
    for group, description in describe_groups(list(groups)).items():
        if (found := value_of(description)).members:
            raise _active(f"{what} of group {group!r}", found)


def reject_active(describe_groups: DescribeGroups, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
    """Yields the plans. Sets the ``problem`` of a plan if the group has members or could not be described.

    If a group has members, the problem is `GroupActive`, because the next commit of a member would overwrite the edited
    offsets. If ``describe_groups`` returned an error for the group, the problem is this error.
    """
    for batch in batched(plans, GROUPS_AT_ONCE):
        descriptions = describe_groups([p.group for p in batch])
        for plan in batch:
            found = descriptions[plan.group]
            if isinstance(found, OffsetMgrError):
                yield replace(plan, problem=plan.problem or found)
            elif found.members:
                yield replace(plan, problem=plan.problem or _active(f"group {plan.group}", found))
            else:
                yield plan


def _active(what: str, found: GroupDescription) -> GroupActive:
    members = tuple(str(member) for member in found.members)
    why = f"{found.state} with {count_of(len(members), 'member')}: {list_of(members, 5)}"
    hint = "stop its consumers first"
    if found.lock_ends_s:
        why = f"another run of offsetmgr holds its lock: {members[0]}"
    elif all(member.persistent for member in found.members):
        registered = count_of(len(members), "persistent registration")
        why, hint = f"{PERSISTENT_MEMBERS.format(registered)}: {list_of(members, 5)}", PERSISTENT_MEMBERS_HINT
    return GroupActive(what, why, hint, members=members, lock_ends_s=found.lock_ends_s)


def _uncommitted(group: str, cluster: Cluster | None, partitions: list[TopicPartition]) -> list[LagRow]:
    """Returns the rows of partitions that have an owner but no commit. The lag of these partitions is unknown."""
    logs = cluster.log_ranges(partitions) if cluster is not None and partitions else {}
    return [uncommitted(group, tp, logs.get(tp)) for tp in partitions]


def _partition(row: LagRow) -> TopicPartition:
    return row.partition
