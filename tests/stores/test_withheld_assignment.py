"""The assignment that leaves out edited partitions, and the subscription that it reads."""

from __future__ import annotations

import struct

import pytest

from offsetmgr.core.errors import MalformedData
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.groups.group_takeover import assign_without
from offsetmgr.kafka.protocol.requests import MemberSubscription, decode_owned_subscription, encode_subscription


def t(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def owning(topic: str, *numbers: int) -> MemberSubscription:
    return MemberSubscription((topic,), tuple(map(t, numbers)))


U = TopicPartition("u", 0)


@pytest.mark.parametrize(
    ("edited", "members", "topics", "assigned"),
    [
        ({t(0)}, {"a": owning("t", 0, 1), "b": owning("t", 2)}, {"t": 4}, {"a": [t(1), t(3)], "b": [t(2)]}),
        (set(), {"a": owning("t", 0), "b": owning("t", 0, 1)}, {"t": 2}, {"a": [], "b": [t(1)]}),  # owned by both
        (set(), {"a": owning("t"), "b": owning("u", 0)}, {"t": 1, "u": 1}, {"a": [t(0)], "b": [U]}),
        (set(), {"a": owning("t"), "b": owning("u", 0)}, {}, {"a": [], "b": []}),
    ],
)
def test_subscribed_members_keep_what_they_alone_own_except_the_edited_partitions(edited, members, topics, assigned):
    assert assign_without(edited, members, topics) == assigned


def test_owned_partitions_are_read_from_version_1_on() -> None:
    assert decode_owned_subscription(encode_subscription(["t", "u"])) == MemberSubscription(("t", "u"))
    topics = struct.pack(">i", 1) + struct.pack(">h", 1) + b"t"
    owned = topics + struct.pack(">iii", 2, 4, 7)
    for version, rest in ((1, b""), (2, struct.pack(">i", 9))):
        data = struct.pack(">h", version) + topics + struct.pack(">i", -1) + owned + rest
        assert decode_owned_subscription(data) == MemberSubscription(("t",), (t(4), t(7)))
    with pytest.raises(MalformedData):
        decode_owned_subscription(struct.pack(">h", 1) + topics)
