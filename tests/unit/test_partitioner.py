"""The partition of a group is the one that Kafka's coordinator uses.

data/JavaHashes.java has printed the vectors with Java's and Kafka's own classes. Some were also seen on a real broker.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.manager.partitioner import java_hash, shard_for

VECTORS = [line.rsplit(" ", 3) for line in (Path(__file__).parent / "data/java_hashes.txt").read_text().splitlines()]


def text_of(units: str) -> str:
    """Decodes UTF-16 code units in hex and their number of repetitions, such as ``0067003a`` or ``d83dde00*1000``."""
    hexadecimal, _, times = units.partition("*")
    return bytes.fromhex(hexadecimal).decode("utf-16-be", "surrogatepass") * int(times or 1)


@pytest.mark.parametrize(("units", "hashed", "of_50", "of_7"), VECTORS, ids=[units[:40] for units, *_ in VECTORS])
def test_hash_and_partition_are_those_of_java(units: str, hashed: str, of_50: str, of_7: str) -> None:
    group = text_of(units)
    assert java_hash(group) == int(hashed)
    assert shard_for(group, 50) == int(of_50)
    assert shard_for(group, 7) == int(of_7)


@pytest.mark.parametrize(
    ("group", "partition"),
    [("group-15838", 19), ("group-23757", 30), ("", 0), ("polygenelubricants", 0), ("group-🚀-ü", 12)],
)
def test_a_group_maps_to_the_partition_that_broker_3_9_1_used(group: str, partition: int) -> None:
    """Seen in ``__consumer_offsets``. The first two groups hash to negative numbers, the fourth to the smallest one."""
    assert shard_for(group, 50) == partition


@given(st.text(), st.integers(1, 1000))
def test_every_group_has_a_partition(group: str, partitions: int) -> None:
    assert 0 <= shard_for(group, partitions) < partitions
