"""Expiration of offsets in a shard, for groups with and without members."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from scenarios.plain_format import PlainFormat
from shards import DAY_MS, NOW, acknowledge, committed, committing, fetched, offsets

from offsetmgr.manager.expiration import HOUR_MS
from offsetmgr.manager.shard import Shard, ShardLimits


@pytest.fixture
def shard() -> Shard:
    return Shard(0, PlainFormat(), ShardLimits())


WEEK_MS = 7 * DAY_MS
ACTIVITY_MS = 6 * HOUR_MS


def fail_if_requested(group: str) -> bool:
    raise AssertionError(f"requested the members of {group}")


def expire(shard: Shard, now: int, *, active: bool | None = False) -> Mapping[bytes, bytes | None]:
    """The records of an expiration pass, which is then discarded."""
    prepared = shard.expire(now, lambda group: active)
    shard.on_discarded(prepared)
    return dict(prepared.records)


class TestExpiry:
    def test_an_offset_expires_one_retention_after_its_commit(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        committed(shard, "g", p1=1, now=NOW + 1)

        assert expire(shard, NOW + WEEK_MS - 1) == {}
        assert expire(shard, NOW + WEEK_MS) == {b"o|g|t|0": None}
        assert expire(shard, NOW + WEEK_MS + 1) == {b"o|g|t|0": None, b"o|g|t|1": None}
        assert offsets(shard, "g") == {("t", 0): 1, ("t", 1): 1}

    def test_an_expired_offset_is_absent_once_the_pass_is_acknowledged(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        prepared = shard.expire(NOW + WEEK_MS, lambda group: False)
        acknowledge(shard, prepared)

        assert not shard.has_group("g")
        assert (prepared.response.offsets, prepared.response.emptied, prepared.response.groups) == (1, 1, 1)

    @pytest.mark.parametrize("retention", [1000, 30 * DAY_MS])
    def test_a_retention_in_the_commit_takes_precedence(self, shard: Shard, retention: int) -> None:
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(retention_ms=retention), NOW))

        assert expire(shard, NOW + retention - 1) == {}
        assert expire(shard, NOW + retention) == {b"o|g|t|0": None}
        assert expire(shard, NOW + retention, active=None) == {}

    @pytest.mark.parametrize("active", [True, None])
    def test_no_offset_expires_while_the_group_has_or_may_have_members(self, shard: Shard, active: bool | None) -> None:
        committed(shard, "g", p0=1)

        assert b"o|g|t|0" not in expire(shard, NOW + 10 * WEEK_MS, active=active)

    def test_members_are_requested_only_for_groups_with_expired_offsets(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert not shard.expirable("g", NOW + WEEK_MS - 1)
        assert shard.expire(NOW + WEEK_MS - 1, fail_if_requested).records == []
        assert shard.expirable("g", NOW + WEEK_MS)

    def test_unreadable_offsets_never_expire(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")
        shard.replay(1, b"o|g|t|1", b"1,-1,%d,-," % NOW)

        assert expire(shard, NOW + 10 * WEEK_MS) == {b"o|g|t|1": None}
        assert len(shard.problems) == 1

    def test_a_group_with_a_write_in_flight_is_skipped(self, shard: Shard) -> None:
        """A tombstone prepared now would follow the commit in the log and delete it."""
        committed(shard, "g", p0=1)
        later = NOW + WEEK_MS
        in_flight = shard.commit(committing("g", p0=2), later)
        prepared = shard.expire(later, fail_if_requested)

        assert (prepared.records, prepared.response.busy) == ([], 1)
        acknowledge(shard, in_flight)
        assert expire(shard, later) == {}
        assert fetched(shard, "g", 0)[0] == 2

    def test_only_the_requested_groups_are_checked(self, shard: Shard) -> None:
        for group in "abc":
            committed(shard, group, p0=1)
        prepared = shard.expire(NOW + WEEK_MS, lambda group: False, ["a", "c", "gone"])

        assert [*prepared.groups] == ["a", "c"]

    def test_a_pass_deletes_no_more_offsets_than_the_limit(self) -> None:
        shard = Shard(0, PlainFormat(), ShardLimits(max_tombstones=3))
        committed(shard, "a", p0=1, p1=1)
        committed(shard, "b", p0=1, p1=1)
        sizes = []
        while shard.offset_count:
            prepared = shard.expire(NOW + WEEK_MS, lambda group: False)
            sizes.append((len(prepared.records), prepared.response.limit_reached))
            acknowledge(shard, prepared)

        assert sizes == [(3, True), (1, False)]


class TestExpiryOfGroupsThatHadMembers:
    """The retention counts from the last time at which the group was known to have members. A record stores that time;
    commits of members and passes renew it every six hours, so the offsets are kept that much longer."""

    @pytest.fixture
    def consumed(self, shard: Shard) -> Shard:
        """A group whose member has committed once."""
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(generation=3, member_id="m"), NOW))
        return shard

    def test_a_members_commit_is_recorded(self, consumed: Shard) -> None:
        assert consumed.last_active("g") == NOW

    def test_not_every_commit_of_a_member_is_recorded(self, consumed: Shard) -> None:
        again = committing("g", p0=2)._replace(generation=3, member_id="m")

        assert len(consumed.commit(again, NOW + ACTIVITY_MS - 1).records) == 1
        assert consumed.commit(again, NOW + ACTIVITY_MS).records[1:] == [(b"g|g", b"%d" % (NOW + ACTIVITY_MS))]

    def test_a_commit_without_a_member_is_not_recorded(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert shard.last_active("g") is None

    def test_a_pass_records_that_the_group_has_members(self, consumed: Shard) -> None:
        assert consumed.expire(NOW + ACTIVITY_MS - 1, fail_if_requested).records == []
        assert expire(consumed, NOW + ACTIVITY_MS, active=True) == {b"g|g": b"%d" % (NOW + ACTIVITY_MS)}
        assert expire(consumed, NOW + ACTIVITY_MS, active=None) == {}

    def test_an_old_idle_partition_lives_as_long_as_the_group_was_consumed(self, consumed: Shard) -> None:
        left = NOW + 10 * WEEK_MS
        acknowledge(consumed, consumed.expire(left, lambda group: True))

        assert expire(consumed, left + WEEK_MS + ACTIVITY_MS - 1) == {}
        assert expire(consumed, left + WEEK_MS + ACTIVITY_MS) == {b"o|g|t|0": None, b"g|g": None}

    def test_a_commit_after_the_last_member_left_counts_from_itself(self, consumed: Shard) -> None:
        """Kafka counts from the time at which the group became empty."""
        committed(consumed, "g", p1=5, now=NOW + WEEK_MS)

        assert expire(consumed, NOW + WEEK_MS + ACTIVITY_MS) == {b"o|g|t|0": None}

    def test_members_that_never_committed_are_recorded_when_an_offset_would_expire(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)

        assert expire(shard, NOW + WEEK_MS, active=True) == {b"g|g": b"%d" % (NOW + WEEK_MS)}

    def test_a_record_without_offsets_is_deleted_too(self, shard: Shard) -> None:
        shard.replay(0, b"g|g", b"%d" % NOW)

        assert expire(shard, NOW + WEEK_MS + ACTIVITY_MS - 1) == {}
        assert expire(shard, NOW + WEEK_MS + ACTIVITY_MS) == {b"g|g": None}
        assert not shard.has_group("g")
        assert [*shard.groups()] == []

    def test_with_an_unreadable_record_the_last_time_with_members_is_unknown(self, shard: Shard) -> None:
        committed(shard, "g", p0=1)
        shard.replay(1, b"g|g", b"junk")

        assert expire(shard, NOW + 10 * WEEK_MS) == {}
        assert shard.problems == ("group 'g': group: b'junk'",)
        acknowledge(shard, shard.expire(NOW + 10 * WEEK_MS, lambda group: True))
        assert shard.last_active("g") == NOW + 10 * WEEK_MS
        assert shard.problems == ()

    def test_deleting_the_group_deletes_its_record(self, consumed: Shard) -> None:
        assert consumed.delete_group("g").records == [(b"o|g|t|0", None), (b"g|g", None)]
