"""The offset manager embedded in a program, alone and together with other managers."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import wait_for

from offsetmgr import ABSENT, Committed, OffsetAndMetadata, OffsetManager, TopicPartition
from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import NotCoordinator, OffsetMetadataTooLarge, PartialFailure, RewindRefused, UsageError
from offsetmgr.records.base import FormatMismatch
from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers

A, B, C = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks", 0)


def embedded(kafka: KafkaBroker, topic: str, manager: ManagerSettings | None = None) -> OffsetManager:
    return OffsetManager(kafka.bootstrap, topic=topic, partitions=8, manager=manager, timeout_s=90)


def test_commits_and_deletions_survive_a_restart(kafka: KafkaBroker, unique: str) -> None:
    with embedded(kafka, unique) as manager:
        assert manager.fetch("g", [A]) == {A: ABSENT}
        manager.commit("g", {A: OffsetAndMetadata(5, "m", 3), B: OffsetAndMetadata(6), C: OffsetAndMetadata(7)})
        manager.commit("h", {A: OffsetAndMetadata(1)})
        assert manager.groups() == ["g", "h"]
    with embedded(kafka, unique) as manager:
        assert manager.fetch("g") == {A: Committed(5, "m", 3), B: Committed(6), C: Committed(7)}
        manager.delete("g", [B])
        assert manager.fetch("g", [A, B]) == {A: Committed(5, "m", 3), B: ABSENT}
        manager.delete("g")
        manager.delete("g")  # idempotent: there is nothing left to delete
        assert manager.groups() == ["h"]


def test_rewinds_and_negative_offsets_are_refused_and_each_failure_is_reported(kafka: KafkaBroker, unique: str) -> None:
    with embedded(kafka, unique) as manager:
        manager.commit("g", {A: OffsetAndMetadata(5)})
        with pytest.raises(PartialFailure) as caught:
            manager.commit("g", {A: OffsetAndMetadata(4), B: OffsetAndMetadata(9), C: OffsetAndMetadata(1, "x" * 5000)})
        assert {tp: type(error) for tp, error in caught.value.failures.items()} == {
            A: RewindRefused,
            C: OffsetMetadataTooLarge,
        }
        assert set(caught.value.successes) == {B}
        assert manager.fetch("g") == {A: Committed(5), B: Committed(9)}
        assert str(caught.value.failures[A]) == "group g, orders-0: would go back from 5 to 4"
        manager.commit("g", {A: OffsetAndMetadata(4)}, allow_rewind=True)
        assert manager.fetch("g", [A]) == {A: Committed(4)}
        for allow_rewind in (False, True):  # a negative offset is neither a commit nor a deletion
            offsets = {A: OffsetAndMetadata(-1), B: OffsetAndMetadata(-1), C: OffsetAndMetadata(7)}
            with pytest.raises(PartialFailure) as caught:
                manager.commit("g", offsets, allow_rewind=allow_rewind)
            assert {tp: type(error) for tp, error in caught.value.failures.items()} == {A: UsageError, B: UsageError}
            assert "-1 is not an offset" in str(caught.value.failures[B])
            assert manager.fetch("g", [A, B, C]) == {A: Committed(4), B: Committed(9), C: Committed(7)}


def test_concurrent_commits_never_lower_an_offset(kafka: KafkaBroker, unique: str) -> None:
    with embedded(kafka, unique) as manager:

        def climb(start: int) -> None:
            for offset in range(start, 40, 4):
                try:
                    manager.commit("g", {A: OffsetAndMetadata(offset)})
                except PartialFailure as error:
                    assert type(error.failures[A]) is RewindRefused

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(climb, range(4)))
        assert manager.fetch("g", [A]) == {A: Committed(39)}


def test_two_managers_share_the_groups_and_one_takes_over_from_the_other(kafka: KafkaBroker, unique: str) -> None:
    # Sessions outlast the test, so groups move only because a manager joins or leaves.
    long = ManagerSettings(standby=False, session_timeout_s=120.0)
    groups = [f"g{number}" for number in range(40)]
    with embedded(kafka, unique, long) as first:
        for group in groups:
            first.commit(group, {A: OffsetAndMetadata(1)})
        with embedded(kafka, unique, long) as second:
            wait_for(lambda: all(_owners(first, second, groups)), "each serves groups")
            owners = _owners(first, second, groups)
            group = owners[1][0]
            with pytest.raises(NotCoordinator, match="belongs to the manager embedded-"):
                first.commit(group, {A: OffsetAndMetadata(2)})
            second.commit(group, {A: OffsetAndMetadata(3)})
        # The second manager has left: its groups return before its session ends.
        wait_for(lambda: _owners(first, first, groups)[0] == groups, "the first serves all")
        assert first.fetch(group) == {A: Committed(3)}
        assert first.groups() == sorted(groups)


def _owners(first: OffsetManager, second: OffsetManager, groups: list[str]) -> tuple[list[str], list[str]]:
    """The groups that each of the two managers serves."""
    served: tuple[list[str], list[str]] = ([], [])
    for group in groups:
        for manager, found in zip((first, second), served, strict=True):
            try:
                manager.fetch(group)
            except NotCoordinator:
                continue
            found.append(group)
    return served


def test_a_topic_of_the_other_record_format_is_refused_before_anything_is_written(kafka, unique) -> None:
    with embedded(kafka, unique) as manager:
        manager.commit("g", {A: OffsetAndMetadata(5)})
    with (
        pytest.raises(FormatMismatch, match="has records of the format avro, but this manager would write kafka"),
        OffsetManager(kafka.bootstrap, topic=unique, partitions=8, record_format="kafka"),
    ):
        pass
    with embedded(kafka, unique) as manager:
        assert manager.fetch("g") == {A: Committed(5)}


def test_a_fetch_outside_of_the_context_raises_not_coordinator(kafka: KafkaBroker, unique: str) -> None:
    manager = OffsetManager(kafka.bootstrap, topic=unique)
    with pytest.raises(NotCoordinator, match="not running"):
        manager.fetch("g")
    manager.close()
