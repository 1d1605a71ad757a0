"""Rules about committed offsets: partitions that no longer exist, and offsets outside of the logs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import BrokerPartition, LogRange, TopicPartition
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts, Ranges
from offsetmgr.zookeeper.check.findings import Finding, FindingCode
from offsetmgr.zookeeper.nodes import paths


def offsets_without_partition(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    """For each topic with offsets, yields a finding if the topic does not exist, or if some of the partitions with
    offsets do not exist."""
    if cluster.topics is None:
        return
    for topic, numbers in sorted(by_key(facts.offsets).items()):
        path = paths.offsets_of_topic(facts.group, topic)
        partitions = cluster.topics.get(topic)
        held = f"holds offsets of {{partitions}} of topic {topic}, which"
        delete = "delete the offsets (offsetmgr offsets delete)"
        if partitions is None:
            todo = f"{delete}: consumers of a recreated topic would start at them"
            code = FindingCode.OFFSETS_TOPIC_GONE
            yield facts.finding(code, path, f"{held} does not exist", todo, topic, *sorted(numbers))
        elif isinstance(partitions, frozenset) and (gone := sorted(n for n in numbers if n not in partitions)):
            code, text = FindingCode.OFFSETS_PARTITION_GONE, f"{held} has {len(partitions)} partitions"
            yield facts.finding(code, path, text, delete, topic, *gone)


def partitions_with_log(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[TopicPartition]:
    """Yields the partitions that have a committed offset and whose log range the brokers can report. Brokers can report
    the log range of a partition that exists and is not a partition of Kafka 0.7."""
    for tp in facts.offsets:
        partitions = (cluster.topics or {}).get(tp.topic)
        if (
            isinstance(partitions, frozenset)
            and tp.partition in partitions
            and not isinstance(tp.partition, BrokerPartition)
        ):
            yield tp


def out_of_range(facts: GroupFacts, ranges: Ranges) -> Iterator[Finding]:
    """Yields findings for offsets below the log's start or beyond its end, and for unknown log ranges."""
    unknown: dict[str, list[tuple[int, OffsetMgrError]]] = {}
    for tp, stored in sorted(facts.offsets.items()):
        found = ranges.get(tp)
        if isinstance(found, OffsetMgrError):
            unknown.setdefault(tp.topic, []).append((tp.partition, found))
        elif found is not None and not found.start <= stored.offset <= found.end:
            yield _outside(facts, tp, stored.offset, found)
    for topic, failed in unknown.items():
        path = paths.offsets_of_topic(facts.group, topic)
        text = f"holds offsets of {{partitions}} of topic {topic}, whose log ranges are unknown: {failed[0][1]}"
        todo, numbers = "check again when the brokers respond", [number for number, _ in failed]
        yield facts.finding(FindingCode.LOG_RANGE_UNKNOWN, path, text, todo, topic, *numbers)


def _outside(facts: GroupFacts, tp: TopicPartition, offset: int, log: LogRange) -> Finding:
    where = f"beyond the log's end, {log.end}: the topic was recreated, its log was truncated, or the offset is wrong"
    if offset < log.start:
        where = f"below the log's start, {log.start}: the messages from this offset to the log's start are deleted"
    path = paths.offset(facts.group, tp.topic, tp.partition)
    text = f"holds offset {offset} of {tp}, {where}, and consumers continue according to auto.offset.reset"
    return facts.finding(
        FindingCode.OFFSET_OUT_OF_RANGE, path, text, "set a valid offset (offsetmgr offsets reset)", *tp
    )
