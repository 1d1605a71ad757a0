"""Responses of a shard to fetches and deletions.

Tests that mention broker 3.9.1 expect the behaviour that was observed on such a broker.
"""

from __future__ import annotations

from typing import Any

import pytest
from scenarios.plain_format import PlainFormat
from shards import ABSENT, NOW, acknowledge, committed, committing, fetched, offsets

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.manager.protocol_values import DeleteResponse, FetchRequest
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.shard import Shard, ShardLimits
from offsetmgr.records.base import OffsetKey


@pytest.fixture
def shard() -> Shard:
    return Shard(0, PlainFormat(), ShardLimits())


class TestFetching:
    def test_a_partition_without_a_commit_is_absent(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert fetched(shard, "g", 1) == ABSENT
        assert fetched(shard, "g", 0, "other") == ABSENT
        assert fetched(shard, "other", 0) == ABSENT
        assert shard.fetch(FetchRequest("other")).topics == []

    def test_a_fetch_of_all_topics_is_sorted(self, shard: Shard) -> None:
        committed(shard, "g", topic="z", p9=1, p10=2)
        committed(shard, "g", topic="a", p1=3, p0=4)

        assert shard.fetch(FetchRequest("g")).topics == [
            ("a", [(0, 4, -1, "", 0), (1, 3, -1, "", 0)]),
            ("z", [(9, 1, -1, "", 0), (10, 2, -1, "", 0)]),
        ]

    def test_responses_keep_the_order_of_the_request(self, shard: Shard) -> None:
        committed(shard, "g", p0=1, p1=2)

        assert shard.fetch(FetchRequest("g", [("u", [3]), ("t", [1, 7, 0])])).topics == [
            ("u", [(3, -1, -1, "", 0)]),
            ("t", [(1, 2, -1, "", 0), (7, -1, -1, "", 0), (0, 1, -1, "", 0)]),
        ]

    def test_a_dump_is_sorted(self, shard: Shard) -> None:
        for group in ("b", "a"):
            committed(shard, group, p2=1, p0=2)

        keys = [key for key, _ in shard.entries()]
        assert keys == [OffsetKey(group, "t", partition) for group in ("a", "b") for partition in (0, 2)]


class TestDeleting:
    def test_single_offsets_are_deleted(self, shard: Shard) -> None:
        """As broker 3.9.1: an absent offset is not an error."""
        committed(shard, "g", p0=1, p1=2)
        prepared = shard.delete_offsets("g", [("t", [1, 9]), ("nope", [0])])

        assert (prepared.response.error, prepared.response.errors) == (0, {})
        assert prepared.records == [(b"o|g|t|1", None)]
        assert fetched(shard, "g", 1)[0] == 2
        acknowledge(shard, prepared)
        assert offsets(shard, "g") == {("t", 0): 1}
        assert shard.offset_count == 1

    def test_deletions_of_unknown_groups_are_rejected(self, shard: Shard) -> None:
        """As broker 3.9.1: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND."""

        def refused(response: Any) -> CoordinatorResult[Any]:
            return CoordinatorResult(response, (), ())

        assert shard.delete_offsets("", [("t", [0])]) == refused(DeleteResponse(ErrorCode.INVALID_GROUP_ID))
        assert shard.delete_offsets("g", [("t", [0])]) == refused(DeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND))
        assert shard.delete_group("g") == refused(ErrorCode.GROUP_ID_NOT_FOUND)
        assert shard.delete_group("") == refused(ErrorCode.GROUP_ID_NOT_FOUND)

    def test_a_group_ends_with_its_last_offset(self, shard: Shard) -> None:
        """As broker 3.9.1."""
        committed(shard, "g", p0=1)
        acknowledge(shard, shard.delete_offsets("g", [("t", [0])]))

        assert not shard.has_group("g")
        assert shard.delete_group("g").response == ErrorCode.GROUP_ID_NOT_FOUND

    @pytest.mark.parametrize(
        ("partitions", "with_record"), [([0], False), ([1, 9], False), ([0, 1], True), ([0, 1, 9], True)]
    )
    def test_the_last_offset_takes_the_group_s_record_with_it(
        self, shard: Shard, partitions: list[int], with_record: bool
    ) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=1, p1=2)._replace(generation=1), NOW))
        records = shard.delete_offsets("g", [("t", partitions)]).records

        assert ((b"g|g", None) in records) is with_record

    def test_a_group_is_deleted_with_all_its_offsets(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        committed(shard, "g", topic="u", p3=1)
        committed(shard, "other", p0=1)
        prepared = shard.delete_group("g")
        acknowledge(shard, prepared)

        assert prepared.response == 0
        assert prepared.records == [(b"o|g|t|0", None), (b"o|g|u|3", None)]
        assert [*shard.groups()] == ["other"]

    def test_the_group_with_the_empty_name_can_be_deleted(self, shard: Shard) -> None:
        """As broker 3.9.1."""
        committed(shard, "", p0=1)
        assert shard.delete_group("").response == 0

    def test_commits_in_flight_are_deleted_too(self, shard: Shard) -> None:
        """Otherwise one commit would be half deleted: its records precede the tombstones."""
        committed(shard, "g", p0=1)
        commit = shard.commit(committing("g", p0=2, p1=3), NOW)
        deletion = shard.delete_group("g")
        acknowledge(shard, commit)
        acknowledge(shard, deletion)

        assert not shard.has_group("g")

    def test_a_group_with_only_a_commit_in_flight_can_be_deleted(self, shard: Shard) -> None:
        commit = shard.commit(committing("g", p0=2), NOW)
        deletion = shard.delete_offsets("g", [("t", [0])])
        acknowledge(shard, commit)
        acknowledge(shard, deletion)

        assert deletion.response.error == 0
        assert not shard.has_group("g")

    def test_unreadable_offsets_can_be_deleted(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")
        fetched(shard, "g", 0)
        acknowledge(shard, shard.delete_group("g"))

        assert fetched(shard, "g", 0) == ABSENT
        assert shard.problems == ()

    def test_a_commit_after_a_deletion_creates_the_group_again(self, shard: Shard) -> None:
        committed(shard, "g", p0=1, p1=1)
        acknowledge(shard, shard.delete_group("g"))
        committed(shard, "g", p1=8)
        shard.replay(shard.position, b"o|g|t|2", b"9,-1,0,-,")

        assert offsets(shard, "g") == {("t", 1): 8, ("t", 2): 9}
        assert shard.offset_count == 2
