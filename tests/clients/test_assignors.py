"""The assignors, compared with slow and simple oracles.

tests/clients/test_assignors_in_java.py compares them with Kafka's own classes. Kafka's documents say that the range
assignor rounds the share of a member up, or down, and that it sorts the members by the time of their start. Its code
gives the first members one partition more, and sorts the threads by name.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.consumer import ZookeeperConsumer
from offsetmgr.core.errors import AssignmentRefused, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.groups.assignors import ASSIGNORS

Streams = Mapping[str, Mapping[str, int]]
Partitions = Mapping[str, Sequence[int]]
RANGE, ROUND_ROBIN = ASSIGNORS["range"], ASSIGNORS["roundrobin"]


# --- names and errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ASSIGNORS.values(), ids=ASSIGNORS)
def test_each_strategy_ignores_other_topics_and_refuses_a_member_without_a_stream(strategy: Any) -> None:
    """Kafka asserts one stream or more, in every member that reads the registration."""
    found = strategy({"a": {"t": 1, "n": 1}}, {"t": [0], "unread": [0, 1]})
    assert as_strings(found) == {TopicPartition("t", 0): "a-0"}
    assert strategy({}, {"t": [0]}) == {}
    with pytest.raises(AssignmentRefused, match=r"member b: has 0 streams of t"):
        strategy({"a": {"t": 1}, "b": {"t": 0}}, {"t": range(3)})


def test_a_consumer_refuses_an_unknown_strategy() -> None:
    with pytest.raises(UsageError, match=r"strategy 'sticky': is unknown") as refused:
        ZookeeperConsumer(zookeeper="localhost:1", bootstrap_servers="localhost:1", group="g", strategy="sticky")
    assert refused.value.hint == "strategies: range, roundrobin"


# --- properties ---------------------------------------------------------------------------------------

TOPICS = ("orders", "bills", "Aa", "x.y", "t")
groups = st.dictionaries(
    st.sampled_from([f"g_h{i}" for i in (1, 2, 9, 10, 11)] + ["g_h1-1", "z"]),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 12), max_size=4),
    max_size=6,
)
topics = st.dictionaries(
    st.sampled_from(TOPICS), st.sets(st.integers(0, 25), max_size=26).map(sorted), min_size=len(TOPICS)
)


def slow_range(streams: Streams, partitions: Partitions) -> dict[TopicPartition, str]:
    """Range assignment: counts the shares one partition at a time, then assigns the partitions in their order."""
    found = {}
    for topic, numbers in partitions.items():
        threads = sorted(f"{m}-{i}" for m, topics in streams.items() for i in range(topics.get(topic, 0)))
        if not threads:
            continue
        shares = Counter(thread for thread, _ in zip(cycle(threads), numbers, strict=False))
        waiting = sorted(numbers)
        for thread in threads:
            for _ in range(shares[thread]):
                found[TopicPartition(topic, waiting.pop(0))] = thread
    return found


def slow_round_robin(streams: Streams, partitions: Partitions) -> dict[TopicPartition, str]:
    """Round-robin assignment: rotates one list of the threads."""

    def hashed(text: str) -> int:
        total = sum(ord(one) * 31 ** (len(text) - 1 - place) for place, one in enumerate(text))
        return int((total + 2**31) % 2**32 - 2**31)

    line = sorted({f"{m}-{i}" for m, topics in streams.items() for n in topics.values() for i in range(n)})
    everything = [(hashed(f"[{t},{n}]"), t, n) for t, numbers in partitions.items() for n in numbers]
    found = {}
    for _, topic, number in sorted(everything):
        takers = {f"{m}-{i}" for m, topics in streams.items() for i in range(topics.get(topic, 0))}
        while takers:
            first = line.pop(0)
            line.append(first)
            if first in takers:
                found[TopicPartition(topic, number)] = first
                break
    return found


def as_strings(assignment: Mapping[TopicPartition, object]) -> dict[TopicPartition, str]:
    assert list(assignment) == sorted(assignment)
    return {partition: str(thread) for partition, thread in assignment.items()}


@given(groups, topics)
def test_range_equals_its_oracle(streams: Streams, partitions: Partitions) -> None:
    assert as_strings(RANGE(streams, partitions)) == slow_range(streams, partitions)


@given(groups, topics)
def test_round_robin_equals_its_oracle(streams: Streams, partitions: Partitions) -> None:
    assert as_strings(ROUND_ROBIN(streams, partitions)) == slow_round_robin(streams, partitions)


@given(groups, topics, st.sampled_from(sorted(ASSIGNORS)), st.randoms())
def test_the_order_of_the_mappings_changes_nothing(streams: Streams, partitions, name: str, chance: Random) -> None:
    def shuffled(mapping: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    other_streams = {member: shuffled(topics) for member, topics in shuffled(streams).items()}
    other_partitions = {topic: numbers[::-1] for topic, numbers in shuffled(partitions).items()}
    other = ASSIGNORS[name](other_streams, other_partitions)
    assert list(other.items()) == list(ASSIGNORS[name](streams, partitions).items())
