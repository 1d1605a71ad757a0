"""Commits to a shard, conditional ones too, with records in plain text (`scenarios.plain_format`).

What broker 3.9.1 does was tried on it; tests that say so expect the same.
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
    def test_a_commit_is_seen_when_it_is_acknowledged_and_not_before(self, shard: Shard) -> None:
        prepared = shard.commit(CommitRequest("g", [("t", [(0, 5, 3, "m")])]), NOW)

        assert prepared.response == CommitResponse()
        assert prepared.records == [(b"o|g|t|0", b"5,3,%d,-,m" % NOW)]
        assert fetched(shard, "g", 0) == ABSENT

        shard.acknowledged(prepared, 7)

        assert fetched(shard, "g", 0) == (5, 3, "m", 0)
        assert (shard.position, shard.offset_count, [*shard.groups()]) == (8, 1, ["g"])

    def test_what_is_discarded_was_never_there(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        shard.on_discarded(shard.commit(committing("g", p0=6, p1=1), NOW))

        assert offsets(shard, "g") == {("t", 0): 5}

    def test_the_last_acknowledged_wins(self, shard: Shard) -> None:
        first = shard.commit(committing("g", p0=9), NOW)
        second = shard.commit(committing("g", p0=4), NOW)
        shard.acknowledged(first, 0)
        shard.acknowledged(second, 1)

        assert fetched(shard, "g", 0)[0] == 4

    def test_a_partition_twice_in_one_commit_has_the_later_offset(self, shard: Shard) -> None:
        """As broker 3.9.1."""
        acknowledge(shard, shard.commit(CommitRequest("g", [("t", [(0, 1, -1, ""), (0, 2, -1, "")])]), NOW))

        assert fetched(shard, "g", 0)[0] == 2
        assert shard.offset_count == 1

    def test_negative_partitions_and_offsets_are_refused_alone(self, shard: Shard) -> None:
        """Broker 3.9.1 takes a negative offset; a fetch would give it back as "no offset is committed"."""
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

    def test_a_commit_of_which_nothing_is_left_has_nothing_to_wait_for(self, shard: Shard) -> None:
        prepared = shard.commit(CommitRequest("g", [("t", [(0, 1, -1, "a" * 5000)])]), NOW)

        assert prepared.response.errors == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert not prepared.records

    def test_the_empty_group_takes_commits_from_no_client_s_member(self, shard: Shard) -> None:
        """As broker 3.9.1: ILLEGAL_GENERATION where the group is unknown, else UNKNOWN_MEMBER_ID."""
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
    def test_a_retention_of_its_own_becomes_a_time_to_expire(self, shard: Shard, retention: int, expire: int) -> None:
        """Kafka lets the largest retention wrap around and expires such a commit at once; here it never expires."""
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(retention_ms=retention), NOW))

        assert [*shard.entries()] == [(OffsetKey("g", "t", 0), OffsetValue(1, None, "", NOW, expire))]

    def test_a_name_that_a_record_has_no_room_for(self) -> None:
        shard = Shard(0, KafkaRecordFormat(), ShardLimits())

        assert shard.commit(committing("g" * 40_000, p0=1), NOW).response == CommitResponse(
            ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        )


class TestConditions:
    """`CommitRequest.expected`: the offset that must be committed, -1 for none; 55 where it is not."""

    def commit(self, shard: Shard, expected: int, new: int) -> CoordinatorResult[CommitResponse]:
        request = committing("g", p0=new, p1=77)._replace(expected={("t", 0): expected})
        return shard.commit(request, NOW)

    @pytest.mark.parametrize(("before", "expected"), [(5, 5), (0, 0), (None, -1)])
    def test_one_that_holds(self, shard: Shard, before: int | None, expected: int) -> None:
        if before is not None:
            committed(shard, "g", p0=before)
        prepared = self.commit(shard, expected, 9)
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse()
        assert offsets(shard, "g") == {("t", 0): 9, ("t", 1): 77}

    @pytest.mark.parametrize(("before", "expected"), [(5, 4), (5, -1), (None, 0), (None, 5)])
    def test_one_that_does_not_hold_fails_its_partition_alone(
        self, shard: Shard, before: int | None, expected: int
    ) -> None:
        if before is not None:
            committed(shard, "g", p0=before)
        prepared = self.commit(shard, expected, 9)
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse(0, {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED})
        assert offsets(shard, "g") == {("t", 1): 77} | ({} if before is None else {("t", 0): before})

    def test_one_on_a_partition_with_a_commit_in_flight_cannot_be_told(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        under_way = shard.commit(committing("g", p0=6), NOW)

        assert self.commit(shard, 5, 9).response.errors == {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED}
        shard.on_discarded(under_way)
        assert self.commit(shard, 5, 9).response.errors == {}

    def test_nor_on_one_whose_deletion_is_in_flight(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        shard.delete_group("g")

        assert self.commit(shard, 5, 9).response.errors == {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED}

    def test_a_commit_to_another_partition_in_flight_does_not_matter(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        shard.commit(committing("g", p3=6), NOW)

        assert self.commit(shard, 5, 9).response.errors == {}

    def test_a_new_offset_of_minus_one_deletes(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        prepared = self.commit(shard, 5, -1)
        acknowledge(shard, prepared)

        assert prepared.response == CommitResponse()
        assert offsets(shard, "g") == {("t", 1): 77}

    def test_deleting_what_is_not_there_needs_no_record(self, shard: Shard) -> None:
        request = committing("g", p0=-1)._replace(expected={("t", 0): -1})

        assert shard.commit(request, NOW) == CoordinatorResult(CommitResponse(), [], ("g",), [])

    def test_the_last_deletion_takes_the_group_s_record_with_it(self, shard: Shard) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=5)._replace(generation=1), NOW))
        prepared = shard.commit(committing("g", p0=-1)._replace(expected={("t", 0): 5}), NOW)

        assert prepared.records == [(b"o|g|t|0", None), (b"g|g", None)]

    @pytest.mark.parametrize("new_offsets", [{"p0": -1}, {"p0": -1, "p1": -1, "p2": 7}])
    def test_a_deletion_keeps_the_group_s_record_while_the_group_has_an_offset(
        self, shard: Shard, new_offsets: dict[str, int]
    ) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=5, p1=6)._replace(generation=1), NOW))
        conditions = {("t", 0): 5, ("t", 1): 6}
        prepared = shard.commit(committing("g", **new_offsets)._replace(expected=conditions), NOW)

        assert [key for key, value in prepared.records if value is None] == [
            f"o|g|t|{name[1:]}".encode() for name, offset in new_offsets.items() if offset == -1
        ]

    def test_an_unreadable_offset_is_equal_to_nothing(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")

        assert self.commit(shard, -1, 9).response.errors == {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR}
