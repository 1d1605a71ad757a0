"""The metrics of one read, for Prometheus: `lag_samples` and `location_samples` return them, `exposition` writes them.

A metric has kminion's name and labels if it means the same; the others begin with ``offsetmgr_``. kminion's lag counts
deleted records, and is 0 beyond the end of the log. An unknown number has no sample, and another metric counts the
unknown numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import Committed

if TYPE_CHECKING:
    from offsetmgr.app.groups import LocatedGroups
    from offsetmgr.app.offsets import Found, GroupLag, LagRow
    from offsetmgr.translation.readiness import Readiness

HELP: Final = {
    "kminion_kafka_consumer_group_topic_partition_lag": "Log end minus committed offset, at least 0.",
    "kminion_kafka_consumer_group_topic_lag": "Sum of the partition lags of the topic's selected partitions.",
    "kminion_kafka_consumer_group_topic_offset_sum": "Sum of the committed offsets of the topic's selected partitions.",
    "kminion_kafka_consumer_group_members": "Members of the group in Kafka.",
    "offsetmgr_consumer_group_lag": "Sum of the lags of the group's selected partitions, without deleted records.",
    "offsetmgr_consumer_group_largest_lag": "Largest lag of one of the group's selected partitions.",
    "offsetmgr_consumer_group_unknown_lags": "Selected partitions of the group whose lag is unknown.",
    "offsetmgr_consumer_group_below_start": "Partitions of which records were deleted that the group had not read.",
    "offsetmgr_consumer_group_error": "1 if offsets of the group could not be read, else 0.",
    "offsetmgr_located_group_phase": "Always 1; the labels name the stores to which the group commits.",
    "offsetmgr_located_group_lag": "Lag from the store of the phase, or from all stores if they agree.",
    "offsetmgr_located_group_members": "Members of the group in the store.",
    "offsetmgr_located_group_unread": "Stores in which offsets or members of the group could not be read.",
    "offsetmgr_located_group_expiry_timestamp_seconds": "When the copied offsets expire without a further commit.",
    "offsetmgr_readiness_group_repeats": "Records that the group would repeat in the target, of known positions.",
    "offsetmgr_readiness_group_skips": "Records of the target that the group would skip there, of known positions.",
    "offsetmgr_readiness_group_absent": "Partitions in which the group has no offset in the target.",
    "offsetmgr_readiness_group_unknown": "Positions of the group that are not known.",
    "offsetmgr_readiness_only_source": "Records that only the source holds, of the partitions where this is known.",
    "offsetmgr_readiness_unknown_partitions": "Partitions in which this number of records is not known.",
    "offsetmgr_readiness_current": "1 if the check is of now, 0 if a cluster does not respond.",
    "offsetmgr_readiness_timestamp_seconds": "When the check began; of the last known one without a response.",
    "offsetmgr_read_errors": "Errors of the read; 1 if the cluster could not be read.",
    "offsetmgr_read_timestamp_seconds": "When the read began.",
}
"""The metrics, all of them gauges, and their descriptions."""


class Sample(NamedTuple):
    """A value of a metric."""

    metric: str
    labels: Mapping[str, str]
    value: float


def exposition(samples: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Yields the lines of `Sample`s in Prometheus' text format, which are valid as OpenMetrics too. Both formats need
    the samples of a metric together, so the lines of all metrics but the first are kept until the last sample. Yields
    nothing without a sample.

    >>> list(exposition([Sample("offsetmgr_consumer_group_lag", {"group_id": 'a"b'}, 5)]))[2:]
    ['offsetmgr_consumer_group_lag{group_id="a\\\\"b"} 5', '# EOF']
    """
    first, others = "", dict[str, list[str]]()
    for metric, labels, value in samples:
        if not first:
            first = metric
            yield from _heading(metric)
        pairs = ",".join([f'{name}="{_escaped(label)}"' for name, label in labels.items()])
        line = f"{metric}{{{pairs}}} {value}"
        if metric == first:
            yield line
        else:
            others.setdefault(metric, _heading(metric)).append(line)
    for lines in others.values():
        yield from lines
    if first:
        yield "# EOF"


def _heading(metric: str) -> list[str]:
    return [f"# HELP {metric} {HELP[metric]}", f"# TYPE {metric} gauge"]


