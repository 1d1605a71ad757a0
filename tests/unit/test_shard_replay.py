"""Replay of valid and invalid records, one by one and in bulk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios.plain_format import PlainFormat
from shards import NOW, acknowledge, committed, committing, fetched, offsets

from offsetmgr.manager.protocol_values import CommitRequest, FetchRequest
from offsetmgr.manager.shard import Shard, ShardLimits
from offsetmgr.records.base import FormatMismatch


@pytest.fixture
def shard() -> Shard:
    return Shard(0, PlainFormat(), ShardLimits())


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
        shard.replay(0, b"v7|x", b"?")
        shard.replay_newest({b"v7|y": b"?", b"v9|x": b"?", b"o|g|t|0": b"7,-1,0,-,"}, 4)

        assert (shard.unknown_versions, shard.unknown_keys) == ({7: 2, 9: 1}, 3)
        assert fetched(shard, "g", 0)[0] == 7

    def test_unknown_keys_are_counted_once_and_until_they_are_deleted(self, shard: Shard) -> None:
        shard.replay(0, b"v7|x", b"?")
        shard.replay(1, b"v7|x", b"?")
        shard.replay(2, b"v7|y", b"?")
        shard.replay(3, b"v7|y", None)

        assert (shard.unknown_versions, shard.unknown_keys) == ({7: 1}, 1)

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

    def test_a_large_load_is_replayed_in_parts(self, shard: Shard) -> None:
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
        for commit in commits:
            topics = [(topic, [(p, offset, -1, "")]) for (topic, p), offset in commit.items()]
            prepared = owner.commit(CommitRequest("g", topics, generation=1, member_id="m"), NOW)
            for offset, (key, value) in enumerate(prepared.records, owner.position):
                standby.replay(offset, key, value)
            acknowledge(owner, prepared)

        assert contents(owner) == contents(standby)


def contents(shard: Shard) -> object:
    """The observable state of a shard."""
    fetches = {group: shard.fetch(FetchRequest(group)) for group in shard.groups()}
    activity = {group: shard.last_active(group) for group in ("g", "h")}
    return fetches, activity, shard.offset_count, shard.position, [*shard.entries()]
