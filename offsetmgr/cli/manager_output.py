"""The output of ``manager status``, computed from the reports of all managers: rows and alarms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from offsetmgr.cli.render import Column
from offsetmgr.core.batches import by_key
from offsetmgr.core.plurals import count_of
from offsetmgr.kafka.client.managers import ManagerReport

MANAGERS: Final = (
    Column("node_id", right=True, title="NODE"),
    Column("address"),
    Column("lease"),
    Column("shard_groups", optional=True),
    Column("active", right=True),
    Column("standby", right=True),
    Column("loading", right=True),
    Column("offsets", right=True),
    Column("since", time=True),
    Column("error", optional=True),
)

SHARDS: Final = (
    Column("partition", right=True, title="SHARD"),
    Column("shard_group", right=True),
    Column("owner"),
    Column("state"),
    Column("since", time=True),
    Column("position", right=True),
    Column("offsets", right=True),
    Column("groups", right=True),
    Column("loaded", right=True, optional=True),
    Column("standbys", right=True),
    Column("standby_lag", right=True, title="STANDBY LAG"),
    Column("unreadable", right=True),
    Column("error", optional=True),
)

_UNREADABLE: Final = [column.name for column in SHARDS].index("unreadable")


def manager_rows(reports: Sequence[ManagerReport]) -> Iterator[tuple[Any, ...]]:
    for node_id, address, status, error in reports:
        if status is None:
            yield (node_id, str(address), None, None, None, None, None, None, None, str(error))
            continue
        shards = status["shards"]
        owned = [s for s in shards if s["role"] == "owner"]
        yield (
            node_id,
            str(address),
            "valid" if status["lease"] else "none",
            ",".join(map(str, sorted({s["shard_group"] for s in owned}))) or None,
            sum(s["state"] == "ACTIVE" for s in owned),
            sum(s["role"] == "standby" for s in shards),
            sum(s["state"].upper() == "LOADING" for s in shards),
            sum(s["offsets"] for s in shards),
            status["started"],
            None,
        )


def shard_rows(reports: Sequence[ManagerReport]) -> Iterator[tuple[Any, ...]]:
    """One row per shard: the owner of the shard, and the largest lag of its standbys. A shard that two managers report
    as their own has two rows."""
    shards = ((report, shard) for report in reports for shard in (report.status or {}).get("shards", ()))
    found = by_key((shard["partition"], (report, shard)) for report, shard in shards)
    for partition, seen in sorted(found.items()):
        standbys = [shard for _, shard in seen if shard["role"] == "standby"]
        owners = [(report, shard) for report, shard in seen if shard["role"] == "owner"]
        lags = [shard["lag"] for shard in standbys]
        lag = None if not lags or None in lags else max(lags)
        if not owners:
            yield (
                partition,
                seen[0][1]["shard_group"],
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                len(standbys),
                lag,
                None,
                None,
            )
            continue
        for report, shard in owners:  # while a shard moves, two managers may report it as their own
            loading = shard["state"] == "LOADING" and shard["load_total"]
            yield (
                partition,
                shard["shard_group"],
                str(report.address),
                shard["state"],
                shard["since"],
                shard["position"],
                shard["offsets"],
                shard["groups"],
                f"{100 * shard['load_read'] // shard['load_total']}%" if loading else None,
                len(standbys),
                lag,
                unreadable_records(shard),
                shard["last_error"] or None,
            )


def alarms(reports: Sequence[ManagerReport]) -> Iterator[str]:
    """Yields one sentence for each problem that needs the attention of an operator."""
    for report in reports:
        if report.error is not None:
            yield f"manager {report.address}: {str(report.error).removeprefix(f'manager {report.address}: ')}"
        if report.status is not None and not report.status["lease"]:
            yield f"manager {report.address}: it cannot reach the managers' group, so it serves no requests"
        for text in (report.status or {}).get("alarms", ()):
            yield f"manager {report.address}: {text}"
    rows = list(shard_rows(reports))
    if not rows and any(report.status is not None and stores_in_topic(report.status) for report in reports):
        yield "no manager has any shard"
    unowned = [row[0] for row in rows if row[2] is None]
    if unowned:
        yield f"{len(unowned)} shards have no owner: {_numbers(unowned)}"
    unserved = [row[0] for row in rows if row[2] is not None and row[3] != "ACTIVE"]
    if unserved:
        yield f"{len(unserved)} shards are not served yet: {_numbers(unserved)}"
    for row in rows:
        if row[_UNREADABLE]:
            yield (
                f"shard {row[0]}: its owner cannot read {count_of(row[_UNREADABLE], 'record')}, so groups may"
                " look as if they had committed nothing; its log names them"
            )


def unreadable_records(shard: Mapping[str, Any]) -> int:
    """Returns the number of a shard's records that the owner cannot decode: records with unreadable values, and records
    whose keys have an unknown version."""
    return int(shard["unreadable"]) + int(shard.get("unknown_keys", 0))  # older managers do not report unknown keys


def stores_in_topic(status: Mapping[str, Any]) -> bool:
    """Whether the manager stores offsets in the shards of a topic. Otherwise it serves another store."""
    return str(status["store"]).startswith("topic ")


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:10]))
    return f"{shown}, ..." if len(numbers) > 10 else shown
