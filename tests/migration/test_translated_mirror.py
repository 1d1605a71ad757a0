"""``migrate mirror --translate auto``: two real clusters; groups of A are kept at the same records of B."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import commit, committed, offsets_of, pending_commit
from confluent_kafka.admin import AdminClient
from in_process import command, rows
from processes import delete_topic, finish, start_command, until
from two_clusters import TwoClusters, consuming

from offsetmgr import KafkaCluster, OffsetAndMetadata, PlanOptions, TopicPartition, open_store
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.migration.mirror import Mirror, MirrorStatus, SilentSource
from offsetmgr.migration.translated_offsets import OffsetTranslator, OwnOffsets
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.translation.translator import PositionTranslator, Translations

pytestmark = pytest.mark.servers


class Mirrored:
    """Mirrors groups of A to B."""

    def __init__(self, clusters: TwoClusters) -> None:
        self.clusters, self.b = clusters, f"kafka://{clusters.b}"

    def arguments(self, group: str, *words: str) -> list[str]:
        sides = ["--from", f"kafka://{self.clusters.a}", "--to", self.b, "--translate", "auto"]
        return ["migrate", "mirror", "--yes", *sides, "--settle", "300", "--interval", "500", "--group", group, *words]

    def once(self, group: str, *words: str, code: int = 0) -> Any:
        """The rows of a mirror that ends when it has copied everything."""
        return rows(*self.arguments(group, "--once", "--window", "0", *words), code=code)

    @contextmanager
    def following(self, group: str, *words: str, code: int | None = 0) -> Iterator[list[dict[str, Any]]]:
        """A mirror in the background, stopped at the end; its rows are in the list then."""
        process = start_command(*self.arguments(group, "--format", "json", *words))
        found: list[dict[str, Any]] = []
        try:
            yield found
            process.send_signal(signal.SIGINT)
            self.ended = finish(process, code)
            found += json.loads(self.ended.stdout) if "table" not in words else []
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def at(self, group: str) -> dict[int, int]:
        return committed(self.b, group)

    def is_locked(self, group: str) -> bool:
        with KafkaCluster(self.clusters.b) as cluster:
            return bool(getattr(cluster.describe_groups([group]).get(group), "members", ()))


@pytest.fixture
def mirrored(clusters: TwoClusters) -> Mirrored:
    return Mirrored(clusters)


def test_a_group_is_followed_as_far_as_its_records_are_copied(mirrored: Mirrored, unique: str) -> None:
    # Given a renamed copy behind other records, which lacks the last 40
    clusters, copy = mirrored.clusters, f"A.{unique}"
    topic = clusters.topic(unique, 2, copy=copy)
    clusters.foreign(copy, 7)
    clusters.copy(topic, 0, 60, to=copy)
    clusters.copy(topic, partition=1, to=copy)
    clusters.commit(unique, topic, {0: 50, 1: 10})
    rename = ("--rename-topic", r"(.*)=A.\1")
    with mirrored.following(unique, *rename, code=1) as found:
        until(lambda: mirrored.at(unique) == {0: 57, 1: 10})
        # When the consumer goes on, beyond the copy in partition 0
        clusters.commit(unique, topic, {0: 90, 1: 20})
        until(lambda: mirrored.at(unique) == {0: 57, 1: 20})
        # Then the partition follows as soon as its records are copied
        clusters.copy(topic, 60, to=copy)
        until(lambda: mirrored.at(unique) == {0: 97, 1: 20})
        # And a rewind of the source is not followed
        commit(f"kafka://{clusters.a}", unique, topic, {1: 15}, allow_rewind=True)
        clusters.commit(unique, topic, {0: 95})
        until(lambda: mirrored.at(unique) == {0: 102, 1: 20})
    (row,) = found
    assert (row["state"], row["copied"], row["lag"]) == ("target-ahead", 5, 0)
    detail = (
        f"{copy}-1 keeps 20; a start there skips 5 messages if the consumers are at 15 (the group moved back in the"
    )
    assert row["detail"].startswith(detail)


def test_a_partition_without_a_known_place_is_named_and_the_others_follow(mirrored: Mirrored, unique: str) -> None:
    # Given a copy without 10 records after the position in partition 1, and a state of Kafka Streams in partition 2
    topic = mirrored.clusters.topic(unique, 3)
    mirrored.clusters.copy(topic)
    mirrored.clusters.copy(topic, 0, 50, partition=1)
    mirrored.clusters.copy(topic, 60, partition=1)
    mirrored.clusters.copy(topic, partition=2)
    mirrored.clusters.commit(unique, topic, {0: 30, 1: 50})
    with open_store(f"kafka://{mirrored.clusters.a}") as store:
        store.commit(unique, {TopicPartition(topic, 2): OffsetAndMetadata(5, "bAAAABIgYml0cyBvZiByZWNvcmRz")})
    # Then partition 0 follows, and the others have their reasons
    (row,) = mirrored.once(unique, code=1)
    assert mirrored.at(unique) == {0: 30}
    assert row["detail"].startswith(f"refused: {topic}-1: missing"), row["detail"]
    assert row["detail"].endswith("; --accept missing writes it, and 1 more partition")
    (row,) = mirrored.once(unique, "--accept", "missing", code=1)
    assert mirrored.at(unique) == {0: 30, 1: 50}
    assert row["detail"].startswith(f"refused: {topic}-2: its commit metadata is parallel-consumer's encoding")


def test_once_waits_for_the_copier_only_in_its_window(mirrored: Mirrored, unique: str) -> None:
    topic = mirrored.clusters.topic(unique)
    mirrored.clusters.copy(topic, 0, 20)
    mirrored.clusters.commit(unique, topic, {0: 50})
    (row,) = mirrored.once(unique, code=1)
    assert (row["state"], row["lag"], mirrored.at(unique)) == ("not-yet", None, {})
    assert row["detail"].startswith(f"waits: {topic}-0: not yet; ")
    shown = command(*mirrored.arguments(unique, "--once", "--window", "0"), code=1).stderr.splitlines()
    assert shown[-1].endswith("  1 not-yet; 0 offsets copied, lag 0 + ?")
    process = start_command(*mirrored.arguments(unique, "--once"))
    mirrored.clusters.copy(topic, 20)
    finish(process)
    assert mirrored.at(unique) == {0: 50}


def test_an_offset_that_the_mirror_did_not_write_stops_its_group(mirrored: Mirrored, unique: str) -> None:
    # Given two groups that are followed
    topic = mirrored.clusters.topic(unique)
    mirrored.clusters.copy(topic)
    written, other = f"{unique}-written", f"{unique}-other"
    for group in (written, other):
        mirrored.clusters.commit(group, topic, {0: 10})
    with mirrored.following(f"{unique}-*", code=1) as found:
        until(lambda: [mirrored.at(group) for group in (written, other)] == [{0: 10}] * 2)
        # When a producer without group metadata commits, which the group lock does not stop
        with pending_commit(mirrored.clusters.b, written, topic, 0) as producer:
            producer.commit_transaction(60)
        until(lambda: not mirrored.is_locked(written))
        for group in (written, other):
            mirrored.clusters.commit(group, topic, {0: 80})
        until(lambda: mirrored.at(other) == {0: 80})
    # Then its offset stays, and the other writer is named
    assert mirrored.at(written) == {0: 70}
    (row,) = found
    assert (row["group"], row["state"]) == (written, "rejected")
    assert row["detail"] == (
        f"{topic}-0 was at 10 in the target, and is at 70, which is not the mirror's own offset: another client uses "
        f"this group, such as a consumer, or MirrorMaker with sync.group.offsets.enabled=true; if the group does not "
        f"live in the target, stop that client, delete the group's offsets there, and start the mirror again"
    )


def test_offsets_that_the_target_has_at_the_start(mirrored: Mirrored, unique: str, tmp_path: Path) -> None:
    # Given groups that were mirrored, and one that was not
    topic = mirrored.clusters.topic(unique)
    mirrored.clusters.copy(topic)
    groups = [f"{unique}-{name}" for name in ("ahead", "behind", "ours", "unknown")]
    for group in groups[:3]:
        mirrored.clusters.commit(group, topic, {0: 50})
    mirrored.once(f"{unique}-*")
    # When other clients commit at B while no mirror runs
    others = {groups[0]: 60, groups[1]: 20, groups[3]: 20}
    for group, offset in others.items():
        commit(mirrored.b, group, topic, {0: offset}, allow_rewind=True)
    for group in groups:
        mirrored.clusters.commit(group, topic, {0: 70})
    # Then their offsets stay, and only the other group is followed
    found = {row["group"]: row["detail"] for row in mirrored.once(f"{unique}-*", code=1)}
    assert {group: mirrored.at(group)[0] for group in groups} == {**others, groups[2]: 70}
    for group, place in zip(others, ("and is at 60", "and is at 20", "is at 20 in the target"), strict=True):
        assert f"{place}, which is not the mirror's own offset: another client uses" in found.pop(group)
    assert not found
    # And the offset of a plan is known
    plan, sides = str(tmp_path / "plan"), mirrored.arguments(groups[3])[3:9]
    command("migrate", "plan", *sides, "--group", groups[3], "-o", plan)
    command("migrate", "apply", plan, "--yes")
    mirrored.clusters.commit(groups[3], topic, {0: 80})
    mirrored.once(groups[3])
    assert mirrored.at(groups[3]) == {0: 80}


def test_a_consumer_that_starts_in_the_target_continues_at_the_same_record(mirrored: Mirrored, unique: str) -> None:
    topic = mirrored.clusters.topic(unique)
    mirrored.clusters.foreign(topic, 7)
    mirrored.clusters.copy(topic)
    other = f"{unique}-other"
    for group in (unique, other):
        mirrored.clusters.commit(group, topic, {0: 50})
    with mirrored.following(f"{unique}*", "--format", "table", code=None):
        until(lambda: [mirrored.at(group) for group in (unique, other)] == [{0: 57}] * 2)
        # When a consumer of the group comes and goes between two rounds
        with consuming(mirrored.clusters.b, unique, topic) as (_, value):
            assert value == b"record 50"
        # Then the group lives in the target
        for group in (unique, other):
            mirrored.clusters.commit(group, topic, {0: 60})
        until(lambda: mirrored.at(other) == {0: 67})
    assert mirrored.ended.stdout.splitlines()[1].split()[:3] == [unique, unique, "taken"]
    assert f"warning: group {unique} is taken: " in mirrored.ended.stderr
    # And a mirror that is started while a consumer is there refuses the group, and later ones do
    with consuming(mirrored.clusters.b, other, topic):
        (row,) = mirrored.once(other, code=1)
        assert (row["state"], "the group has members in the target" in row["detail"]) == ("rejected", True)
    mirrored.clusters.commit(other, topic, {0: 70})
    assert [row["state"] for row in mirrored.once(f"{unique}*", code=1)] == ["rejected"] * 2
    assert [mirrored.at(group) for group in (unique, other)] == [{0: 57}, {0: 67}]


def test_a_killed_mirror_goes_on_and_its_copy_can_be_undone(mirrored: Mirrored, unique: str, tmp_path: Path) -> None:
    topic = mirrored.clusters.topic(unique)
    mirrored.clusters.foreign(topic, 7)
    mirrored.clusters.copy(topic)
    mirrored.clusters.commit(unique, topic, {0: 50})
    killed = start_command(*mirrored.arguments(unique))
    until(lambda: mirrored.at(unique) == {0: 57})
    killed.kill()
    killed.wait()
    # When it starts again, its own offset is no other writer's
    mirrored.clusters.commit(unique, topic, {0: 60})
    image = str(tmp_path / "before.avro")
    shown = command(*mirrored.arguments(unique, "--once", "--before-image", image))
    assert mirrored.at(unique) == {0: 67}
    # And the offset that the target had before can be restored
    command("offsets", "import", image, "--store", mirrored.b, "--yes", "--execute")
    assert mirrored.at(unique) == {0: 57}
    assert "reads both logs every 0.5 s, from their ends back to the positions that moved" in shown.stderr


def test_a_topic_that_is_recreated_in_the_target(mirrored: Mirrored, unique: str) -> None:
    clusters = mirrored.clusters
    topic = clusters.topic(unique)
    clusters.foreign(topic, 7)
    clusters.copy(topic)
    clusters.commit(unique, topic, {0: 50})
    admin = AdminClient({"bootstrap.servers": clusters.b})
    with mirrored.following(unique):
        until(lambda: mirrored.at(unique) == {0: 57})
        # When the target's topic is deleted, then copied again, and the consumer has not moved
        delete_topic(admin, topic)
        until(lambda: mirrored.at(unique) == {})
        clusters.make_topic(topic, bootstrap=clusters.b)
        clusters.copy(topic)
        # Then the group is at the same record of the new topic
        until(lambda: mirrored.at(unique) == {0: 50})


def test_zookeeper_of_the_target(clusters: TwoClusters, zookeeper: ZooKeeperServer, unique: str) -> None:
    """ZooKeeper has no group lock: each write compares."""
    back = TwoClusters(clusters.b, clusters.a, clusters.make_topic)
    mirrored = Mirrored(back)
    mirrored.b = f"zookeeper://{zookeeper.connect}/kafka"
    topic = back.topic(unique)
    back.foreign(topic, 7)
    back.copy(topic)
    other = f"{unique}-other"
    for group in (unique, other):
        back.commit(group, topic, {0: 50})
    with mirrored.following(f"{unique}*", code=1) as found:
        until(lambda: mirrored.at(unique) == {0: 57})
        back.commit(unique, topic, {0: 60})
        until(lambda: mirrored.at(unique) == {0: 67})
        commit(mirrored.b, unique, topic, {0: 80})
        back.commit(other, topic, {0: 70})
        until(lambda: mirrored.at(other) == {0: 77})
    assert [(row["group"], row["state"]) for row in found] == [(unique, "rejected")]
    assert mirrored.at(unique) == {0: 80}


def test_hundreds_of_groups_share_what_is_read_and_only_positions_that_moved_are_read_again(
    clusters: TwoClusters, unique: str
) -> None:
    # Given 200 groups at 4 positions, and a mirror that counts the bytes it reads
    topic = clusters.topic(unique)
    clusters.foreign(topic, 7)
    clusters.copy(topic)
    tp, groups = TopicPartition(topic, 0), [f"{unique}-{number:03}" for number in range(200)]
    read: list[int] = []
    rounds: list[tuple[int, int]] = []
    with ExitStack() as stack:
        a, b = (stack.enter_context(open_store(f"kafka://{at}")) for at in (clusters.a, clusters.b))
        logs = [stack.enter_context(KafkaCluster(at)) for at in (clusters.a, clusters.b)]
        at = {group: number % 4 * 10 for number, group in enumerate(groups)}
        list(a.edit(GroupEdit(group, {tp: Change(OffsetAndMetadata(offset))}) for group, offset in at.items()))
        translator, clock = PositionTranslator(logs[0], logs[1], TranslationRules(), read.append), SystemClock()
        mirror = Mirror(a, b, PlanOptions(groups=(f"{unique}-*",)), SilentSource(clock), clock)
        mirror.settle_s = mirror.idle_s = 0.2
        translations, written = Translations(translator, TranslationRules()), OwnOffsets(a, b, clock)
        mirror.translator = OffsetTranslator(translations, mirror.options, clock, written)

        def report(status: MirrorStatus) -> None:
            rounds.append((status.copied, len(read)))
            if len([copied for copied, _ in rounds if copied == 200]) == 3:
                a.commit(groups[0], {tp: OffsetAndMetadata(90)})

        mirror.report, mirror.stop = report, lambda: bool(rounds) and rounds[-1][0] > 200
        mirror.run()
        assert {group: offsets_of(b, group) for group in groups[1:]} == {g: {0: at[g] + 7} for g in groups[1:]}
        assert offsets_of(b, groups[0]) == {0: 97}
    # Then the first round reads the logs once for all groups, and later ones only for the position that moved
    first, last = rounds[0][1], rounds[-1][1]
    assert {reads for copied, reads in rounds if copied <= 200} == {first}
    assert first < 20
    assert first < last < 2 * first + 10
