"""The assignors: examples from Kafka's documents, then properties against slow and simple oracles.

tests/interop/test_assignors_in_java.py compares range and round-robin with Kafka's own classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import AssignmentRefused, UnequalSubscriptions, UsageError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.groups.assignors import (
    STRATEGIES,
    Assignor,
    ClusteredAssignor,
    EqualRoundRobinAssignor,
    Moves,
    RangeAssignor,
    RoundRobinAssignor,
    ThreadId,
    assignor_named,
    moves,
    partitions_with_equal_hash,
)

Streams = Mapping[str, Mapping[str, int]]
Partitions = Mapping[str, Sequence[int]]


def owned(assignment: Mapping[TopicPartition, ThreadId], topic: str = "t") -> dict[str, list[int]]:
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
    threads = [ThreadId("c", 2), ThreadId("c", 10), ThreadId("c", 1), ThreadId("b", 3)]
    assert [str(one) for one in sorted(threads)] == ["b-3", "c-1", "c-10", "c-2"]
    in_order = [ThreadId("A", 0), ThreadId("b", 3), ThreadId("c", 10), ThreadId("c", 2)]
    for (n, one), (k, other) in product(enumerate(in_order), repeat=2):
        assert [one < other, one <= other, one > other, one >= other] == [n < k, n <= k, n > k, n >= k]


def test_threads_are_sorted_as_strings_if_one_member_id_is_a_prefix_of_another() -> None:
    """Member ``g_a-1`` has the same name as thread 1 of member ``g_a``. The order is that of the threads' names."""
    both = {"g_a": {"t": 3}, "g_a-1": {"t": 1}}
    assert owned(RangeAssignor().assign(both, {"t": range(4)})) == {
        "g_a-0": [0],
        "g_a-1": [1],
        "g_a-1-0": [2],
        "g_a-2": [3],
    }


# --- the documents' examples ---------------------------------------------------------------------------


def test_four_partitions_over_three_members_of_one_stream() -> None:
    """zookeeper-directories-0.8-b.txt, 2.6: "node1: 0, 1; node2: 2; node3: 3"."""
    assignment = RangeAssignor().assign(members("node1", "node2", "node3"), {"t": range(4)})
    assert owned(assignment) == {"node1-0": [0, 1], "node2-0": [2], "node3-0": [3]}


def test_four_partitions_over_three_members_of_two_streams() -> None:
    """The same section: "node1: 0, 1; node2: 2, 3; node3: none"."""
    assignment = RangeAssignor().assign(members("node1", "node2", "node3", streams=2), {"t": range(4)})
    assert owned(assignment) == {"node1-0": [0], "node1-1": [1], "node2-0": [2], "node2-1": [3]}


def test_the_order_of_starting_has_no_effect() -> None:
    """The same section puts the member first that started first. The code sorts the members by id."""
    started_in_this_order = members("z", "m", "a")
    assignment = RangeAssignor().assign(started_in_this_order, {"t": range(4)})
    assert owned(assignment) == {"a-0": [0, 1], "m-0": [2], "z-0": [3]}


def test_two_members_share_four_partitions() -> None:
    """2.7 of the same text: "C0 = [P0,P1], C1 = [P2,P3]"."""
    assignment = RangeAssignor().assign(members("C0", "C1"), {"t": range(4)})
    assert owned(assignment) == {"C0-0": [0, 1], "C1-0": [2, 3]}


def test_the_share_is_not_rounded_up() -> None:
    """Section 2.7 says M = size(P)/size(C) rounded up, Ci = [P(i*M) .. P((i+1)*M - 1)]. With the four partitions and
    three members of section 2.6, the third member would get no partition. Kafka's code does not round."""
    rounded_up = {"C0-0": [0, 1], "C1-0": [2, 3]}
    actual = owned(RangeAssignor().assign(members("C0", "C1", "C2"), {"t": range(4)}))
    assert actual == {"C0-0": [0, 1], "C1-0": [2], "C2-0": [3]}
    assert actual != rounded_up


