"""Offsets that a group may commit when several sources read, distinguished by their clusters and topics."""

from __future__ import annotations

import pytest

from offsetmgr.core.errors import SparkError
from offsetmgr.core.model import TopicPartition
from offsetmgr.spark.checkpoint import CheckpointBatch, parse_offsets
from offsetmgr.spark.offset_merge import CommitBlock, SourceProgress, merge_min, normalized
from offsetmgr.spark.query_plan import Source, progress_of

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_two_sources_on_one_topic_give_the_smaller_offset_of_each_partition() -> None:
    merged = merge_min([SourceProgress("k", {T0: 5, T1: 9}), SourceProgress("k", {T0: 7, T1: 3, U0: 1})], None)

    assert merged.offsets == {T0: 5, T1: 3, U0: 1}
    assert merged.ambiguous == {}


def test_the_same_topic_on_two_clusters_is_not_committed_until_the_user_names_one() -> None:
    read = [SourceProgress("east:9092", {T0: 5, U0: 2}), SourceProgress("west:9092", {T0: 700})]

    undecided = merge_min(read, None)
    assert undecided.offsets == {U0: 2}
    assert undecided.ambiguous == {"t": ("east:9092", "west:9092")}

    assert merge_min(read, frozenset({"west:9092"})).offsets == {T0: 700}
    assert merge_min(read, frozenset({"east:9092"})).offsets == {T0: 5, U0: 2}
    both = merge_min(read, frozenset({"east:9092", "west:9092"}))
    assert (both.offsets, both.ambiguous) == ({T0: 5, U0: 2}, {})


def test_bootstrap_servers_in_another_order_are_the_same_cluster() -> None:
    assert normalized("h2:9092, h1:9092,") == normalized("h1:9092,h2:9092") == "h1:9092,h2:9092"


def batch_of(*lines: str) -> CheckpointBatch:
    return parse_offsets("\n".join(("v1", "{}", *lines)), 3, "checkpoint c/offsets/3")


def test_sources_other_than_kafka_commit_nothing_although_their_offsets_look_alike() -> None:
    batch = batch_of('{"t":{"0":5}}', '{"u":{"0":9}}', "-")
    sources = (Source("KafkaV2[Subscribe[t]]", "k"), Source("OtherStream[u]"), Source("KafkaV2[Subscribe[v]]", "k"))

    assert progress_of(batch, sources, "query q")[0] == [SourceProgress("k", {T0: 5})]


def test_a_plan_that_does_not_fit_the_checkpoint_is_an_error() -> None:
    with pytest.raises(SparkError, match="its plan has 1 sources, but batch 3 of its checkpoint has 2"):
        progress_of(batch_of('{"t":{"0":5}}', '{"u":{"0":9}}'), (Source("KafkaV2[Subscribe[t]]"),), "query q")


def test_a_source_without_a_finished_batch_blocks_its_topics() -> None:
    batch = batch_of('{"t":{"0":5}}', "-")
    sources = (Source("KafkaV2[Subscribe[t, u]]", "k"), Source("KafkaV2[Assign[u-0, v.w-12]]", "k"))

    assert progress_of(batch, sources, "q")[1] == [CommitBlock("k", frozenset({"u", "v.w"}))]
    sources = (Source("KafkaV2[SubscribePattern[t.*]]", "k"), Source("Rate"))
    assert progress_of(None, sources, "q") == ([], [CommitBlock("k", None)])


@pytest.mark.parametrize(
    ("block", "left"),
    [
        (CommitBlock("k", frozenset({"t"})), {U0: 1}),
        (CommitBlock("", frozenset({"u"})), {T0: 5}),
        (CommitBlock("k", None), {}),
        (CommitBlock("other", None), {T0: 5, U0: 1}),
    ],
)
def test_blocked_topics_are_not_committed(block: CommitBlock, left: dict[TopicPartition, int]) -> None:
    assert merge_min([SourceProgress("k", {T0: 5, U0: 1})], frozenset({"k"}), [block]).offsets == left


def test_a_topic_counts_as_read_from_two_clusters_as_soon_as_that_is_planned() -> None:
    merged = merge_min([SourceProgress("east:1", {T0: 5})], None, [CommitBlock("west:1", frozenset({"t"}))])

    assert (merged.offsets, merged.ambiguous) == ({}, {"t": ("east:1", "west:1")})


def test_the_problem_is_reported_if_no_source_reads_from_the_groups_cluster() -> None:
    read = [SourceProgress("east:1", {T0: 5}), SourceProgress("", {U0: 2})]

    merged = merge_min(read, frozenset({"esat:1"}))
    assert merged.elsewhere == ("", "east:1")
    assert str(merged.problem) == (
        "nothing is committed: no source reads from the configured cluster; the sources read from an unknown "
        "cluster and from east:1"
    )
    assert merge_min(read, frozenset({"esat:1"}), [CommitBlock()]).problem is None, (
        "a source that is not planned yet may read from it"
    )
    assert merge_min(read, frozenset({"east:1"})).problem is None
