"""Describes groups: their state and members, in addition to offsets and lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import batched, by_key
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import GroupActive, OffsetMgrError, value_of
from offsetmgr.core.model import (
    PERSISTENT_MEMBERS,
    PERSISTENT_MEMBERS_HINT,
    GroupDescription,
    GroupMember,
)
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, OtherGroupKind
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.lag import PARTITION, LagRow, lag, uncommitted, with_kinds
from offsetmgr.groups.last_writes import LastWrites
from offsetmgr.groups.scan import not_known

if TYPE_CHECKING:
    from offsetmgr.groups.edit_plan import GroupEditPlan
    from offsetmgr.kafka.cluster import KafkaCluster
    from offsetmgr.zookeeper.client.session import ZookeeperSession


GROUPS_AT_ONCE: Final = 500
"""The number of groups whose members are requested together."""

Descriptions: TypeAlias = Mapping[str, GroupDescription | OffsetMgrError]
DescribeGroups: TypeAlias = Callable[[Iterable[str]], Descriptions]
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
    cluster: KafkaCluster | None,
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
    descriptions: Descriptions = {}
    for found in with_kinds(lag(store, cluster, names, topics, others=others, writes=writes), cluster, topics):
        if found.name not in descriptions:
            descriptions = describe_groups(list(islice(remaining, GROUPS_AT_ONCE)))
        description = descriptions[found.name]
        if isinstance(description, OffsetMgrError) or found.error is not None:
            error = found.error if isinstance(description, GroupDescription) else description
            yield DescribedGroup(found.name, GroupDescription(found.name, "UNKNOWN"), [], error)
            continue
        if description.state == "DEAD" and found.rows:
            description = GroupDescription(found.name, "EMPTY", coordinator=description.coordinator)
        holders = by_key((tp, member) for member in description.members for tp in member.partitions)
        # Several members of a share group can read the same partition; then none of them is its owner.
        shared = description.protocol_type == "share"
        owners = {tp: several[-1] for tp, several in holders.items() if not shared or len(several) == 1}
        there = {row.partition for row in found.rows}
        unowned = [tp for tp in owners if topics.matches(tp) and tp not in there]
        logs = cluster.log_ranges(unowned) if cluster is not None and unowned else {}
        rows = [*found.rows] + [uncommitted(found.name, tp, logs.get(tp)) for tp in unowned]
        # Brokers of Kafka 0.8.2 do not track group members, so their responses do not show whether a group exists.
        unseen = description.state == "DEAD" or not (description.membership or description.members)
        if unseen and not rows and (missing := not_known([store, *others], [found.name])) is not None:
            yield DescribedGroup(found.name, description, [], missing)
            continue
        rows.sort(key=PARTITION)
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
        descriptions = describe_groups([p.name for p in batch])
        for plan in batch:
            found = descriptions[plan.name]
            if isinstance(found, OffsetMgrError):
                yield replace(plan, problem=plan.problem or found)
            elif found.members:
                yield replace(plan, problem=plan.problem or _active(f"group {plan.name}", found))
            else:
                yield plan


def refused_kind(found: GroupDescription | OffsetMgrError | None, operation: str) -> OtherGroupKind | None:
    """Returns the error of a group of another kind with the command of Kafka's that does ``operation``; None for other
    groups and errors."""
    if not isinstance(found, OtherGroupKind):
        return None
    from offsetmgr.kafka.client.groups import refusal

    return refusal(found.group, found.type, found.server, operation)


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


# The sources of live members: group coordinators, ZooKeeper's registry of old consumers, and combinations of both.
# With all but its last argument, each function is a `DescribeGroups` (a *describer*).


def registered_members(session: ZookeeperSession, groups: Iterable[str]) -> Descriptions:
    """Describes groups of old consumers: the members of a group in ``/consumers/G/ids``, and the partitions that the
    members own in ``/consumers/G/owners``.

    ZooKeeper stores no group state. A group with live members is reported as STABLE, a group whose members may have
    stopped as UNKNOWN (see `registry`), a group without members as EMPTY, and a group without a znode as DEAD.
    """
    from offsetmgr.zookeeper.groups.registry import members_many, owners_many
    from offsetmgr.zookeeper.nodes import paths

    names, impossible = paths.possible_groups(groups)  # ZooKeeper has no members of an impossible group
    out: dict[str, GroupDescription | OffsetMgrError] = {name: GroupDescription(name, "DEAD") for name, _ in impossible}
    owned = {found.group: found for found in owners_many(session, names)}
    listed = dict(zip(names, session.children_many([paths.group(name) for name in names]), strict=True))
    for found in members_many(session, names):
        owners = owned[found.group]
        if (error := found.error or owners.error) is not None:
            out[found.group] = error
            continue
        holds = by_key((owner.member_id, tp) for tp, owner in owners.owners.items())
        members = tuple(
            GroupMember(
                m.member_id,
                host=m.host or "",
                partitions=tuple(sorted(holds.get(m.member_id, ()))),
                persistent=not found.live,
            )
            for m in found.members
        )
        empty = "DEAD" if listed[found.group] is None else "EMPTY"
        state = "STABLE" if found.live else "UNKNOWN" if members else empty
        out[found.group] = GroupDescription(found.group, state, "zookeeper", members=members)
    return out


def merged_members(first: DescribeGroups, second: DescribeGroups, groups: Iterable[str]) -> Descriptions:
    """Describes groups with the members from both sources. The state of a group comes from the first source, unless the
    group is dead in the first source or has members only in the second source."""
    names = list(groups)
    here, there = first(names), second(names)
    return {name: _merge(here[name], there[name]) for name in names}


def first_members(first: DescribeGroups, second: DescribeGroups, groups: Iterable[str]) -> Descriptions:
    """Describes groups by the first source. A group without members there is described with the members from the second
    source, if the second source has any."""
    here = dict(first(groups))
    idle = [name for name, found in here.items() if not isinstance(found, OffsetMgrError) and not found.members]
    for name, found in second(idle).items():
        if not isinstance(found, OffsetMgrError):
            here[name] = _merge(here[name], found)
    return here


def with_registered_members(
    coordinator: DescribeGroups, cluster: KafkaCluster, session: ZookeeperSession, groups: Iterable[str]
) -> Descriptions:
    """Describes groups with the members that the coordinator reports and the old consumers that are registered in
    ZooKeeper.

    With dual commit, old consumers commit to the group in Kafka, although they are not members of the Kafka group. The
    members in ZooKeeper are ignored if ZooKeeper belongs to another cluster than ``cluster``.
    """
    names = list(groups)
    found = merged_members(coordinator, partial(registered_members, session), names)
    unclear = any(isinstance(one, OffsetMgrError) or one.members for one in found.values())
    return coordinator(names) if unclear and _is_other_cluster(session, cluster) else found


def _is_other_cluster(session: ZookeeperSession, cluster: KafkaCluster) -> bool:
    """Whether ZooKeeper is known to belong to another Kafka cluster than ``cluster``. Returns False if ZooKeeper or the
    brokers report no cluster id, as is the case before Kafka 0.10.1."""
    from offsetmgr.zookeeper.nodes import paths
    from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id

    node = session.get(paths.CLUSTER_ID)
    here = cluster.cluster_id()
    return node is not None and here is not None and parse_cluster_id(paths.CLUSTER_ID, node.data) != here


def _merge(
    first: GroupDescription | OffsetMgrError, second: GroupDescription | OffsetMgrError
) -> GroupDescription | OffsetMgrError:
    if isinstance(first, OffsetMgrError):
        return first
    if isinstance(second, OffsetMgrError):
        return second
    unseen = first.idle or not first.membership
    state = second.state if unseen and (second.members or first.state == "DEAD") else first.state
    return replace(first, state=state, members=first.members + second.members)


# Waits until groups have no members, and until the locks that a killed run of offsetmgr left behind have expired.

POLL_S: Final = 1.0
"""Seconds between two requests for the members of the groups."""


def wait_until_empty(
    describe_groups: DescribeGroups,
    groups: Iterable[str],
    limit_s: float,
    clock: Clock,
    on_wait: Callable[[dict[str, int], float], None],
) -> None:
    """Returns once no group has members. ``on_wait`` receives the number of members of each group that has members,
    and the remaining seconds, before each pause.

    Does not wait for a group that cannot be described: the edit refuses it. Raises `GroupActive` after ``limit_s``
    seconds.
    """
    ends = clock.monotonic() + limit_s
    retries = BlockingRetries(ends, Backoff.fixed(POLL_S), clock)
    waiting = list(groups)
    while waiting:
        found = describe_groups(waiting)
        known = ((group, one) for group in waiting if not isinstance(one := found[group], OffsetMgrError))
        members = {group: len(one.members) for group, one in known if one.members}
        waiting = list(members)
        if not waiting:
            return
        on_wait(members, ends - clock.monotonic())
        if not retries.pause():
            first, number = next(iter(members.items()))
            why = f"still has {count_of(number, 'member')} after {limit_s:g} s"
            hint = Advice("stop its consumers, or wait longer with {wait_empty_s:wait_empty} SECONDS")
            raise GroupActive(f"group {first}", why, hint)


# Waits for group locks that a killed run of offsetmgr left behind. The coordinator removes the lock of a killed run
# after the session timeout of the lock. If a lock still exists after that time, a running offsetmgr process holds the
# lock, and the group counts as active.

_LOCK_POLL_S: Final = 0.5
"""Seconds between two requests for the state of the groups."""

OnWait: TypeAlias = Callable[[list[str], float], None]
"""The function is called before each pause. Its arguments are the locked groups and the maximum remaining wait in
seconds."""


def without_leftover_locks(
    describe_groups: DescribeGroups, clock: Clock, on_wait: OnWait, groups: Iterable[str]
) -> Descriptions:
    """Describes groups like ``describe_groups``, but waits while groups are locked by other runs of offsetmgr. For each
    group, the wait ends at the latest when the lock of a killed process would have expired
    (`GroupDescription.lock_ends_s`)."""
    found = dict(describe_groups(list(groups)))
    began = clock.monotonic()
    wait_s = {group: seconds for group, one in found.items() if (seconds := _lock_ends_s(one))}
    while wait_s:
        waited = clock.monotonic() - began
        on_wait(sorted(wait_s), max(wait_s.values()) - waited)
        clock.sleep(_LOCK_POLL_S)
        found.update(describe_groups(list(wait_s)))
        waited = clock.monotonic() - began
        wait_s = {g: s for g, s in wait_s.items() if _lock_ends_s(found[g]) and waited < s}
    return found


def _lock_ends_s(found: GroupDescription | OffsetMgrError) -> float:
    return found.lock_ends_s if isinstance(found, GroupDescription) else 0.0


class LockWaitingCluster:
    """A `KafkaCluster` whose ``describe_groups`` waits as `without_leftover_locks` does."""

    def __init__(self, cluster: KafkaCluster, clock: Clock, on_wait: OnWait) -> None:
        self._cluster = cluster
        self.describe_groups = partial(without_leftover_locks, cluster.describe_groups, clock, on_wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)
