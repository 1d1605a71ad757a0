"""Commits to a shard, also conditional ones, with records in plain text (`scenarios.plain_format`).

Tests that mention broker 3.9.1 expect the behaviour that was observed on such a broker.
"""

from __future__ import annotations

import pytest
from scenarios.plain_format import PlainFormat
from shards import ABSENT, NOW, acknowledge, committed, committing, fetched, offsets

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse
from offsetmgr.manager.shard import CoordinatorResult, Shard, ShardLimits
from offsetmgr.records.base import OffsetKey, OffsetValue
from offsetmgr.records.kafka import KafkaRecordFormat


@pytest.fixture
def shard() -> Shard:
    return Shard(0, PlainFormat(), ShardLimits())


class TestCommitting:
    def test_a_commit_is_visible_when_it_is_acknowledged_and_not_before(self, shard: Shard) -> None:
        prepared = shard.commit(CommitRequest("g", [("t", [(0, 5, 3, "m")])]), NOW)

        assert prepared.response == CommitResponse()
        assert prepared.records == [(b"o|g|t|0", b"5,3,%d,-,m" % NOW)]
        assert fetched(shard, "g", 0) == ABSENT

        shard.acknowledged(prepared, 7)

        assert fetched(shard, "g", 0) == (5, 3, "m", 0)
        assert (shard.position, shard.offset_count, [*shard.groups()]) == (8, 1, ["g"])

    def test_a_discarded_commit_leaves_no_trace(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        shard.on_discarded(shard.commit(committing("g", p0=6, p1=1), NOW))

        assert offsets(shard, "g") == {("t", 0): 5}

    def test_the_last_acknowledged_commit_wins(self, shard: Shard) -> None:
        first = shard.commit(committing("g", p0=9), NOW)
        second = shard.commit(committing("g", p0=4), NOW)
        shard.acknowledged(first, 0)
        shard.acknowledged(second, 1)

        assert fetched(shard, "g", 0)[0] == 4

    def test_a_partition_that_occurs_twice_in_one_commit_gets_the_later_offset(self, shard: Shard) -> None:
        """As broker 3.9.1."""
        acknowledge(shard, shard.commit(CommitRequest("g", [("t", [(0, 1, -1, ""), (0, 2, -1, "")])]), NOW))

        assert fetched(shard, "g", 0)[0] == 2
        assert shard.offset_count == 1

    def test_only_negative_partitions_and_offsets_are_rejected(self, shard: Shard) -> None:
        """Broker 3.9.1 accepts a negative offset, and a fetch would return it as "no committed offset"."""
        committed(shard, "g", p1=8)
        prepared = shard.commit(
            CommitRequest(
                "g",
                [
                    ("t", [(0, 0, -1, ""), (-1, 2, -1, ""), (1, -1, -1, ""), (-3, -3, -1, "")]),
                    ("u", [(0, -(2**63), -1, "m")]),
                    ("v", [(2**31 - 1, 2**63 - 1, -1, "")]),
                ],
            ),
            NOW,
        )
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse(0, {("t", -1): 3, ("t", 1): 42, ("t", -3): 3, ("u", 0): 42})
        assert offsets(shard, "g") == {("t", 0): 0, ("t", 1): 8, ("v", 2**31 - 1): 2**63 - 1}

    def test_a_commit_of_only_negative_offsets_writes_nothing(self, shard: Shard) -> None:
        prepared = shard.commit(committing("g", p0=-1)._replace(generation=3, member_id="m"), NOW)

        assert prepared.response == CommitResponse(0, {("t", 0): 42})
        assert not prepared.records
        assert not shard.has_group("g")

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
        prepared = shard.commit(CommitRequest("g", [("t", [(0, 1, -1, metadata), (1, 2, -1, "")])]), NOW)
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse(0, {("t", 0): error} if error else {})
        assert fetched(shard, "g", 0) == (ABSENT if error else (1, -1, metadata, 0))
        assert fetched(shard, "g", 1)[0] == 2

    def test_a_commit_without_a_valid_partition_writes_no_record(self, shard: Shard) -> None:
        prepared = shard.commit(CommitRequest("g", [("t", [(0, 1, -1, "a" * 5000)])]), NOW)

        assert prepared.response.errors == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert not prepared.records

    def test_the_group_with_the_empty_name_accepts_no_commits_of_members(self, shard: Shard) -> None:
        """As broker 3.9.1: ILLEGAL_GENERATION if the group is unknown, otherwise UNKNOWN_MEMBER_ID."""
        assert (
            shard.commit(committing("", p0=1)._replace(generation=5, member_id="m"), NOW).response.error
            == ErrorCode.ILLEGAL_GENERATION
        )
        committed(shard, "", p0=1)
        assert (
            shard.commit(committing("", p0=2)._replace(generation=5, member_id="m"), NOW).response.error
            == ErrorCode.UNKNOWN_MEMBER_ID
        )
        acknowledge(shard, shard.commit(committing("", p0=3)._replace(member_id="m"), NOW))
        assert fetched(shard, "", 0)[0] == 3

    @pytest.mark.parametrize(
        ("retention", "expire"),
        [(0, NOW), (1000, NOW + 1000), (-5, NOW - 5), (2**63 - 1, 2**63 - 1), (-(2**63), 0)],
    )
    def test_a_retention_in_the_commit_becomes_an_expiration_time(
        self, shard: Shard, retention: int, expire: int
    ) -> None:
        """With the largest retention, Kafka overflows and expires the commit at once. Here the commit never expires."""
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(retention_ms=retention), NOW))

        assert [*shard.entries()] == [(OffsetKey("g", "t", 0), OffsetValue(1, None, "", NOW, expire))]

    def test_a_name_that_is_too_long_for_a_record_is_rejected(self) -> None:
        shard = Shard(0, KafkaRecordFormat(), ShardLimits())

        assert shard.commit(committing("g" * 40_000, p0=1), NOW).response == CommitResponse(
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        )


