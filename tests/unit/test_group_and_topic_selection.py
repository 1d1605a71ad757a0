"""Selection of topics, partitions and groups by name, by glob and by number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from offsetmgr.core.errors import GroupNotFound, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import BrokerPartition, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, PartitionKinds
from offsetmgr.groups.selection import (
    ALL_TOPICS,
    TopicSelection,
    choose_groups,
    matching_groups,
    require_known,
    scan_in_order,
)
from offsetmgr.stores.snapshot import SnapshotStore

pytest_plugins = ["snapshot_store_fixtures"]

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def test_topics_are_chosen_by_name_glob_and_number() -> None:
    chosen = TopicSelection.parse(["orders:0,2-3", "pay*", "x[*]"])
    matching = [("orders", 0), ("orders", 3), ("payments", 7), ("x*", 0)]
    assert all(chosen.matches(TopicPartition(*tp)) for tp in matching)
    assert not any(chosen.matches(TopicPartition(*tp)) for tp in [("orders", 1), ("order", 0), ("xy", 0)])
    assert chosen.named() == ["orders"]
    assert chosen.numbered() == [TopicPartition("orders", n) for n in (0, 2, 3)]


def test_unmatched_topics_are_named_as_they_were_given() -> None:
    chosen = TopicSelection.parse(["t", "t:2,1", "t:3-4", "p*", "none"])
    assert [str(pattern) for pattern in chosen.unmatched([T0, T1])] == ["t:3,4", "p*", "none"]
    assert chosen.unmatched([T0, T1, TopicPartition("t", 4), TopicPartition("p", 0), TopicPartition("none", 9)]) == []


def test_a_named_topic_means_all_its_partitions_and_a_glob_only_those_committed() -> None:
    committed = [TopicPartition("pay", 4), T1]
    assert TopicSelection.parse(["t", "p*"]).expand({"t": 3}, committed) == [TopicPartition("pay", 4), T0, T1, T2]
    assert TopicSelection.parse(["t:1"]).expand({"t": 3}, committed) == [T1]
    assert ALL_TOPICS.expand({}, committed) == sorted(committed)


def test_topics_and_partitions_that_do_not_exist_are_errors() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic none: does not exist"):
        TopicSelection.parse(["none"]).expand({}, [])
    with pytest.raises(UnknownTopicOrPartition, match="partition 3 of topic t: the topic has 3 partitions"):
        TopicSelection.parse(["t:0,3"]).expand({"t": 3}, [])


@pytest.mark.parametrize("text", ["", ":0", "t:", "t:x", "t:-1", "t:0,,1", "t:0-9999999"])
def test_an_invalid_topic_argument_is_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        TopicSelection.parse([text])


def test_a_partition_of_kafka_0_7_is_named_by_its_broker_too() -> None:
    chosen = TopicSelection.parse(["t:1-0,1-2"])

    of_broker_1 = [TopicPartition("t", BrokerPartition(1, n)) for n in (0, 2)]
    assert all(chosen.matches(tp) for tp in of_broker_1)
    assert not chosen.matches(TopicPartition("t", BrokerPartition(0, 1)))
    assert chosen.numbered(PartitionKinds.OF_BROKERS) == of_broker_1
    assert chosen.numbered(PartitionKinds.NUMBERED) == [TopicPartition("t", 1), TopicPartition("t", 2)]


def test_a_partition_of_kafka_0_7_is_rejected_for_stores_of_numbered_partitions() -> None:
    with pytest.raises(UsageError, match=r"topic t:3-1: 3-1 is not a range"):
        TopicSelection.parse(["t:3-1"]).numbered()


@pytest.mark.parametrize("number", ["2147483648", "0-2147483648", "2147483648-0", "9" * 5000, "0-" + "9" * 5000])
def test_a_partition_beyond_31_bits_is_bad_usage(number: str) -> None:
    with pytest.raises(UsageError, match="is beyond the largest partition, 2147483647"):
        TopicSelection.parse([f"t:{number}"])
    assert TopicSelection.parse(["t:00002147483647"]).numbered() == [TopicPartition("t", 2147483647)]


def test_groups_are_chosen_by_name_and_glob(saved: SnapshotStore) -> None:
    assert choose_groups(saved, [], all_groups=True) == ["a", "b"]
    assert choose_groups(saved, ["zz", "a"]) == ["a", "zz"]
    assert choose_groups(saved, ["[ab]", "zz"]) == ["a", "b", "zz"]
    with pytest.raises(GroupNotFound, match=r"no group in .* matches"):
        choose_groups(saved, ["x*"])
    require_known(saved, ["a"])
    with pytest.raises(GroupNotFound, match=r"group 'zz' .and 1 more.: does not exist"):
        require_known(saved, ["zz", "a", "zzz"])


def test_an_existing_group_with_exactly_this_name_has_precedence_over_the_glob(saved: SnapshotStore) -> None:
    saved.commit("a*", {T0: OffsetAndMetadata(1)})
    saved.commit("a[*]", {T0: OffsetAndMetadata(1)})
    assert choose_groups(saved, ["a*"]) == ["a*"]
    assert choose_groups(saved, ["a[*]"]) == ["a[*]"]
    assert choose_groups(saved, ["a?*", "new[*]"]) == ["a*", "a[*]", "new*"]
    assert matching_groups(["a*"], ["ab", "a*", "a[*]"]) == ["a*"]
    assert matching_groups(["a*"], ["ab", "b"]) == ["ab"]
    assert matching_groups([], ["ab", "b"]) == ["ab", "b"]


def test_groups_are_scanned_in_the_requested_order() -> None:
    class ReversedStore(SnapshotStore):
        def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
            return (GroupOffsets(name, {}) for name in reversed(list(groups)))

    assert [g.group for g in scan_in_order(ReversedStore("x.avro"), ["c", "a", "b"])] == ["c", "a", "b"]
