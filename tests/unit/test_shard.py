"""The shard's semantics, one at a time, with records in plain text (`scenarios.plain_format`).

What broker 3.9.1 does was tried on it; tests that say so expect the same.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios.plain_format import PlainFormat

from offsetmgr.manager.expiration import HOUR_MS
from offsetmgr.manager.requests import CommitRequest, CommitResponse, FetchRequest
from offsetmgr.manager.shard import Prepared, Shard, ShardLimits
from offsetmgr.records.base import OffsetKey, OffsetValue, OtherFormat
from offsetmgr.records.kafka import KafkaFormat

DAY_MS = 24 * HOUR_MS
NOW = 1_800_000_000_000
ABSENT = (-1, -1, "", 0)


@pytest.fixture
def shard() -> Shard:
    return Shard(0, PlainFormat(), ShardLimits())


def committing(group: str, *, topic: str = "t", **offsets: int) -> CommitRequest:
    """``committing("g", p0=5)``."""
    return CommitRequest(group, [(topic, [(int(name[1:]), offset, -1, "") for name, offset in offsets.items()])])


def acknowledge(shard: Shard, prepared: Prepared) -> None:
    shard.acknowledged(prepared, shard.position)


def committed(shard: Shard, group: str, *, topic: str = "t", now: int = NOW, **offsets: int) -> None:
    """Commits and acknowledges."""
    acknowledge(shard, shard.commit(committing(group, topic=topic, **offsets), now))


def fetched(shard: Shard, group: str, partition: int, topic: str = "t") -> tuple[int, int, str, int]:
    """Offset, leader epoch, metadata, error."""
    [(_, [(_, *answer)])] = shard.fetch(FetchRequest(group, [(topic, [partition])])).topics
    return tuple(answer)


def offsets(shard: Shard, group: str) -> Mapping[tuple[str, int], int]:
    """All that a fetch of everything gives."""
    return {(t, p): offset for t, ps in shard.fetch(FetchRequest(group)).topics for p, offset, _, _, _ in ps}


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
        shard.discarded(shard.commit(committing("g", p0=6, p1=1), NOW))

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

    def test_any_offset_is_taken(self, shard: Shard) -> None:
        """As broker 3.9.1, negative ones among them."""
        committed(shard, "g", p0=-1, p1=-5, p2=0)

        assert offsets(shard, "g") == {("t", 0): -1, ("t", 1): -5, ("t", 2): 0}

    @pytest.mark.parametrize(
        ("metadata", "error"),
        [("a" * 4096, 0), ("a" * 4097, 12), ("é" * 4096, 0), ("é" * 4097, 12), ("😀" * 2048, 0), ("😀" * 2049, 12)],
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

        assert prepared.response.errors == {("t", 0): 12}
        assert not prepared.records

    def test_the_empty_group_takes_commits_from_nobody_s_member(self, shard: Shard) -> None:
        """As broker 3.9.1: ILLEGAL_GENERATION where the group is unknown, else UNKNOWN_MEMBER_ID."""
        assert shard.commit(committing("", p0=1)._replace(generation=5, member_id="m"), NOW).response.error == 22
        committed(shard, "", p0=1)
        assert shard.commit(committing("", p0=2)._replace(generation=5, member_id="m"), NOW).response.error == 25
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
        shard = Shard(0, KafkaFormat(), ShardLimits())

        assert shard.commit(committing("g" * 40_000, p0=1), NOW).response == CommitResponse(28)


class TestConditions:
    """`CommitRequest.expected`: the offset that must be committed, -1 for none; 55 where it is not."""

    def commit(self, shard: Shard, expected: int, new: int) -> Prepared[CommitResponse]:
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

        assert prepared.response == CommitResponse(0, {("t", 0): 55})
        assert offsets(shard, "g") == {("t", 1): 77} | ({} if before is None else {("t", 0): before})

    def test_one_on_a_partition_with_a_commit_in_flight_cannot_be_told(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        under_way = shard.commit(committing("g", p0=6), NOW)

        assert self.commit(shard, 5, 9).response.errors == {("t", 0): 55}
        shard.discarded(under_way)
        assert self.commit(shard, 5, 9).response.errors == {}

    def test_nor_on_one_whose_deletion_is_in_flight(self, shard: Shard) -> None:
        committed(shard, "g", p0=5)
        shard.delete_group("g")

        assert self.commit(shard, 5, 9).response.errors == {("t", 0): 55}

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

        assert shard.commit(request, NOW) == Prepared(CommitResponse(), [], ("g",), [])

    def test_the_last_deletion_takes_the_group_s_record_with_it(self, shard: Shard) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=5)._replace(generation=1), NOW))
        prepared = shard.commit(committing("g", p0=-1)._replace(expected={("t", 0): 5}), NOW)

        assert prepared.records == [(b"o|g|t|0", None), (b"g|g", None)]

    def test_an_unreadable_offset_is_equal_to_nothing(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")

        assert self.commit(shard, -1, 9).response.errors == {("t", 0): -1}


class TestFetching:
    def test_nothing_committed(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert fetched(shard, "g", 1) == ABSENT
        assert fetched(shard, "g", 0, "other") == ABSENT
        assert fetched(shard, "other", 0) == ABSENT
        assert shard.fetch(FetchRequest("other")).topics == []

    def test_everything_is_sorted(self, shard: Shard) -> None:
        committed(shard, "g", topic="z", p9=1, p10=2)
        committed(shard, "g", topic="a", p1=3, p0=4)

        assert shard.fetch(FetchRequest("g")).topics == [
            ("a", [(0, 4, -1, "", 0), (1, 3, -1, "", 0)]),
            ("z", [(9, 1, -1, "", 0), (10, 2, -1, "", 0)]),
        ]

    def test_answers_keep_the_order_of_the_request(self, shard: Shard) -> None:
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
    def test_single_offsets(self, shard: Shard) -> None:
        """As broker 3.9.1: what is absent is no error."""
        committed(shard, "g", p0=1, p1=2)
        prepared = shard.delete_offsets("g", [("t", [1, 9]), ("nope", [0])])

        assert (prepared.response.error, prepared.response.errors) == (0, {})
        assert prepared.records == [(b"o|g|t|1", None)]
        assert fetched(shard, "g", 1)[0] == 2
        acknowledge(shard, prepared)
        assert offsets(shard, "g") == {("t", 0): 1}
        assert shard.offset_count == 1

    def test_refusals(self, shard: Shard) -> None:
        """As broker 3.9.1: INVALID_GROUP_ID, GROUP_ID_NOT_FOUND."""
        assert shard.delete_offsets("", [("t", [0])]).response.error == 24
        assert shard.delete_offsets("g", [("t", [0])]).response.error == 69
        assert shard.delete_group("g").response == 69
        assert shard.delete_group("").response == 69

    def test_with_its_last_offset_a_group_is_gone(self, shard: Shard) -> None:
        """As broker 3.9.1."""
        committed(shard, "g", p0=1)
        acknowledge(shard, shard.delete_offsets("g", [("t", [0])]))

        assert not shard.has_group("g")
        assert shard.delete_group("g").response == 69

    def test_a_group(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        committed(shard, "g", topic="u", p3=1)
        committed(shard, "other", p0=1)
        prepared = shard.delete_group("g")
        acknowledge(shard, prepared)

        assert prepared.response == 0
        assert prepared.records == [(b"o|g|t|0", None), (b"o|g|u|3", None)]
        assert [*shard.groups()] == ["other"]

    def test_the_empty_group_too(self, shard: Shard) -> None:
        """As broker 3.9.1."""
        committed(shard, "", p0=1)
        assert shard.delete_group("").response == 0

    def test_commits_in_flight_are_deleted_as_well(self, shard: Shard) -> None:
        """Or one commit would be half deleted: its records stand before the tombstones."""
        committed(shard, "g", p0=1)
        commit = shard.commit(committing("g", p0=2, p1=3), NOW)
        deletion = shard.delete_group("g")
        acknowledge(shard, commit)
        acknowledge(shard, deletion)

        assert not shard.has_group("g")

    def test_a_group_of_which_only_a_commit_in_flight_is_known(self, shard: Shard) -> None:
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

    def test_a_commit_after_a_deletion_begins_anew(self, shard: Shard) -> None:
        committed(shard, "g", p0=1, p1=1)
        acknowledge(shard, shard.delete_group("g"))
        committed(shard, "g", p1=8)
        shard.replay(shard.position, b"o|g|t|2", b"9,-1,0,-,")

        assert offsets(shard, "g") == {("t", 1): 8, ("t", 2): 9}
        assert shard.offset_count == 2


WEEK = 7 * DAY_MS
ACTIVITY = 6 * HOUR_MS


def never_asked(group: str) -> bool:
    raise AssertionError(f"asked about {group}")


def expire(shard: Shard, now: int, *, active: bool | None = False) -> Mapping[bytes, bytes | None]:
    """The records of a pass, which is not acknowledged."""
    prepared = shard.expire(now, lambda group: active)
    shard.discarded(prepared)
    return dict(prepared.records)


class TestExpiry:
    def test_a_retention_after_the_commit(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        committed(shard, "g", p1=1, now=NOW + 1)

        assert expire(shard, NOW + WEEK - 1) == {}
        assert expire(shard, NOW + WEEK) == {b"o|g|t|0": None}
        assert expire(shard, NOW + WEEK + 1) == {b"o|g|t|0": None, b"o|g|t|1": None}
        assert offsets(shard, "g") == {("t", 0): 1, ("t", 1): 1}

    def test_what_expired_is_absent_once_acknowledged(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        prepared = shard.expire(NOW + WEEK, lambda group: False)
        acknowledge(shard, prepared)

        assert not shard.has_group("g")
        assert (prepared.response.offsets, prepared.response.emptied, prepared.response.groups) == (1, 1, 1)

    @pytest.mark.parametrize("retention", [1000, 30 * DAY_MS])
    def test_a_retention_of_its_own_comes_first(self, shard: Shard, retention: int) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(retention_ms=retention), NOW))

        assert expire(shard, NOW + retention - 1) == {}
        assert expire(shard, NOW + retention) == {b"o|g|t|0": None}
        assert expire(shard, NOW + retention, active=None) == {}

    @pytest.mark.parametrize("active", [True, None])
    def test_never_while_the_group_has_members_or_may_have(self, shard: Shard, active: bool | None) -> None:
        committed(shard, "g", p0=1)

        assert b"o|g|t|0" not in expire(shard, NOW + 10 * WEEK, active=active)

    def test_nobody_is_asked_about_groups_of_which_nothing_is_due(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert not shard.expirable("g", NOW + WEEK - 1)
        assert shard.expire(NOW + WEEK - 1, never_asked).records == []
        assert shard.expirable("g", NOW + WEEK)

    def test_of_unreadable_offsets_nobody_knows_the_age(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")
        shard.replay(1, b"o|g|t|1", b"1,-1,%d,-," % NOW)

        assert expire(shard, NOW + 10 * WEEK) == {b"o|g|t|1": None}
        assert len(shard.problems) == 1

    def test_a_group_with_something_in_flight_is_left_alone(self, shard: Shard) -> None:
        """A tombstone prepared now would stand behind the commit and delete it."""
        committed(shard, "g", p0=1)
        later = NOW + WEEK
        under_way = shard.commit(committing("g", p0=2), later)
        prepared = shard.expire(later, never_asked)

        assert (prepared.records, prepared.response.busy) == ([], 1)
        acknowledge(shard, under_way)
        assert expire(shard, later) == {}
        assert fetched(shard, "g", 0)[0] == 2

    def test_only_the_groups_asked_for(self, shard: Shard) -> None:
        for group in "abc":
            committed(shard, group, p0=1)
        prepared = shard.expire(NOW + WEEK, lambda group: False, ["a", "c", "gone"])

        assert [*prepared.groups] == ["a", "c"]

    def test_no_more_at_once_than_the_limit(self) -> None:
        shard = Shard(0, PlainFormat(), ShardLimits(tombstones=3))
        committed(shard, "a", p0=1, p1=1)
        committed(shard, "b", p0=1, p1=1)
        sizes = []
        while shard.offset_count:
            prepared = shard.expire(NOW + WEEK, lambda group: False)
            sizes.append((len(prepared.records), prepared.response.cut))
            acknowledge(shard, prepared)

        assert sizes == [(3, True), (1, False)]


class TestExpiryOfGroupsThatHadMembers:
    """Their offsets count from when they were last known to have members, in a record that commits of members and
    passes renew every six hours; so they are kept that much longer than the retention."""

    @pytest.fixture
    def consumed(self, shard: Shard) -> Shard:
        """A group whose member has committed once."""
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(generation=3, member_id="m"), NOW))
        return shard

    def test_a_member_s_commit_is_recorded(self, consumed: Shard) -> None:
        assert consumed.last_active("g") == NOW

    def test_but_not_every_one(self, consumed: Shard) -> None:
        again = committing("g", p0=2)._replace(generation=3, member_id="m")

        assert len(consumed.commit(again, NOW + ACTIVITY - 1).records) == 1
        assert consumed.commit(again, NOW + ACTIVITY).records[1:] == [(b"g|g", b"%d" % (NOW + ACTIVITY))]

    def test_a_commit_by_nobody_s_member_is_not(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert shard.last_active("g") is None

    def test_while_it_has_members_passes_record_that(self, consumed: Shard) -> None:
        assert consumed.expire(NOW + ACTIVITY - 1, never_asked).records == []
        assert expire(consumed, NOW + ACTIVITY, active=True) == {b"g|g": b"%d" % (NOW + ACTIVITY)}
        assert expire(consumed, NOW + ACTIVITY, active=None) == {}

    def test_an_old_idle_partition_lives_as_long_as_the_group_was_consumed(self, consumed: Shard) -> None:
        left = NOW + 10 * WEEK
        acknowledge(consumed, consumed.expire(left, lambda group: True))

        assert expire(consumed, left + WEEK + ACTIVITY - 1) == {}
        assert expire(consumed, left + WEEK + ACTIVITY) == {b"o|g|t|0": None, b"g|g": None}

    def test_a_commit_after_the_last_member_left_counts_from_itself(self, consumed: Shard) -> None:
        """Kafka counts it from when the group became empty."""
        committed(consumed, "g", p1=5, now=NOW + WEEK)

        assert expire(consumed, NOW + WEEK + ACTIVITY) == {b"o|g|t|0": None}

    def test_members_that_never_committed_are_recorded_when_it_matters(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert expire(shard, NOW + WEEK, active=True) == {b"g|g": b"%d" % (NOW + WEEK)}

    def test_what_is_left_of_the_record_alone_goes_too(self, shard: Shard) -> None:
        shard.replay(0, b"g|g", b"%d" % NOW)

        assert expire(shard, NOW + WEEK + ACTIVITY - 1) == {}
        assert expire(shard, NOW + WEEK + ACTIVITY) == {b"g|g": None}
        assert not shard.has_group("g")
        assert [*shard.groups()] == []

    def test_with_an_unreadable_record_nobody_knows_when_it_had_members(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        shard.replay(1, b"g|g", b"junk")

        assert expire(shard, NOW + 10 * WEEK) == {}
        assert shard.problems == ("group 'g': group: b'junk'",)
        acknowledge(shard, shard.expire(NOW + 10 * WEEK, lambda group: True))
        assert shard.last_active("g") == NOW + 10 * WEEK
        assert shard.problems == ()

    def test_deleting_the_group_deletes_its_record(self, consumed: Shard) -> None:
        assert consumed.delete_group("g").records == [(b"o|g|t|0", None), (b"g|g", None)]


class TestReplaying:
    def test_what_was_replayed_already_is_ignored(self, shard: Shard) -> None:
        shard.replay(5, b"o|g|t|0", b"7,-1,0,-,")
        shard.replay(5, b"o|g|t|0", b"8,-1,0,-,")
        shard.replay(2, b"o|g|t|0", b"9,-1,0,-,")
        shard.replay_newest({b"o|g|t|0": b"10,-1,0,-,"}, 5)

        assert (fetched(shard, "g", 0)[0], shard.position) == (7, 6)

    def test_an_append_that_was_read_from_the_log_before_it_was_acknowledged(self, shard: Shard) -> None:
        prepared = shard.commit(committing("g", p0=1, p1=2, p2=3), NOW)
        shard.replay(0, *prepared.records[0])
        shard.replay(1, *prepared.records[1])
        shard.acknowledged(prepared, 0)

        assert offsets(shard, "g") == {("t", 0): 1, ("t", 1): 2, ("t", 2): 3}
        assert shard.position == 3

    def test_an_acknowledgement_after_a_later_one_was_read_takes_nothing_back(self, shard: Shard) -> None:
        prepared = shard.commit(committing("g", p0=1), NOW)
        shard.replay(0, *prepared.records[0])
        shard.replay(1, b"o|g|t|0", b"2,-1,0,-,")
        shard.acknowledged(prepared, 0)

        assert (fetched(shard, "g", 0)[0], shard.position) == (2, 2)

    def test_unknown_versions_are_counted_and_the_rest_is_read(self, shard: Shard) -> None:
        shard.replay(0, b"v7|x", b"?")
        shard.replay_newest({b"v7|y": b"?", b"v9|x": None, b"o|g|t|0": b"7,-1,0,-,"}, 4)

        assert shard.unknown_versions == {7: 2, 9: 1}
        assert fetched(shard, "g", 0)[0] == 7

    def test_an_unreadable_key_is_named(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|x", b"7,-1,0,-,")
        shard.replay_newest({b"o|too|few": b"", b"o|g|0": b"7,-1,0,-,", b"?": b""}, 4)

        assert shard.unreadable == 4
        assert [problem.split(":")[0] for problem in shard.problems] == [
            f"key {key.hex()}" for key in (b"o|g|t|x", b"o|too|few", b"o|g|0", b"?")
        ]
        assert (shard.position, shard.offset_count) == (4, 0)

    @pytest.mark.parametrize("value", [b"junk", b"version 99"])
    def test_an_unreadable_value_is_an_error_and_never_absent(self, shard: Shard, value: bytes) -> None:
        committed(shard, "g", p0=1)
        shard.replay(1, b"o|g|t|1", value)

        assert shard.fetch(FetchRequest("g")).topics == [("t", [(0, 1, -1, "", 0), (1, -1, -1, "", -1)])]
        assert fetched(shard, "g", 1) == (-1, -1, "", -1)
        assert shard.unreadable == 1
        [problem] = shard.problems
        assert problem.startswith("g/t-1: value")
        assert [key.partition for key, _ in shard.entries()] == [0]

    @pytest.mark.parametrize("how", ["commit", "replay", "load", "tombstone"])
    def test_a_problem_ends_when_its_key_is_overwritten(self, shard: Shard, how: str) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")
        assert fetched(shard, "g", 0)[3] == -1
        if how == "commit":
            committed(shard, "g", p0=1)
        elif how == "replay":
            shard.replay(1, b"o|g|t|0", b"1,-1,0,-,")
        elif how == "load":
            shard.replay_newest({b"o|g|t|0": b"1,-1,0,-,"}, 2)
        else:
            shard.replay(1, b"o|g|t|0", None)

        assert fetched(shard, "g", 0)[3] == 0
        assert shard.problems == ()

    def test_a_key_of_the_other_format_ends_the_load(self, shard: Shard) -> None:
        with pytest.raises(OtherFormat):
            shard.replay(0, b"other|x", b"")
        with pytest.raises(OtherFormat):
            shard.replay_newest({b"o|g|t|0": b"7,-1,0,-,", b"other|x": b""}, 9)

        assert shard.position == 0

    def test_a_large_load_in_parts(self, shard: Shard) -> None:
        shard.replay_newest({b"o|g|t|0": b"7,-1,0,-,"}, shard.position)
        shard.replay_newest({b"o|g|t|1": b"8,-1,0,-,"}, 40)

        assert offsets(shard, "g") == {("t", 0): 7, ("t", 1): 8}
        assert shard.position == 40

    def test_two_spellings_of_a_key_are_one_offset(self, shard: Shard) -> None:
        """As versions 0 and 1 of Kafka's keys."""
        shard.replay(0, b"O|g|t|0", b"7,-1,0,-,")
        shard.replay(1, b"o|g|t|0", b"8,-1,0,-,")
        shard.replay(2, b"O|g|t|1", b"9,-1,0,-,")
        assert (offsets(shard, "g"), shard.offset_count) == ({("t", 0): 8, ("t", 1): 9}, 2)

        acknowledge(shard, shard.delete_group("g"))
        assert (shard.offset_count, [*shard.groups()]) == (0, [])

        for key in (b"O|g|t|2", b"o|g|t|3"):
            shard.replay(shard.position, key, b"7,-1,0,-,")
        assert offsets(shard, "g") == {("t", 2): 7, ("t", 3): 7}

    def test_tombstones_for_what_is_not_there(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        for key in (b"o|g|t|1", b"o|h|t|0", b"g|h"):
            shard.replay(shard.position, key, None)

        assert (shard.offset_count, [*shard.groups()]) == (1, ["g"])


KEYS = st.sampled_from(
    [b"o|%s|%s|%d" % (group, topic, p) for group in (b"g", b"h") for topic in (b"t", b"u") for p in range(3)]
    + [b"O|g|t|0", b"g|g", b"g|h", b"v7|x", b"o|broken", b"?"]
)
VALUES = st.sampled_from([None, b"1,-1,0,-,", b"2,3,5,9,m", b"junk", b"77"])


class TestEveryWayOfReplaying:
    """Gives the same: one by one, newest values only, and as an owner's own commits."""

    @given(st.lists(st.tuples(KEYS, VALUES), max_size=30), st.integers(0, 30))
    def test_one_by_one_or_in_bulk(self, records: list[tuple[bytes, bytes | None]], loaded: int) -> None:
        records = [(key, value) for key, value in records if not key.startswith(b"O")]
        single, bulk = (Shard(0, PlainFormat(), ShardLimits()) for _ in range(2))
        for offset, (key, value) in enumerate(records):
            single.replay(offset, key, value)
        bulk.replay_newest(dict(records[:loaded]), min(loaded, len(records)))
        bulk.replay_newest(dict(records[loaded:]), len(records))

        assert contents(bulk) == contents(single)

    @given(
        st.lists(
            st.dictionaries(
                st.tuples(st.sampled_from("tu"), st.integers(0, 3)), st.integers(0, 9), min_size=1, max_size=5
            ),
            max_size=8,
        )
    )
    def test_as_the_owner_or_as_a_standby(self, commits: list[dict[tuple[str, int], int]]) -> None:
        owner, standby = (Shard(0, PlainFormat(), ShardLimits()) for _ in range(2))
        for wanted in commits:
            topics = [(topic, [(p, offset, -1, "")]) for (topic, p), offset in wanted.items()]
            prepared = owner.commit(CommitRequest("g", topics, generation=1, member_id="m"), NOW)
            for offset, (key, value) in enumerate(prepared.records, owner.position):
                standby.replay(offset, key, value)
            acknowledge(owner, prepared)

        assert contents(owner) == contents(standby)


def contents(shard: Shard) -> object:
    """All that can be told apart from outside."""
    fetches = {group: shard.fetch(FetchRequest(group)) for group in shard.groups()}
    activity = {group: shard.last_active(group) for group in ("g", "h")}
    return fetches, activity, shard.offset_count, shard.position, [*shard.entries()]