def test_the_share_is_not_rounded_down_either() -> None:
    """kafka-0.10.1-implementation.txt says N = size(PT)/size(CG), from i*N to (i+1)*N - 1. With five partitions and two
    members, the last partition would have no owner. The code gives the first members one partition more."""
    assert owned(RangeAssignor().assign(members("C0", "C1"), {"t": range(5)})) == {"C0-0": [0, 1, 2], "C1-0": [3, 4]}


def test_five_partitions_over_two_members_of_two_streams() -> None:
    """The example in RangeAssignor's own documentation."""
    assignment = RangeAssignor().assign(members("C1", "C2", streams=2), {"t": range(5)})
    assert owned(assignment) == {"C1-0": [0, 1], "C1-1": [2], "C2-0": [3], "C2-1": [4]}


def test_a_brokers_partitions_are_kept_together_in_the_order_of_0_7() -> None:
    """ "sort PT (so partitions on the same broker are clustered together)": even numbers are on broker 1, odd on 0."""
    brokers = {TopicPartition("t", n): 1 - n % 2 for n in range(8)}
    assignment = ClusteredAssignor(brokers).assign(members("a", "b"), {"t": range(8)})
    assert owned(assignment) == {"a-0": [1, 3, 5, 7], "b-0": [0, 2, 4, 6]}


