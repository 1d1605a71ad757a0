"""Findings about committed offsets: partitions that no longer exist, and offsets outside the logs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import BrokerPartition, LogRange, TopicPartition
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts, Ranges
from offsetmgr.zookeeper.check.findings import Finding, FindingCode
from offsetmgr.zookeeper.nodes import paths


def offsets_of_nothing(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    """Offsets for topics and partitions that do not exist, one finding for each topic."""
    if cluster.topics is None:
        return
    by_topic: dict[str, list[int]] = {}
    for tp in facts.offsets:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    for topic, numbers in sorted(by_topic.items()):
        path = paths.offsets_of_topic(facts.group, topic)
        there = cluster.topics.get(topic)
        if there is None:
            yield Finding(
                FindingCode.OFFSETS_TOPIC_GONE,
                facts.group,
                path,
                f"holds offsets of {{partitions}} of topic {topic}, which does not exist",
                "delete them (offsetmgr offsets delete): a topic recreated under this name would be read from there",
                topic,
                tuple(sorted(numbers)),
            )
        elif isinstance(there, frozenset) and (gone := sorted(n for n in numbers if n not in there)):
            yield Finding(
                FindingCode.OFFSETS_PARTITION_GONE,
                facts.group,
                path,
                f"holds offsets of {{partitions}} of topic {topic}, which has {len(there)} partitions",
                "delete them (offsetmgr offsets delete)",
                topic,
                tuple(gone),
            )


def existing(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[TopicPartition]:
    """The partitions with offsets whose log ranges can be read: those that exist and are not in the 0.7 layout."""
    for tp in facts.offsets:
        there = (cluster.topics or {}).get(tp.topic)
        if isinstance(there, frozenset) and tp.partition in there and not isinstance(tp.partition, BrokerPartition):
            yield tp


def out_of_range(facts: GroupFacts, ranges: Ranges) -> Iterator[Finding]:
    """Offsets below the log's start or beyond its end, and offsets whose log range is unknown."""
    unknown: dict[str, list[tuple[int, OffsetMgrError]]] = {}
    for tp, stored in sorted(facts.offsets.items()):
        found = ranges.get(tp)
        if isinstance(found, OffsetMgrError):
            unknown.setdefault(tp.topic, []).append((tp.partition, found))
        elif found is not None and not found.start <= stored.offset <= found.end:
            yield _outside(facts, tp, stored.offset, found)
    for topic, failed in unknown.items():
        yield Finding(
            FindingCode.LOG_RANGE_UNKNOWN,
            facts.group,
            paths.offsets_of_topic(facts.group, topic),
            f"holds offsets of {{partitions}} of topic {topic}, whose logs' ranges are not known: {failed[0][1]}",
            "check again when the brokers answer",
            topic,
            tuple(number for number, _ in failed),
        )


def _outside(facts: GroupFacts, tp: TopicPartition, offset: int, log: LogRange) -> Finding:
    below = offset < log.start
    where = f"below the log's start, {log.start}" if below else f"beyond the log's end, {log.end}"
    lost = "what lay between is gone" if below else "the topic was recreated or lost its end, or the offset is wrong"
    return Finding(
        FindingCode.OFFSET_OUT_OF_RANGE,
        facts.group,
        paths.offset(facts.group, tp.topic, tp.partition),
        f"holds offset {offset} of {tp}, {where}: {lost}, and consumers go where auto.offset.reset says",
        "set the right offset (offsetmgr offsets reset)",
        tp.topic,
        (tp.partition,),
    )
