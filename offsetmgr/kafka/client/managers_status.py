"""The status of the offset managers, computed from what each of them reports, and its alarms. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offsetmgr.core.batches import by_key
from offsetmgr.core.plurals import count_of
from offsetmgr.kafka.client.managers import ManagerReport


class ManagerState(NamedTuple):
    """The state of one manager. If the manager did not report it, ``error`` is set and the rest is None. ``lease`` is
    "valid" or "none", ``shard_groups`` the numbers of the shard groups that it owns, and ``since`` the time (ms since
    1970) of its start. ``active``, ``standby`` and ``loading`` count shards."""

    node_id: int
    address: str
    lease: str | None = None
    shard_groups: str | None = None
    active: int | None = None
    standby: int | None = None
    loading: int | None = None
    offsets: int | None = None
    since: int | None = None
    error: str | None = None


class ShardOwner(NamedTuple):
    """A shard, as its owner reports it. If no manager owns the shard, ``owner`` and the values from the owner are None.
    ``since`` is the time (ms since 1970) at which it entered its state, ``loaded`` the progress of a load.
    ``standby_lag`` is the largest lag of the standbys; None if there is none, or if a lag is unknown. ``unreadable`` is
    the number of records that the owner cannot decode."""

    partition: int
    shard_group: int
    standbys: int
    standby_lag: int | None
    owner: str | None = None
    state: str | None = None
    since: int | None = None
    position: int | None = None
    offsets: int | None = None
    groups: int | None = None
    loaded: str | None = None
    unreadable: int | None = None
    error: str | None = None


class ManagersStatus(NamedTuple):
    """The state of all managers. While a shard moves, two managers may report it as their own; then it is in ``shards``
    twice. ``other_stores`` maps the addresses of managers that serve another store than the topic to that store.
    ``alarms`` has a sentence for each problem that needs the attention of an operator."""

    managers: Sequence[ManagerState]
    shards: Sequence[ShardOwner]
    other_stores: Mapping[str, str]
    alarms: Sequence[str]


class DumpedOffset(NamedTuple):
    """An offset in the memory of a shard's owner. Times are in milliseconds since 1970."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp: int
    expire_timestamp: int | None


def managers_status(reports: Sequence[ManagerReport]) -> ManagersStatus:
    """Returns the state of all managers."""
    shards = list(_shards(reports))
    return ManagersStatus(
        [_manager(report) for report in reports],
        shards,
        {
            str(report.address): report.status["store"]
            for report in reports
            if report.status is not None and not _stores_in_topic(report.status)
        },
        [*_manager_alarms(reports), *_shard_alarms(reports, shards)],
    )


def _manager(report: ManagerReport) -> ManagerState:
    node_id, address, state, error = report
    if state is None:
        return ManagerState(node_id, str(address), error=str(error))
    shards = state["shards"]
    owned = [s for s in shards if s["role"] == "owner"]
    return ManagerState(
        node_id,
        str(address),
        "valid" if state["lease"] else "none",
        ",".join(map(str, sorted({s["shard_group"] for s in owned}))) or None,
        sum(s["state"] == "ACTIVE" for s in owned),
        sum(s["role"] == "standby" for s in shards),
        sum(s["state"].upper() == "LOADING" for s in shards),
        sum(s["offsets"] for s in shards),
        state["started"],
    )


def _shards(reports: Sequence[ManagerReport]) -> Iterator[ShardOwner]:
    shards = ((report, shard) for report in reports for shard in (report.status or {}).get("shards", ()))
    found = by_key((shard["partition"], (report, shard)) for report, shard in shards)
    for partition, seen in sorted(found.items()):
        lags = [shard["lag"] for _, shard in seen if shard["role"] == "standby"]
        lag = None if not lags or None in lags else max(lags)
        base = ShardOwner(partition, seen[0][1]["shard_group"], len(lags), lag)
        owners = [(report, shard) for report, shard in seen if shard["role"] == "owner"]
        if not owners:
            yield base
        for report, shard in owners:
            loading = shard["state"] == "LOADING" and shard["load_total"]
            yield base._replace(
                owner=str(report.address),
                state=shard["state"],
                since=shard["since"],
                position=shard["position"],
                offsets=shard["offsets"],
                groups=shard["groups"],
                loaded=f"{100 * shard['load_read'] // shard['load_total']}%" if loading else None,
                unreadable=unreadable_records(shard),
                error=shard["last_error"] or None,
            )


def _manager_alarms(reports: Sequence[ManagerReport]) -> Iterator[str]:
    for report in reports:
        if report.error is not None:
            yield f"manager {report.address}: {str(report.error).removeprefix(f'manager {report.address}: ')}"
        if report.status is not None and not report.status["lease"]:
            yield f"manager {report.address}: it cannot reach the managers' group, so it serves no requests"
        for text in (report.status or {}).get("alarms", ()):
            yield f"manager {report.address}: {text}"


def _shard_alarms(reports: Sequence[ManagerReport], shards: Sequence[ShardOwner]) -> Iterator[str]:
    if not shards and any(report.status is not None and _stores_in_topic(report.status) for report in reports):
        yield "no manager has any shard"
    if unowned := [one.partition for one in shards if one.owner is None]:
        yield f"{len(unowned)} shards have no owner: {_numbers(unowned)}"
    if unserved := [one.partition for one in shards if one.owner is not None and one.state != "ACTIVE"]:
        yield f"{len(unserved)} shards are not served yet: {_numbers(unserved)}"
    for one in shards:
        if one.unreadable:
            yield (
                f"shard {one.partition}: its owner cannot read {count_of(one.unreadable, 'record')}, so groups may"
                " look as if they had committed nothing; its log names them"
            )


def unreadable_records(shard: Mapping[str, Any]) -> int:
    """Returns the number of a shard's records that the owner cannot decode: records with unreadable values, and records
    whose keys have an unknown version."""
    return int(shard["unreadable"]) + int(shard.get("unknown_keys", 0))  # older managers do not report unknown keys


def _stores_in_topic(state: Mapping[str, Any]) -> bool:
    """Whether the manager stores offsets in the shards of a topic. Otherwise it serves another store."""
    return str(state["store"]).startswith("topic ")


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown}, ..." if len(numbers) > 10 else shown