def test_the_order_of_0_7_is_that_of_strings() -> None:
    """Kafka 0.7 sorted ``<broker>-<number>`` as strings: broker 10 before 2, partition 10 before 2."""
    brokers = {TopicPartition("t", n): 2 if n < 3 else 10 for n in range(14)}
    ordered = [3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    ordered = [10, 11, 12, 13, *ordered]  # 10-10 .. 10-13, then 10-3 .. 10-9, then 2-0 .. 2-2
    each = ClusteredAssignor(brokers).assign(members("m", streams=7), {"t": range(14)})
    assert owned(each) == {f"m-{i}": sorted(ordered[2 * i : 2 * i + 2]) for i in range(7)}


def test_partitions_of_0_7_contain_their_broker() -> None:
    partitions = [BrokerPartition(broker, number) for broker in (2, 10) for number in range(12)]
    assignment = ClusteredAssignor({}).assign(members("m", streams=8), {"t": partitions})
    assert {thread: [str(one) for one in assigned] for thread, assigned in owned(assignment).items()} == {
        "m-0": ["10-0", "10-1", "10-10"],
        "m-1": ["10-2", "10-3", "10-11"],
        "m-2": ["10-4", "10-5", "10-6"],
        "m-3": ["10-7", "10-8", "10-9"],
        "m-4": ["2-0", "2-1", "2-10"],
        "m-5": ["2-2", "2-3", "2-11"],
        "m-6": ["2-4", "2-5", "2-6"],
        "m-7": ["2-7", "2-8", "2-9"],
    }


def test_a_partition_without_a_broker_comes_last_in_the_order_of_0_7() -> None:
    brokers = {TopicPartition("t", 1): 7, TopicPartition("t", 2): 5}
    assignment = ClusteredAssignor(brokers).assign(members("a", "b", "c"), {"t": range(3)})
    assert owned(assignment) == {"a-0": [2], "b-0": [1], "c-0": [0]}


# --- round-robin --------------------------------------------------------------------------------------


def test_round_robin_assigns_in_the_order_of_javas_hashes() -> None:
    """``[t,0]`` hashes to 87540032 and ``[t,9]`` to 87540311, but ``[t,10]`` to -1581226645: 10 and 11 come first."""
    assignment = RoundRobinAssignor().assign(members("a", "b"), {"t": [0, 1, 2, 9, 10, 11]})
    assert owned(assignment) == {"a-0": [0, 2, 10], "b-0": [1, 9, 11]}


def test_round_robin_skips_a_thread_that_does_not_consume_the_topic() -> None:
    """0.10.2 accepts unequal subscriptions. The order of hashes is [x,0] [x,1] [x,2] [y,0] [y,1] [y,2]."""
    unequal = {"a": {"x": 1, "y": 1}, "b": {"y": 1}, "c": {"x": 1}}
    assignment = RoundRobinAssignor().assign(unequal, {"x": range(3), "y": range(3)})
    assert owned(assignment, "x") == {"a-0": [0, 2], "c-0": [1]}
    assert owned(assignment, "y") == {"b-0": [0, 2], "a-0": [1]}


def test_round_robin_of_0_8_2_names_the_members_that_differ() -> None:
    group = {
        "a": {"x": 1, "y": 1},
        "b": {"x": 1, "y": 1},
        "c": {"x": 1},
        "d": {"x": 1, "y": 1, "z": 4},
        "e": {"x": 2, "y": 1},
    }
    with pytest.raises(UnequalSubscriptions) as refused:
        EqualRoundRobinAssignor().assign(group, {"x": [0], "y": [0], "z": [0]})
    assert refused.value.members == ("c", "d", "e")
    assert refused.value.why == (
        "needs equal subscriptions, but c lacks y; d also has z; e has 2 streams of x, 1 streams of y"
    )


def test_round_robin_of_0_8_2_accepts_members_of_different_sizes_that_consume_the_same() -> None:
    """It also accepts a member whose pattern matches no topic yet. Kafka ignores a member that consumes no topic."""
    group = {"a": {"x": 2, "y": 2}, "b": {"x": 1, "y": 1}, "idle": {}}
    partitions = {"x": range(5), "y": range(5)}
    assert EqualRoundRobinAssignor().assign(group, partitions) == RoundRobinAssignor().assign(group, partitions)


def test_topics_that_hash_alike_are_named() -> None:
    assert partitions_with_equal_hash({"Aa": [0, 1], "BB": [1], "other": [0, 1]}) == [
        (TopicPartition("Aa", 1), TopicPartition("BB", 1))
    ]
    assert partitions_with_equal_hash({"orders": range(50), "bills": range(50)}) == []


# --- names and errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_strategy_is_found_by_its_name(name: str) -> None:
    assert assignor_named(name, {}).name == name


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(UsageError, match=r"strategy 'sticky': is unknown"):
        assignor_named("sticky")
    with pytest.raises(UsageError, match=r"strategy clustered: needs the broker of each partition"):
        assignor_named("clustered")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_member_without_a_stream_is_refused_by_name(name: str) -> None:
    """Kafka asserts one stream or more, in every member that reads the registration."""
    with pytest.raises(AssignmentRefused, match=r"member b: has 0 streams of t"):
        assignor_named(name, {}).assign({"a": {"t": 1}, "b": {"t": 0}}, {"t": range(3)})


@pytest.mark.parametrize("name", STRATEGIES)
def test_topics_that_are_not_consumed_or_do_not_exist_are_left_out(name: str) -> None:
    assigned = assignor_named(name, {}).assign(members("a", topics="tn"), {"t": [0], "unread": [0, 1]})
    assert assigned == {TopicPartition("t", 0): ThreadId("a", 0)}
    assert assignor_named(name, {}).assign({}, {"t": [0]}) == {}


# --- moves --------------------------------------------------------------------------------------------


def test_moves_are_counted() -> None:
    before = {n: ThreadId("a", 0) for n in range(5)} | {5: ThreadId("b", 0)}
    after = {0: ThreadId("a", 0), 1: ThreadId("a", 1), 2: ThreadId("b", 0), 3: ThreadId("c", 0), 4: ThreadId("a", 0)}
    after |= {6: ThreadId("c", 0)}
    named = [{TopicPartition("t", n): thread for n, thread in each.items()} for each in (before, after)]
    counted = moves(*named)
    assert counted == Moves(kept=2, rethreaded=1, moved=2, gained=1, lost=1)
    assert counted.changed == 5


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
brokers = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 25)), st.sampled_from([0, 1, 2, 10, 11])
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


def as_strings(assignment: Mapping[TopicPartition, ThreadId]) -> dict[TopicPartition, str]:
    return {partition: str(thread) for partition, thread in assignment.items()}


@given(groups, topics)
def test_range_equals_its_oracle(streams: Streams, partitions: Partitions) -> None:
    in_order = {topic: sorted(numbers) for topic, numbers in partitions.items()}
    assert as_strings(RangeAssignor().assign(streams, partitions)) == slow_range(streams, partitions, in_order)


