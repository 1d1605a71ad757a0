"""The probe group ids for the partitions of the offsets topic, compared with hashes that Java computed."""

from __future__ import annotations

import pytest

from offsetmgr.core.java_hash import java_hash
from offsetmgr.kafka.client.group_lists import probe_groups


@pytest.mark.parametrize(
    ("text", "hashed"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31))],
)
def test_the_hash_is_javas(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


@pytest.mark.parametrize("partitions", [1, 9, 50, 200])
def test_every_partition_of_the_offsets_topic_has_a_probe_group(partitions: int) -> None:
    names = probe_groups(partitions)

    assert [java_hash(name) % partitions for name in names] == list(range(partitions))
    assert all(java_hash(name) >= 0 for name in names)
