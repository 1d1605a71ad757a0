"""`Managers`: the status of the running manager processes and the contents of their shards, for synchronous callers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.batches import by_key
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import (
    NotAuthorized,
    NotCoordinator,
    OffsetMgrError,
    ServerError,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.plurals import count_of, runs_of_numbers
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import BrokerConnection, Security, remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.frames import Address, EncodedRequest

# Constants of the manager API, for its client and its server.

INSPECT: Final = 30_001
"""The API key. Kafka numbers its API keys from 0, so this number does not collide with a key of Kafka."""

VERSION: Final = 0

FIRST_MANAGER_ID: Final = 1_000_000_000
"""The minimum node id of managers. Brokers have lower ids."""

MAX_DUMP_ROWS: Final = 5_000
"""The maximum number of rows in one response to a dump request."""


# Requests the status of offset managers, through an API that only offsetmgr defines. Its requests and responses
# contain JSON. The requests use the same port, connection and login as Kafka's requests, so `manager status` needs no
# second address. Only managers announce the API in ApiVersions, so the client never sends a request of this API to a
# broker.


async def managers(client: Client, deadline: float) -> list[tuple[int, Address]]:
    """Returns the node id and address of every manager that the first responding manager knows.

    Raises `UnsupportedOperation` if the first server that responds is not a manager. Also raises the errors of
    `Client.ask_any`.
    """

    async def ask(connection: BrokerConnection, until: float) -> dict[int, Address]:
        _check(connection)
        return requests.broker_addresses(await connection.call(requests.metadata(), remaining(until)))

    found = await client.ask_any(ask, deadline)
    return sorted((node_id, address) for node_id, address in found.items() if node_id >= FIRST_MANAGER_ID)


async def inspect(client: Client, address: Address, question: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Sends ``question`` to one manager and returns its response. Raises `OffsetMgrError`."""
    connection = await client.node(address).connection(deadline)
    _check(connection)
    request = EncodedRequest(INSPECT, VERSION, json.dumps(question).encode())
    answer = await connection.exchange(request, remaining(deadline))
    try:
        found = json.loads(answer[4:])  # after the correlation id
    except ValueError:
        raise ServerError(f"manager {address}", "its answer is not JSON") from None
    if not isinstance(found, dict):
        raise ServerError(f"manager {address}", "its answer is not an object")
    if "error" in found:
        kind = NotAuthorized if found.get("kind") == "not-authorized" else ServerError
        raise kind(f"manager {address}", str(found["error"]))
    return found


def _check(connection: BrokerConnection) -> None:
    if INSPECT not in connection.versions:
        raise UnsupportedOperation(
            f"{connection.address}",
            "it is not an offset manager",
            "specify the address on which `manager serve` listens",
        )


class ManagerReport(NamedTuple):
    """The status of one manager. If the manager did not report its status, ``status`` is None and ``error`` is set."""

    node_id: int
    address: Address
    status: Mapping[str, Any] | None
    error: OffsetMgrError | None = None