@given(groups, topics)
def test_round_robin_equals_its_oracle(streams: Streams, partitions: Partitions) -> None:
    assert as_strings(RoundRobinAssignor().assign(streams, partitions)) == slow_round_robin(streams, partitions)


@given(groups, topics, brokers)
def test_clustered_equals_its_oracle(
    streams: Streams, partitions: Partitions, on: Mapping[TopicPartition, int]
) -> None:
    def by_text(topic: str) -> list[int]:
        known = sorted(f"{on[one]}-{one.partition}" for one in on if one.topic == topic)
        unknown = sorted(f"{n}" for n in partitions[topic] if (topic, n) not in on)
        numbers = [int(name.split("-")[-1]) for name in [*known, *unknown]]
        return [number for number in numbers if number in partitions[topic]]

    order = {topic: by_text(topic) for topic in partitions}
    assert as_strings(ClusteredAssignor(on).assign(streams, partitions)) == slow_range(streams, partitions, order)


@given(groups, topics, brokers, st.sampled_from(["range", "roundrobin", "clustered"]))
def test_every_consumed_partition_has_one_owner_that_consumes_it(
    streams: Streams, partitions: Partitions, on: Mapping[TopicPartition, int], name: str
) -> None:
    assignment = assignor_named(name, on).assign(streams, partitions)
    consumed = {topic for topics in streams.values() for topic in topics}
    assert list(assignment) == sorted(TopicPartition(t, n) for t in consumed for n in partitions.get(t, ()))
    for partition, thread in assignment.items():
        assert 0 <= thread.thread < streams[thread.member_id][partition.topic]


@given(groups, topics, brokers, st.sampled_from(["range", "clustered"]))
def test_within_a_topic_no_thread_has_two_more_than_another(
    streams: Streams, partitions: Partitions, on: Mapping[TopicPartition, int], name: str
) -> None:
    assignment = assignor_named(name, on).assign(streams, partitions)
    for topic in partitions:
        threads = [ThreadId(m, i) for m, topics in streams.items() for i in range(topics.get(topic, 0))]
        counts = Counter(dict.fromkeys(threads, 0))
        counts.update(thread for partition, thread in assignment.items() if partition.topic == topic)
        assert max(counts.values(), default=0) - min(counts.values(), default=0) <= 1


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from(TOPICS)), st.integers(1, 4), topics)
def test_round_robin_over_equal_subscriptions_differs_by_at_most_one_in_all(
    names: set[str], subscribed: set[str], count: int, partitions: Partitions
) -> None:
    streams = {name: dict.fromkeys(sorted(subscribed), count) for name in sorted(names)}
    assignment = EqualRoundRobinAssignor().assign(streams, partitions)
    counts = Counter({ThreadId(name, i): 0 for name in names for i in range(count)})
    counts.update(assignment.values())
    assert not subscribed or max(counts.values(), default=0) - min(counts.values(), default=0) <= 1


@given(groups, topics, brokers, st.sampled_from(["range", "roundrobin", "clustered"]), st.randoms())
def test_the_order_of_the_mappings_changes_nothing(
    streams: Streams, partitions: Partitions, on: Mapping[TopicPartition, int], name: str, chance: Random
) -> None:
    def shuffled(mapping: Mapping) -> dict:  # type: ignore[type-arg]
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    other_streams = {member: shuffled(topics) for member, topics in shuffled(streams).items()}
    other_partitions = {topic: numbers[::-1] for topic, numbers in shuffled(partitions).items()}
    assignor: Assignor = assignor_named(name, on)
    other = assignor_named(name, shuffled(on)).assign(other_streams, other_partitions)
    assert list(other.items()) == list(assignor.assign(streams, partitions).items())


@given(st.sampled_from(["range", "roundrobin", "clustered"]), groups, groups, topics)
def test_moves_account_for_every_partition(name: str, one: Streams, other: Streams, partitions: Partitions) -> None:
    before, after = (assignor_named(name, {}).assign(each, partitions) for each in (one, other))
    counted = moves(before, after)
    assert counted.kept + counted.rethreaded + counted.moved + counted.lost == len(before)
    assert counted.kept + counted.rethreaded + counted.moved + counted.gained == len(after)
    assert moves(before, before) == Moves(len(before), 0, 0, 0, 0)