@lru_cache
def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def lag_samples(found: Found[GroupLag], *, totals: bool = False) -> Iterator[Sample]:
    """Yields the samples of `offsetmgr.app.offsets.lag`: for each partition, topic and group. With ``totals``, only
    those for groups. A sum is left out if one of its numbers is unknown."""
    from offsetmgr.groups.lag import BELOW_START

    began_ms, sums = SystemClock().now_ms(), list[Sample]()
    for one in found:
        group, unknown = {"group_id": one.name}, one.lags.count(None)
        for row in () if totals else one.rows:
            if (lag := _kminion_lag(row)) is not None:
                labels = {**group, "topic_name": row.partition.topic, "partition_id": str(row.partition.partition)}
                yield Sample("kminion_kafka_consumer_group_topic_partition_lag", labels, lag)
        sums += () if totals else _topic_sums(one)
        numbers = {"lag": one.total, "largest_lag": one.largest, "unknown_lags": unknown}
        numbers["below_start"] = sum(BELOW_START in row.note for row in one.notable)
        sums += _known("offsetmgr_consumer_group_", group, **numbers, error=int(one.failure is not None))
    yield from sums
    yield from _read("offsets lag", began_ms, len(found.errors))


def _topic_sums(one: GroupLag) -> Iterator[Sample]:
    for topic, rows in groupby(one.rows, key=lambda row: row.partition.topic):
        part, labels = one._replace(rows=list(rows)), {"group_id": one.name, "topic_name": topic}
        committed = [row.committed for row in part.rows if row.state == "committed"]
        offsets = [found.offset for found in committed if isinstance(found, Committed)]
        lags = [lag for lag in map(_kminion_lag, part.rows) if lag is not None]
        if offsets and part.failure is None:
            lag = sum(lags) if len(lags) == len(offsets) else None
            yield from _known("kminion_kafka_consumer_group_topic_", labels, lag=lag, offset_sum=sum(offsets))


def _kminion_lag(row: LagRow) -> int | None:
    """Returns the lag of a commit as kminion defines it; None if it is unknown. The start offset of a share group is no
    commit."""
    if row.log_end is None or row.state != "committed" or not isinstance(row.committed, Committed):
        return None
    return max(0, row.log_end - row.committed.offset)


def location_samples(located: LocatedGroups) -> Iterator[Sample]:
    """Yields the samples of `offsetmgr.app.groups.where`."""
    began_ms, prefix = SystemClock().now_ms(), "offsetmgr_located_group_"
    for one in located:
        group, stores = {"group_id": one.name}, one.sample.stores
        yield Sample(f"{prefix}phase", {**group, "phase": one.phase, "confidence": one.confidence}, 1)
        expiry_s = None if one.expires_ms is None else one.expires_ms / 1000
        unread = sum((store.problem or store.members_error) is not None for store in stores)
        yield from _known(prefix, group, lag=one.lag, unread=unread, expiry_timestamp_seconds=expiry_s)
        for store in stores:
            members = len(store.members) if store.members_error is None else None
            yield from _known(prefix, {**group, "store": store.name}, members=members)
            if store.name == "kafka":
                yield from _known("kminion_kafka_consumer_group_", group, members=members)
    yield from _read("groups where", began_ms, len(located.unlisted) + len(located.missing))


def readiness_samples(checked: Readiness) -> Iterator[Sample]:
    """Yields the samples of `offsetmgr.app.migrate.readiness`. The sums leave out what is not known, and others count
    it."""
    prefix, sides = "offsetmgr_readiness_", {"source": checked.source, "target": checked.target}
    for one in checked.groups:
        yield from _known(f"{prefix}group_", {**sides, "group_id": one.name}, **one.numbers)
    known = {"only_source": checked.only_source, "unknown_partitions": checked.unknown_partitions}
    began_s, current = checked.checked_at_ms / 1000, int(checked.silent is None)
    yield from _known(prefix, sides, **known, current=current, timestamp_seconds=began_s)
    yield from _read("migrate readiness", SystemClock().now_ms(), len(checked.errors) + 1 - current)


def _known(prefix: str, labels: Mapping[str, str], **numbers: float | None) -> Iterator[Sample]:
    """Yields the samples of the numbers that are known."""
    return (Sample(prefix + name, labels, number) for name, number in numbers.items() if number is not None)


def _read(command: str, began_ms: int, errors: int) -> Iterator[Sample]:
    return _known("offsetmgr_read_", {"command": command}, errors=errors, timestamp_seconds=began_ms / 1000)
