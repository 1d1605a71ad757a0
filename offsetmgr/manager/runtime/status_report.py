"""Computes a `ShardStatus` for each shard, and their totals for the metrics endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from offsetmgr.manager.lifecycle import ShardState
from offsetmgr.manager.runtime.shard_group import ShardGroup
from offsetmgr.manager.runtime.standby import StandbyReplica
from offsetmgr.manager.runtime.status import Role, ShardStatus


def shard_status(shard_group: ShardGroup, partition: int, standby: StandbyReplica | None) -> ShardStatus:
    """Returns the status of a shard. The call is safe while a loading thread owns the shard, because the function reads
    only single numbers."""
    shard = shard_group.shards[partition]
    role, state, (load_read, load_total), last_error = _group_status(shard_group, standby)
    serves = shard_group.state is ShardState.ACTIVE
    known_end = None
    if standby is not None and standby.follows(shard_group):  # otherwise the known end is old
        known_end, _ = standby.ends.get(partition, (None, 0.0))
    end = shard.position if serves else known_end
    return ShardStatus(
        partition=partition,
        shard_group=shard_group.number,
        role=role,
        state=state,
        since=shard_group.since,
        position=shard.position,
        end_offset=end,
        lag=None if end is None else max(0, end - shard.position),
        offsets=shard.offset_count,
        groups=shard.group_count,
        load_read=load_read,
        load_total=load_total,
        recovering=shard_group.recovering,
        unreadable=shard.unreadable,
        unknown_keys=shard.unknown_keys,
        last_error=last_error,
    )


def _group_status(shard_group: ShardGroup, standby: StandbyReplica | None) -> tuple[Role, str, tuple[int, int], str]:
    """Returns the values that all shards of a shard group share: role, state, progress of the load, last error."""
    if shard_group.assigned or shard_group.has_writer:
        state = shard_group.state if shard_group.has_writer else ShardState.INITIAL
        return Role.OWNER, state.value, shard_group.load_progress, shard_group.last_error
    if standby is None:
        return Role.NONE, shard_group.state.value, (0, 0), shard_group.last_error
    if standby.loading is shard_group:
        return Role.STANDBY, "loading", standby.load_progress, standby.last_error
    if standby.follows(shard_group):
        return Role.STANDBY, "following", (0, 0), standby.last_error
    return Role.STANDBY, "waiting", (0, 0), shard_group.last_error or standby.last_error


def totals(statuses: Sequence[ShardStatus]) -> dict[str, float]:
    """Returns the totals by name, for `server.metrics`."""
    values: dict[str, float] = {
        "cache_entries": sum(status.offsets for status in statuses),
        "cache_groups": sum(status.groups for status in statuses),
        "unreadable_records": sum(s.unreadable + s.unknown_keys for s in statuses if s.role is Role.OWNER),
    }
    lags = [status.lag for status in statuses if status.role is Role.STANDBY]
    known_lags = [lag for lag in lags if lag is not None]
    if len(known_lags) == len(lags):
        values["standby_lag"] = sum(known_lags)
    for role in Role:
        states = [status.state for status in statuses if status.role is role]
        values |= {
            f'shards{{role="{role.value}",state="{state}"}}': states.count(state) for state in sorted(set(states))
        }
    return values
