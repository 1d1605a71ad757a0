"""Fetches, deletions, replay and expiration of offsets in a shard, with records in plain text
(`plain_format`)."""

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from plain_format import PlainFormat
from shards import ABSENT, DAY_MS, NOW, acknowledge, committed, committing, fetched, offsets

from offsetmgr.config.manager_settings import HOUR_MS, ManagerSettings
from offsetmgr.manager.results import CommitRequest, FetchRequest
from offsetmgr.manager.shard import Shard
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import FormatMismatch

# --- requests --------------------------------------------------------------------------------------------------


@pytest.fixture
def shard() -> Shard:
    return Shard(0, PlainFormat(), ManagerSettings())


class TestFetching:
    def test_a_fetch_of_all_topics_is_sorted(self, shard: Shard) -> None:
        committed(shard, "g", topic="z", p9=1, p10=2)
        committed(shard, "g", topic="a", p1=3, p0=4)

        assert shard.fetch(FetchRequest("g")).topics == [
            ("a", [(0, 4, -1, "", 0), (1, 3, -1, "", 0)]),
            ("z", [(9, 1, -1, "", 0), (10, 2, -1, "", 0)]),
        ]
        assert shard.fetch(FetchRequest("other")).topics == []

    def test_responses_keep_the_order_of_the_request(self, shard: Shard) -> None:
        committed(shard, "g", p0=1, p1=2)

        assert shard.fetch(FetchRequest("g", [("u", [3]), ("t", [1, 7, 0])])).topics == [
            ("u", [(3, -1, -1, "", 0)]),
            ("t", [(1, 2, -1, "", 0), (7, -1, -1, "", 0), (0, 1, -1, "", 0)]),
        ]


class TestDeleting:
    def test_unreadable_offsets_can_be_deleted(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")
        fetched(shard, "g", 0)
        acknowledge(shard, shard.delete_group("g"))

        assert fetched(shard, "g", 0) == ABSENT
        assert shard.problems == ()


class TestInvalidPartsOfACommit:
    def test_the_valid_partitions_keep_their_conditions(self, shard: Shard) -> None:
        committed(shard, "g", p1=4, p2=8)
        rows = [(0, -2, -1, ""), (1, 6, -1, "m"), (2, 9, -1, "")]
        expected = {("t", 0): 3, ("t", 1): 4, ("t", 2): 7, ("u", -1): 5}
        prepared = shard.commit(CommitRequest("g", [("t", rows), ("u", [(-1, 7, -1, "")])], expected=expected), NOW)

        assert prepared.response.errors == {
            ("t", 0): KafkaError.INVALID_REQUEST,
            ("t", 2): KafkaError.OPERATION_NOT_ATTEMPTED,
            ("u", -1): KafkaError.UNKNOWN_TOPIC_OR_PART,
        }
        assert [key for key, _ in prepared.records] == [b"o|g|t|1"]


PARTITIONS = st.one_of(st.integers(0, 70), st.integers(0, 300), st.just(2**31 - 1))
METADATA = st.one_of(st.text("xyz", max_size=5), st.just("x" * 24), st.just("y" * 70_000))
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("replay"), st.lists(st.tuples(PARTITIONS | st.integers(-(2**31), -1), METADATA), max_size=3)),
        st.tuples(st.just("commit"), st.lists(st.tuples(PARTITIONS, METADATA), min_size=1, max_size=80)),
        st.tuples(st.just("run"), st.tuples(st.integers(0, 70), st.lists(METADATA, min_size=1, max_size=70))),
        st.tuples(st.just("delete"), st.lists(PARTITIONS, max_size=40)),
    ),
    max_size=12,
)


