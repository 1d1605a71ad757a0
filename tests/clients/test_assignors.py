"""The assignors: examples from Kafka's documents, then properties against slow and simple oracles.

tests/clients/test_assignors_in_java.py compares range and round-robin with Kafka's own classes.
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


def owned(assignment: Mapping[TopicPartition, object], topic: str = "t") -> dict[str, list[int]]:
    """Thread -> the numbers of its partitions of one topic."""
    found: dict[str, list[int]] = {}
    for partition, thread in assignment.items():
        if partition.topic == topic:
            found.setdefault(str(thread), []).append(partition.partition)
    return found


def members(*names: str, streams: int = 1, topics: str = "t") -> dict[str, dict[str, int]]:
    return {name: dict.fromkeys(topics, streams) for name in names}


# --- threads ------------------------------------------------------------------------------------------


def test_threads_are_sorted_as_strings() -> None:
    assigned = RANGE({"A": {"t": 1}, "b": {"t": 4}, "c": {"t": 11}}, {"t": range(16)})
    assert [str(thread) for thread in assigned.values()][::5] == ["A-0", "c-0", "c-4", "c-9"]


# --- the documents' examples ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("streams", "partitions", "expected"),
    [
        # zookeeper-directories-0.8-b.txt, 2.6: "node1: 0, 1; node2: 2; node3: 3"
        (members("node1", "node2", "node3"), 4, {"node1-0": [0, 1], "node2-0": [2], "node3-0": [3]}),
        # the same section, two streams each: "node1: 0, 1; node2: 2, 3; node3: none"
        (
            members("node1", "node2", "node3", streams=2),
            4,
            {"node1-0": [0], "node1-1": [1], "node2-0": [2], "node2-1": [3]},
        ),
        # the same section puts the member first that started first; the code sorts the members by id
        (members("z", "m", "a"), 4, {"a-0": [0, 1], "m-0": [2], "z-0": [3]}),
        # 2.7: "C0 = [P0,P1], C1 = [P2,P3]". It says that the share is rounded up, which would leave a third member
        # without partitions; Kafka's code does not round.
        (members("C0", "C1"), 4, {"C0-0": [0, 1], "C1-0": [2, 3]}),
        (members("C0", "C1", "C2"), 4, {"C0-0": [0, 1], "C1-0": [2], "C2-0": [3]}),
        # kafka-0.10.1-implementation.txt says that the share is rounded down, which would leave the last of five
        # partitions without an owner; the code gives the first members one partition more
        (members("C0", "C1"), 5, {"C0-0": [0, 1, 2], "C1-0": [3, 4]}),
        # the example in RangeAssignor's own documentation
        (members("C1", "C2", streams=2), 5, {"C1-0": [0, 1], "C1-1": [2], "C2-0": [3], "C2-1": [4]}),
        # Member g_a-1 has the same name as thread 1 of member g_a. The order is that of the threads' names.
        ({"g_a": {"t": 3}, "g_a-1": {"t": 1}}, 4, {"g_a-0": [0], "g_a-1": [1], "g_a-1-0": [2], "g_a-2": [3]}),
    ],
)
def test_range_assigns_as_in_the_documents(streams: Streams, partitions: int, expected: dict[str, list[int]]) -> None:
    assert owned(RANGE(streams, {"t": range(partitions)})) == expected


# --- round-robin --------------------------------------------------------------------------------------


def test_round_robin_assigns_in_the_order_of_javas_hashes() -> None:
    """``[t,0]`` hashes to 87540032 and ``[t,9]`` to 87540311, but ``[t,10]`` to -1581226645: 10 and 11 come first."""
    assignment = ROUND_ROBIN(members("a", "b"), {"t": [0, 1, 2, 9, 10, 11]})
    assert owned(assignment) == {"a-0": [0, 2, 10], "b-0": [1, 9, 11]}


def test_round_robin_skips_a_thread_that_does_not_consume_the_topic() -> None:
    """0.10.2 accepts unequal subscriptions. The order of hashes is [x,0] [x,1] [x,2] [y,0] [y,1] [y,2]."""
    unequal = {"a": {"x": 1, "y": 1}, "b": {"y": 1}, "c": {"x": 1}}
    assignment = ROUND_ROBIN(unequal, {"x": range(3), "y": range(3)})
    assert owned(assignment, "x") == {"a-0": [0, 2], "c-0": [1]}
    assert owned(assignment, "y") == {"b-0": [0, 2], "a-0": [1]}


# --- names and errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ASSIGNORS.values(), ids=ASSIGNORS)
def test_each_strategy_ignores_other_topics_and_refuses_a_member_without_a_stream(strategy: Any) -> None:
    """Kafka asserts one stream or more, in every member that reads the registration."""
    assert owned(strategy(members("a", topics="tn"), {"t": [0], "unread": [0, 1]})) == {"a-0": [0]}
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


def slow_range(streams: Streams, partitions: Partitions, order: Mapping[str, list[int]]) -> dict[TopicPartition, str]:
    """Range assignment: counts the shares one partition at a time, then assigns the partitions in their order."""
    found = {}
    for topic, numbers in partitions.items():
        threads = sorted(f"{m}-{i}" for m, topics in streams.items() for i in range(topics.get(topic, 0)))
        if not threads:
            continue
        shares = Counter(thread for thread, _ in zip(cycle(threads), numbers, strict=False))
        waiting = list(order[topic])
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
    in_order = {topic: sorted(numbers) for topic, numbers in partitions.items()}
    assert as_strings(RANGE(streams, partitions)) == slow_range(streams, partitions, in_order)


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
