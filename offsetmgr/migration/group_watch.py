"""Watches the commits of many groups with bulk reads, for `group_locator`. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.phase import PhaseEvidence
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.location import seen_phase
from offsetmgr.migration.observation import Observation, PartitionOwner
from offsetmgr.migration.ownership_history import GroupHistory
from offsetmgr.stores.dual_calls import scan_store
from offsetmgr.stores.dual_policy import outcome_of
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.ownership import owners_many

_NO_OWNER: Final = PartitionOwner("no registered owner", 0)
"""The owner of a partition that no old consumer owns, so that commits of other clients are seen too."""

_Owners = Mapping[str, Mapping[TopicPartition, PartitionOwner] | OffsetMgrError]


def watch_groups(
    zookeeper: OffsetStore,
    session: ZookeeperSession,
    kafka: OffsetStore,
    names: list[str],
    window: ObservationWindow,
    clock: Clock,
) -> dict[str, PhaseEvidence]:
    """Reads the groups repeatedly until commits have proved the phase of each, or until the window is over. Returns the
    proved phases."""
    histories = {name: GroupHistory() for name in names}
    deadline = clock.monotonic() + window.duration_s
    while True:
        _observe(zookeeper, session, kafka, histories, clock)
        proved = {name: found for name, history in histories.items() if (found := seen_phase(history)) is not None}
        if len(proved) == len(names) or clock.monotonic() >= deadline:
            return proved
        window.waiting(deadline - clock.monotonic())
        clock.sleep(window.poll_s)


def _observe(
    zookeeper: OffsetStore,
    session: ZookeeperSession,
    kafka: OffsetStore,
    histories: Mapping[str, GroupHistory],
    clock: Clock,
) -> None:
    """Adds one observation of each group. The order of the reads is the contract of `observation`."""
    names = list(histories)
    before = _owners(session, names)
    in_zookeeper, in_kafka = scan_tolerantly(zookeeper, names), scan_tolerantly(kafka, names)
    after = _owners(session, names)
    now = clock.now_ms()
    for name, history in histories.items():
        first, last = before.get(name, {}), after.get(name, {})
        here, there = in_zookeeper[name], in_kafka[name]
        every = sorted({*here.offsets, *here.errors, *there.offsets, *there.errors})
        owners: dict[TopicPartition, PartitionOwner] = {}
        if not isinstance(first, OffsetMgrError) and not isinstance(last, OffsetMgrError):
            pairs = ((tp, first.get(tp, _NO_OWNER), last.get(tp, _NO_OWNER)) for tp in every)
            owners = {tp: owner for tp, owner, later in pairs if owner == later}
        history.add(
            Observation(
                group=name,
                at_ms=now,
                members={},
                owners=owners,
                partitions=tuple(every),
                zookeeper={tp: outcome_of(here, tp) for tp in every},
                kafka={tp: outcome_of(there, tp) for tp in every},
                logs={},
            )
        )


def _owners(session: ZookeeperSession, names: list[str]) -> _Owners:
    try:
        found = list(owners_many(session, names))
    except OffsetMgrError as error:
        return dict.fromkeys(names, error)
    owners: dict[str, dict[TopicPartition, PartitionOwner] | OffsetMgrError] = {}
    for one in found:
        if one.error is not None and not isinstance(one.error, UsageError):
            owners[one.group] = one.error
            continue
        named = ((tp, owner.member_id or "an unreadable owner", owner.node.czxid) for tp, owner in one.owners.items())
        owners[one.group] = {tp: PartitionOwner(member, czxid) for tp, member, czxid in named}
    return owners


def scan_tolerantly(store: OffsetStore, names: list[str]) -> Mapping[str, GroupOffsets]:
    """Scans groups. An error of the whole store is the error of each group. A group whose name the store cannot contain
    has no offsets in the store."""
    return {
        name: GroupOffsets(name, {}) if isinstance(one.error, UsageError) else one
        for name, one in scan_store(store, names).items()
    }