class TestManyPartitionsOfATopic:
    """A shard packs the values of a topic's partitions."""

    @given(CHANGES, st.lists(PARTITIONS, max_size=80))
    def test_the_newest_value_of_each_partition_counts(self, changes: list[tuple[str, Any]], sought: list[int]) -> None:
        records = AvroRecordFormat()
        shard, model = Shard(0, records, ManagerSettings(max_metadata_length=100_000)), dict[int, tuple[int, str]]()
        for number, (what, change) in enumerate(changes):
            if what == "delete":
                acknowledge(shard, shard.delete_offsets("g", [("t", change)]))
                for partition in change:
                    model.pop(partition, None)
            else:
                texts = list(enumerate(change[1], change[0])) if what == "run" else change
                rows = [(partition, number, -1, metadata) for partition, metadata in texts]
                if what == "replay":
                    for key, value in records.encode_commit("g", "t", rows, NOW, None):
                        shard.replay(shard.position, key, value)
                else:
                    acknowledge(shard, shard.commit(CommitRequest("g", [("t", rows)]), NOW))
                model |= {partition: (number, metadata) for partition, metadata in texts}

            found = [(key.partition, (value.offset, value.metadata)) for key, value in shard.entries()]
            assert found == sorted(model.items())
            assert (shard.offset_count, shard.has_group("g")) == (len(model), bool(model))
            for partitions in (sought, sorted(model), range(50)):
                (_, answered), *_ = shard.fetch(FetchRequest("g", [("t", list(partitions))])).topics or [("t", [])]
                expected = [(p, *model.get(p, (-1, ""))) for p in partitions]
                assert [(p, offset, metadata) for p, offset, _, metadata, _ in answered] == expected

    def test_an_iteration_survives_a_deletion(self, shard: Shard) -> None:
        committed(shard, "g", p1=1, p200=2)
        iterator = iter(shard.entries())
        assert next(iterator)[0].partition == 1
        acknowledge(shard, shard.delete_group("g"))
        assert list(iterator) == []


# --- replay ----------------------------------------------------------------------------------------------------


class TestReplaying:
    def test_records_that_were_already_replayed_are_ignored(self, shard: Shard) -> None:
        shard.replay(5, b"o|g|t|0", b"7,-1,0,-,")
        shard.replay(5, b"o|g|t|0", b"8,-1,0,-,")
        shard.replay(2, b"o|g|t|0", b"9,-1,0,-,")
        shard.replay_newest({b"o|g|t|0": b"10,-1,0,-,"}, 5)

        assert (fetched(shard, "g", 0)[0], shard.position) == (7, 6)

    def test_an_append_may_be_read_from_the_log_before_its_acknowledgement(self, shard: Shard) -> None:
        prepared = shard.commit(committing("g", p0=1, p1=2, p2=3), NOW)
        shard.replay(0, *prepared.records[0])
        shard.replay(1, *prepared.records[1])
        shard.acknowledged(prepared, 0)

        assert offsets(shard, "g") == {("t", 0): 1, ("t", 1): 2, ("t", 2): 3}
        assert shard.position == 3

    def test_a_late_acknowledgement_does_not_undo_later_records(self, shard: Shard) -> None:
        prepared = shard.commit(committing("g", p0=1), NOW)
        shard.replay(0, *prepared.records[0])
        shard.replay(1, b"o|g|t|0", b"2,-1,0,-,")
        shard.acknowledged(prepared, 0)

        assert (fetched(shard, "g", 0)[0], shard.position) == (2, 2)

    def test_unknown_versions_are_counted_and_the_rest_is_read(self, shard: Shard) -> None:
        """Each key once, until it is deleted."""
        for offset in range(2):
            shard.replay(offset, b"v7|x", b"?")
        shard.replay_newest({b"v7|y": b"?", b"v9|x": b"?", b"o|g|t|0": b"7,-1,0,-,"}, 4)

        assert (shard.unknown_versions, shard.unknown_keys) == ({7: 2, 9: 1}, 3)
        assert fetched(shard, "g", 0)[0] == 7
        shard.replay(4, b"v7|y", None)
        assert (shard.unknown_versions, shard.unknown_keys) == ({7: 1, 9: 1}, 2)

    def test_a_survey_finds_values_of_unknown_versions_before_any_fetch(self, shard: Shard) -> None:
        shard.replay_newest({b"o|g|t|0": b"7,-1,0,-,", b"o|g|t|1": b"version 99", b"o|g|u|0": b"7,-1,0,-,"}, 3)
        assert shard.unreadable == 0
        shard.check_versions()
        shard.check_versions()

        assert shard.unreadable == 1
        [problem] = shard.problems
        assert problem.startswith("g/t-1: value")

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

    def test_a_commit_to_another_partition_keeps_the_problem(self, shard: Shard) -> None:
        shard.replay(0, b"o|g|t|0", b"junk")
        assert fetched(shard, "g", 0)[3] == -1
        committed(shard, "g", p1=5)

        assert (fetched(shard, "g", 0)[3], fetched(shard, "g", 1)[0]) == (-1, 5)
        assert len(shard.problems) == 1

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
        with pytest.raises(FormatMismatch):
            shard.replay(0, b"other|x", b"")
        with pytest.raises(FormatMismatch):
            shard.replay_newest({b"o|g|t|0": b"7,-1,0,-,", b"other|x": b""}, 9)

        assert shard.position == 0

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

    def test_tombstones_of_absent_offsets_are_ignored(self, shard: Shard) -> None:
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
    """Replay gives the same state one by one, in bulk with the newest values only, and as an owner's own commits."""

    @given(st.lists(st.tuples(KEYS, VALUES), max_size=30), st.integers(0, 30))
    def test_one_by_one_or_in_bulk(self, records: list[tuple[bytes, bytes | None]], loaded: int) -> None:
        records = [(key, value) for key, value in records if not key.startswith(b"O")]
        single, bulk = (Shard(0, PlainFormat(), ManagerSettings()) for _ in range(2))
        for offset, (key, value) in enumerate(records):
            single.replay(offset, key, value)
        bulk.replay_newest(dict(records[:loaded]), min(loaded, len(records)))
        bulk.replay_newest(dict(records[loaded:]), len(records))

        assert contents(bulk) == contents(single)