class TestConditions:
    """`CommitRequest.expected`: the offset that must be committed, -1 for no offset. The error is 55 if it is not."""

    def commit(self, shard: Shard, expected: int, new: int) -> CoordinatorResult[CommitResponse]:
        request = committing("g", p0=new, p1=77)._replace(expected={("t", 0): expected})
        return shard.commit(request, NOW)

    @pytest.mark.parametrize(("before", "expected"), [(5, 5), (0, 0), (None, -1)])
    def test_a_condition_that_holds_lets_the_commit_pass(self, shard: Shard, before: int | None, expected: int) -> None:
        if before is not None:
            committed(shard, "g", p0=before)
        prepared = self.commit(shard, expected, 9)
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse()
        assert offsets(shard, "g") == {("t", 0): 9, ("t", 1): 77}

    @pytest.mark.parametrize(("before", "expected"), [(5, 4), (5, -1), (None, 0), (None, 5)])
    def test_a_condition_that_does_not_hold_fails_its_partition_alone(
        self, shard: Shard, before: int | None, expected: int
    ) -> None:
        if before is not None:
            committed(shard, "g", p0=before)
        prepared = self.commit(shard, expected, 9)
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse(0, {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED})
        assert offsets(shard, "g") == {("t", 1): 77} | ({} if before is None else {("t", 0): before})

    def test_a_condition_on_a_partition_with_a_commit_in_flight_cannot_be_checked(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        in_flight = shard.commit(committing("g", p0=6), NOW)

        assert self.commit(shard, 5, 9).response.errors == {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED}
        shard.on_discarded(in_flight)
        assert self.commit(shard, 5, 9).response.errors == {}

    def test_a_condition_on_a_partition_with_a_deletion_in_flight_cannot_be_checked(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        shard.delete_group("g")

        assert self.commit(shard, 5, 9).response.errors == {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED}

    def test_a_commit_in_flight_to_another_partition_does_not_matter(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        shard.commit(committing("g", p3=6), NOW)

        assert self.commit(shard, 5, 9).response.errors == {}

    def test_a_new_offset_of_minus_one_deletes_the_offset(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        prepared = self.commit(shard, 5, -1)
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse()
        assert offsets(shard, "g") == {("t", 1): 77}

    def test_deleting_an_absent_offset_needs_no_record(self, shard: Shard) -> None:
        request = committing("g", p0=-1)._replace(expected={("t", 0): -1})

        assert shard.commit(request, NOW) == CoordinatorResult(CommitResponse(), [], ("g",), [])

    def test_the_last_deletion_also_deletes_the_groups_record(self, shard: Shard) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=5)._replace(generation=1), NOW))
        prepared = shard.commit(committing("g", p0=-1)._replace(expected={("t", 0): 5}), NOW)

        assert prepared.records == [(b"o|g|t|0", None), (b"g|g", None)]

    @pytest.mark.parametrize("new_offsets", [{"p0": -1}, {"p0": -1, "p1": -1, "p2": 7}])
    def test_a_deletion_keeps_the_group_s_record_while_the_group_has_an_offset(
        self, shard: Shard, new_offsets: dict[str, int]
    ) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=5, p1=6)._replace(generation=1), NOW))
        conditions = {("t", 0): 5, ("t", 1): 6}
        prepared = shard.commit(committing("g", topic="t", **new_offsets)._replace(expected=conditions), NOW)

        assert [key for key, value in prepared.records if value is None] == [
            f"o|g|t|{name[1:]}".encode() for name, offset in new_offsets.items() if offset == -1
        ]

    def test_an_unreadable_offset_meets_no_condition(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")

        assert self.commit(shard, -1, 9).response.errors == {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}