class Managers(Closeable):
    """The manager processes of a cluster. The first manager that responds provides the list of managers. The
    constructor performs no I/O."""

    def __init__(self, bootstrap: str, connection: ConnectionConfig | None = None) -> None:
        connection = connection or ConnectionConfig()
        # The functions `managers` and `inspect` check that a server is a manager, so the client need not check API
        # versions.
        self._thread = ClientThread(Client(bootstrap, Security.of(connection.kafka)), connection.timeout_ms / 1000)

    def reports(self) -> list[ManagerReport]:
        """Returns the status of every manager. The requests run in parallel. Raises the errors of
        `offsetmgr.kafka.client.managers.managers`."""
        found = self._thread.run(lambda deadline: managers(self._thread.client, deadline))

        async def report(node_id: int, address: Address, deadline: float) -> ManagerReport:
            try:
                status = await inspect(self._thread.client, address, {"what": "status"}, deadline)
                return ManagerReport(node_id, address, status)
            except OffsetMgrError as error:
                return ManagerReport(node_id, address, None, error)

        return self._thread.run(lambda deadline: asyncio.gather(*(report(*one, deadline) for one in found)))

    def owned_shard(self, partition: int) -> Mapping[str, Any] | None:
        """Returns the status of a shard from the manager that owns the shard; None if no manager owns the shard."""
        return next((shard for _, shard in _owners(self.reports(), partition)), None)

    def dump(self, partition: int) -> Iterator[Mapping[str, Any]]:
        """Requests the committed offsets of a shard from the owner of the shard. Yields the offsets, sorted by group,
        topic and partition.

        Raises `NotCoordinator` if no manager owns the shard, and `UsageError` if the shard does not exist.
        """
        reports = self.reports()
        owner = next((report.address for report, _ in _owners(reports, partition)), None)
        if not any(r.status is None or r.status["shards"] for r in reports):
            raise NotCoordinator(
                f"shard {partition}",
                "no manager at this address has shards",
                "read the store behind the listener instead",
            )
        known = {shard["partition"] for _, shard in _reported_shards(reports)}
        if known and partition not in known:
            raise UsageError(f"shard {partition}", "no shard has this number", f"shards are 0 to {max(known)}")
        if owner is None:
            raise NotCoordinator(f"shard {partition}", "no manager owns it at this moment", "see `manager status`")
        after: list[Any] | None = None
        while True:
            request = {"what": "dump", "partition": partition, "after": after, "most": MAX_DUMP_ROWS}
            rows = self._thread.run(partial(inspect, self._thread.client, owner, request))["rows"]
            yield from rows
            if len(rows) < MAX_DUMP_ROWS:
                return
            after = [rows[-1]["group"], rows[-1]["topic"], rows[-1]["partition"]]

    def close(self) -> None:
        self._thread.close()


_ReportedShard: TypeAlias = tuple[ManagerReport, Mapping[str, Any]]


def _reported_shards(reports: Sequence[ManagerReport]) -> Iterator[_ReportedShard]:
    return ((report, shard) for report in reports for shard in (report.status or {}).get("shards", ()))


def _owners(reports: Sequence[ManagerReport], partition: int) -> Iterator[_ReportedShard]:
    shards = _reported_shards(reports)
    return (one for one in shards if one[1]["partition"] == partition and one[1]["role"] == "owner")


# The status of the offset managers, computed from what each of them reports, and its alarms. Pure.


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
    shards, known = list(_shards(reports)), [(report.address, report.status) for report in reports]
    others = {str(at): found["store"] for at, found in known if found is not None and not _stores_in_topic(found)}
    alarms = [*_manager_alarms(reports), *_shard_alarms(reports, shards)]
    return ManagersStatus([_manager(report) for report in reports], shards, others, alarms)


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
    found = by_key((one[1]["partition"], one) for one in _reported_shards(reports))
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
                **{name: shard[name] for name in ("state", "since", "position", "offsets", "groups")},
                owner=str(report.address),
                loaded=f"{100 * shard['load_read'] // shard['load_total']}%" if loading else None,
                unreadable=unreadable_records(shard),
                error=shard["last_error"] or None,
            )


def _manager_alarms(reports: Sequence[ManagerReport]) -> Iterator[str]:
    for report in reports:
        if report.error is not None:
            yield f"manager {report.address}: {str(report.error).removeprefix(f'manager {report.address}: ')}"
        if report.status is not None and not report.status["lease"]:
            yield f"manager {report.address}: it cannot prove that it is in the managers' group, so it serves nothing"
        for text in (report.status or {}).get("alarms", ()):
            yield f"manager {report.address}: {text}"


def _shard_alarms(reports: Sequence[ManagerReport], shards: Sequence[ShardOwner]) -> Iterator[str]:
    if not shards and any(report.status is not None and _stores_in_topic(report.status) for report in reports):
        yield "no manager has any shard"
    if unowned := [one.partition for one in shards if one.owner is None]:
        yield f"{len(unowned)} shards have no owner: {runs_of_numbers(unowned)}"
    if unserved := [one.partition for one in shards if one.owner is not None and one.state != "ACTIVE"]:
        yield f"{len(unserved)} shards are not served yet: {runs_of_numbers(unserved)}"
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
