"""Commits to a shard, also conditional ones, with records in plain text (`plain_format`).

Tests that mention broker 3.9.1 expect the behaviour that was observed on such a broker.
"""

from typing import Any

import pytest
from plain_format import PlainFormat
from shards import ABSENT, NOW, acknowledge, committed, committing, fetched, offsets

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import ErrorCode
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import OffsetKey, OffsetValue
from offsetmgr.records.kafka import KafkaRecordFormat


@pytest.fixture
def shard() -> Shard:
    return Shard(0, PlainFormat(), ManagerSettings())


def of_g(*topics: tuple[str, list[tuple[int, int, int, str]]]) -> Any:
    """A request of group g: partition, offset, leader epoch and metadata by topic."""
    return committing("g")._replace(topics=list(topics))


class TestCommitting:
    def test_a_partition_that_occurs_twice_in_one_commit_gets_the_later_offset(self, shard: Shard) -> None:
        """As broker 3.9.1."""
        acknowledge(shard, shard.commit(of_g(("t", [(0, 1, -1, ""), (0, 2, -1, "")])), NOW))

        assert fetched(shard, "g", 0)[0] == 2
        assert shard.offset_count == 1

    def test_only_negative_partitions_and_offsets_are_rejected(self, shard: Shard) -> None:
        """Broker 3.9.1 accepts a negative offset, and a fetch would return it as "no committed offset"."""
        committed(shard, "g", p1=8)
        mixed = ("t", [(0, 0, -1, ""), (-1, 2, -1, ""), (1, -1, -1, ""), (-3, -3, -1, "")])
        smallest, largest = ("u", [(0, -(2**63), -1, "m")]), ("v", [(2**31 - 1, 2**63 - 1, -1, "")])
        prepared = shard.commit(of_g(mixed, smallest, largest), NOW)
        acknowledge(shard, prepared)

        assert prepared.response == (0, {("t", -1): 3, ("t", 1): 42, ("t", -3): 3, ("u", 0): 42})
        assert offsets(shard, "g") == {("t", 0): 0, ("t", 1): 8, ("v", 2**31 - 1): 2**63 - 1}

    @pytest.mark.parametrize(
        ("metadata", "error"),
        [
            ("a" * 4096, 0),
            ("a" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
            ("é" * 4096, 0),
            ("é" * 4097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
            ("😀" * 2048, 0),
            ("😀" * 2049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ],
        ids=lambda value: f"{len(value)}-of-{value[0]}" if isinstance(value, str) else str(value),
    )
    def test_too_long_metadata_fails_its_partition_alone(self, shard: Shard, metadata: str, error: int) -> None:
        """As broker 3.9.1, which counts UTF-16 code units."""
        prepared = shard.commit(of_g(("t", [(0, 1, -1, metadata), (1, 2, -1, "")])), NOW)
        acknowledge(shard, prepared)

        assert prepared.response == (0, {("t", 0): error} if error else {})
        assert fetched(shard, "g", 0) == (ABSENT if error else (1, -1, metadata, 0))
        assert fetched(shard, "g", 1)[0] == 2

    def test_the_group_with_the_empty_name_accepts_no_commits_of_members(self, shard: Shard) -> None:
        """As broker 3.9.1: ILLEGAL_GENERATION if the group is unknown, otherwise UNKNOWN_MEMBER_ID."""
        of_member = committing("", p0=1)._replace(generation=5, member_id="m")
        assert shard.commit(of_member, NOW).response.error == ErrorCode.ILLEGAL_GENERATION
        committed(shard, "", p0=1)
        assert shard.commit(of_member, NOW).response.error == ErrorCode.UNKNOWN_MEMBER_ID
        acknowledge(shard, shard.commit(committing("", p0=3)._replace(member_id="m"), NOW))
        assert fetched(shard, "", 0)[0] == 3

    @pytest.mark.parametrize(
        ("retention", "expire"), [(0, NOW), (1000, NOW + 1000), (-5, NOW - 5), (2**63 - 1, 2**63 - 1), (-(2**63), 0)]
    )
    def test_a_retention_in_the_commit_becomes_an_expiration_time(self, shard, retention: int, expire: int) -> None:
        """With the largest retention, Kafka overflows and expires the commit at once. Here the commit never expires."""
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(retention_ms=retention), NOW))

        assert [*shard.entries()] == [(OffsetKey("g", "t", 0), OffsetValue(1, None, "", NOW, expire))]

    def test_a_name_that_is_too_long_for_a_record_is_rejected(self) -> None:
        shard = Shard(0, KafkaRecordFormat(), ManagerSettings())

        response = shard.commit(committing("g" * 40_000, p0=1), NOW).response
        assert response == (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, {})


class TestConditions:
    """`CommitRequest.expected`: the offset that must be committed, -1 for no offset. The error is 55 if it is not."""

    @pytest.mark.parametrize("new_offsets", [{"p0": -1}, {"p0": -1, "p1": -1, "p2": 7}, {"p0": -1, "p1": -1}])
    def test_only_the_last_deletion_also_deletes_the_groups_record(self, shard: Shard, new_offsets) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=5, p1=6)._replace(generation=1), NOW))
        conditions = {("t", 0): 5, ("t", 1): 6}
        prepared = shard.commit(committing("g", topic="t", **new_offsets)._replace(expected=conditions), NOW)

        deleted = [f"o|g|t|{name[1:]}".encode() for name, offset in new_offsets.items() if offset == -1]
        emptied = [*new_offsets.values()] == [-1, -1]
        assert [key for key, value in prepared.records if value is None] == deleted + [b"g|g"] * emptied

    def test_an_unreadable_offset_meets_no_condition(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")

        request = committing("g", p0=9, p1=77)._replace(expected={("t", 0): -1})
        assert shard.commit(request, NOW).response.errors == {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}