def contents(shard: Shard) -> object:
    """The observable state of a shard."""
    fetches = {group: shard.fetch(FetchRequest(group)) for group in shard.groups()}
    activity = {group: shard.last_active(group) for group in ("g", "h")}
    return fetches, activity, shard.offset_count, shard.position, [*shard.entries()]


# --- expiration ------------------------------------------------------------------------------------------------


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

        assert (prepared.records, prepared.response) == ([], 0)
        acknowledge(shard, in_flight)
        assert expire(shard, later) == {}
        assert fetched(shard, "g", 0)[0] == 2

    def test_only_the_requested_groups_are_checked(self, shard: Shard) -> None:
        for group in "abc":
            committed(shard, group, p0=1)
        prepared = shard.expire(NOW + WEEK_MS, lambda group: False, ["a", "c", "gone"])

        assert [*prepared.groups] == ["a", "c"]

    def test_a_pass_deletes_no_more_offsets_than_the_limit(self) -> None:
        shard = Shard(0, PlainFormat(), ManagerSettings(max_tombstones=3))
        committed(shard, "a", p0=1, p1=1)
        committed(shard, "b", p0=1, p1=1)
        sizes = []
        while shard.offset_count:
            prepared = shard.expire(NOW + WEEK_MS, lambda group: False)
            sizes.append((len(prepared.records), prepared.response))
            acknowledge(shard, prepared)

        assert sizes == [(3, 3), (1, 1)]


class TestExpiryOfGroupsThatHadMembers:
    """The retention counts from the last time at which the group was known to have members. A record stores that time;
    commits of members and passes renew it every six hours, so the offsets are kept that much longer."""

    @pytest.fixture
    def consumed(self, shard: Shard) -> Shard:
        """A group whose member has committed once."""
        acknowledge(shard, shard.commit(committing("g", p0=1)._replace(generation=3, member_id="m"), NOW))
        return shard

    def test_an_old_idle_partition_lives_as_long_as_the_group_was_consumed(self, consumed: Shard) -> None:
        left = NOW + 10 * WEEK_MS
        acknowledge(consumed, consumed.expire(left, lambda group: True))

        assert expire(consumed, left + WEEK_MS + ACTIVITY_MS - 1) == {}
        assert expire(consumed, left + WEEK_MS + ACTIVITY_MS) == {b"o|g|t|0": None, b"g|g": None}

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
