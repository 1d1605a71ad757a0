"""The assignment that leaves out edited partitions, and the subscription that it reads."""

from __future__ import annotations

import struct

import pytest

from offsetmgr.core.errors import MalformedData
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.groups.withheld_assignment import assign_without
from offsetmgr.kafka.protocol.consumer_protocol import (
    MemberSubscription,
    decode_owned_subscription,
    encode_subscription,
)


def t(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def test_members_keep_what_they_own_except_the_edited_partitions() -> None:
    members = {"a": MemberSubscription(("t",), (t(0), t(1))), "b": MemberSubscription(("t",), (t(2),))}
    assert assign_without({t(0)}, members, {"t": 4}) == {"a": [t(1), t(3)], "b": [t(2)]}


def test_a_partition_that_two_members_own_goes_to_none() -> None:
    members = {"a": MemberSubscription(("t",), (t(0),)), "b": MemberSubscription(("t",), (t(0), t(1)))}
    assert assign_without(set(), members, {"t": 2}) == {"a": [], "b": [t(1)]}


def test_a_partition_goes_only_to_a_member_that_subscribes_to_its_topic() -> None:
    members = {"a": MemberSubscription(("t",)), "b": MemberSubscription(("u",), (t(0),))}
    assert assign_without(set(), members, {"t": 1, "u": 1}) == {"a": [t(0)], "b": [TopicPartition("u", 0)]}
    assert assign_without(set(), members, {}) == {"a": [], "b": []}


def test_owned_partitions_are_read_from_version_1_on() -> None:
    assert decode_owned_subscription(encode_subscription(["t", "u"])) == MemberSubscription(("t", "u"))
    topics = struct.pack(">i", 1) + struct.pack(">h", 1) + b"t"
    owned = topics + struct.pack(">iii", 2, 4, 7)
    for version, rest in ((1, b""), (2, struct.pack(">i", 9))):
        data = struct.pack(">h", version) + topics + struct.pack(">i", -1) + owned + rest
        assert decode_owned_subscription(data) == MemberSubscription(("t",), (t(4), t(7)))
    with pytest.raises(MalformedData):
        decode_owned_subscription(struct.pack(">h", 1) + topics)
