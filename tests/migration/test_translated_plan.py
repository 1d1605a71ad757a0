"""``migrate plan --translate auto``: groups move to another cluster, where the same records have other offsets."""

import json
import signal
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from committed_offsets import commit, committed
from confluent_kafka import TopicPartition as Position
from in_process import command, rows
from processes import finish, start_command
from recreation import recreate
from two_clusters import RECORDS, TwoClusters, consuming

from offsetmgr import (
    KafkaCluster,
    Migration,
    OffsetAndMetadata,
    PlanOptions,
    TopicPartition,
    TranslationRules,
    open_store,
)

pytestmark = pytest.mark.servers


class Planned:
    """Commands of a plan between the two clusters."""

    def __init__(self, clusters: TwoClusters, path: Path) -> None:
        self.clusters, self.path, self.journal = clusters, path, Path(f"{path}.journal")
        self.a, self.b = f"kafka://{clusters.a}", f"kafka://{clusters.b}"

    def words(self, *words: str) -> list[Any]:
        self.path.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)
        return ["migrate", "plan", *words, "--from", self.a, "--to", self.b, "--translate", "auto", "-o", self.path]

    def plan(self, *words: str, code: int = 0) -> list[tuple[Any, ...]]:
        """The rows: group, partition, action, source, after, verdict, repeats, skips."""
        names = ("group", "partition", "action", "source", "after", "verdict", "repeats", "skips")
        return [tuple(row[name] for name in names) for row in rows(*self.words(*words), code=code)]

    def note(self) -> str:
        """The note of the plan's only step."""
        (step,) = (step for group in Migration(self.path).groups() for step in group.steps)
        return step.note

    def written(self) -> str:
        return self.journal.read_text() if self.journal.exists() else ""

    def apply(self, *words: str, code: int = 0) -> str:
        return command("migrate", "apply", self.path, "--yes", *words, code=code).stderr

    def verify(self, *words: str, code: int = 0) -> list[tuple[Any, ...]]:
        """The rows: partition, status, evidence, expected, verdict, repeats, skips."""
        found = rows("migrate", "verify", self.path, *words, code=code)
        names = ("partition", "status", "evidence", "expected", "verdict", "repeats", "skips")
        return [tuple(row[name] for name in names) for row in found]


@pytest.fixture
def planned(clusters: TwoClusters, tmp_path: Path) -> Planned:
    return Planned(clusters, tmp_path / "shop.plan")


def test_groups_are_written_at_the_records_that_they_have_committed(
    clusters: TwoClusters, planned: Planned, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = clusters.twice(unique)
    clusters.commit(unique, topic, {0: 50, 1: 50})
    with open_store(planned.a) as store:
        store.commit(unique, {TopicPartition(topic, 0): OffsetAndMetadata(50, "mine", leader_epoch=0)})
    # When they are planned
    monkeypatch.setattr("offsetmgr.cli.render.table_width", lambda: 80)
    table, shown = command(*planned.words(unique))
    assert "cluster translated by the records (--translate auto): the source belongs to cluster" in shown
    assert "records 2 seen; read 2 partitions in both clusters (digest " in shown
    # Then a narrow table has what the user must know
    assert {"AFTER", "VERDICT", "REPEATS", "SKIPS"} < {*table.splitlines()[0].split()}
    assert max(map(len, table.splitlines())) <= 80
    assert planned.plan(unique) == [
        (unique, 0, "copy", 50, 57, "seen", 0, 0),
        (unique, 1, "copy", 50, 70, "seen", 0, 0),
    ]
    # And the plan can be read again, and only by releases that know such plans
    text = planned.path.read_text()
    assert text.startswith('{"offsetmgr_plan": 6')
    rules = Migration(planned.path).header.translate
    assert rules == TranslationRules()
    summary = json.loads(text)["summary"]["translated"]
    assert summary["verdicts"] == {"seen": 2}
    assert summary["digests"].keys() == {f"{topic}-0", f"{topic}-1"}
    assert summary["source_topic_ids"].keys() == {topic}
    # And before apply, nothing verifies
    assert planned.verify(code=1) == [
        (0, "missing", "seen", 57, "seen", None, None),
        (1, "missing", "seen", 70, "seen", None, None),
    ]
    # And apply writes the offsets, with the metadata, but without the epoch of a foreign log
    planned.apply()
    assert committed(planned.b, unique) == {0: 57, 1: 70}
    with open_store(planned.b) as store:
        assert next(store.scan([unique])).offsets[TopicPartition(topic, 0)].value() == OffsetAndMetadata(57, "mine")
    assert planned.verify() == [
        (0, "equal", "seen", 57, "seen", 0, 0),
        (1, "equal", "seen", 70, "seen", 0, 0),
    ]
    assert "verified: 2 partitions of 1 group" in command("migrate", "verify", planned.path).stderr
    # And consumers that move on in the target make progress
    commit(planned.b, unique, topic, {0: 80})
    assert planned.verify()[0][:3] == (0, "progress", "seen")
    commit(planned.b, unique, topic, {0: 57}, allow_rewind=True)
    # And a group that goes on in the source is behind by records
    commit(planned.a, unique, topic, {0: 53})
    assert planned.verify(code=1)[0] == (0, "source-ahead", "seen", 60, "seen", 3, 0)
    commit(planned.a, unique, topic, {0: 50}, allow_rewind=True)
    # And the other steps of a migration know the plan
    (group,) = rows("migrate", "status", planned.path, "--window", "0")
    assert (group["state"], group["blocked_by"]) == ("applied", None)
    assert unique in command("migrate", "report", planned.path, code=None).stdout
    # And a rollback restores the target
    command("migrate", "rollback", planned.path, "--yes")
    assert committed(planned.b, unique) == {}


def test_a_place_that_is_not_sure_needs_the_users_word(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    # Given a copier that has changed the records 50 to 52
    topic = clusters.topic(unique)
    clusters.copy(topic, 0, 50)
    clusters.foreign(topic, 3)
    clusters.copy(topic, 53)
    clusters.commit(unique, topic, {0: 51})
    assert planned.plan(unique, code=1) == [(unique, 0, "refuse-unsure", 51, None, "missing", 3, 2)]
    assert "--accept missing writes it" in planned.note()
    # When the user accepts it, then the plan writes the earliest place, and tells how much repeats there
    assert planned.plan(unique, "--accept", "missing") == [(unique, 0, "copy", 51, 50, "missing", 3, 2)]
    shown = command(*planned.words(unique, "--accept", "missing", "--accept", "bracketed")).stderr
    assert "warning 1 place is not sure, which the user accepts; groups repeat up to 3 records there" in shown
    assert "3 records there, and skip 2 records that the target lacks" in shown
    assert f"! {unique} {topic}-0: copy: missing [50, 53]: repeats up to 3 records at 50" in shown
    planned.apply()
    assert planned.verify() == [(0, "equal", "unknown", 50, "missing", 3, 0)]
    assert "1 of them at a place that is not sure" in command("migrate", "verify", planned.path).stderr
    # And no way back skips a record that only one of the clusters holds
    # (a reverse plan has no --accept)
    not_here = "the target lacks 3 records after the position; migrate plan with --accept missing writes it"
    for there, why in ((50, not_here), (60, "the copy lacked 2 records from offset 51 on")):
        commit(planned.b, unique, topic, {0: there})
        back = planned.path.with_name(f"{there}.plan")
        shown = command("migrate", "rollback", planned.path, "--reverse-plan", back, code=1).stderr
        assert why in shown, shown
        assert shown.count("--accept") == shown.count("migrate plan with --accept")


def test_a_group_that_still_runs_in_the_source_is_named(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    topic = clusters.topic(unique)
    clusters.copy(topic)
    with consuming(clusters.a, unique, topic) as (consumer, _):
        consumer.commit(offsets=[Position(topic, 0, 50)], asynchronous=False)
        shown = command(*planned.words(unique)).stderr
        assert "1 still running in the source: the group goes on there" in shown
        assert f"! {unique} still runs in the source: rdkafka" in shown
        # Then apply compares the source with the plan
        consumer.commit(offsets=[Position(topic, 0, 51)], asynchronous=False)
        shown = planned.apply(code=1)
        assert f"warning: group {unique} still runs in the source (rdkafka" in shown
        assert f"1 group changed in the source since then: {unique}" in shown
    # Also after the group has stopped
    assert f"1 group changed in the source since then: {unique}" in planned.apply(code=1)
    planned.apply("--accept-stale")
    assert committed(planned.b, unique) == {0: 50}
    # Also if the target holds the planned offset already
    commit(planned.a, unique, topic, {0: 50}, allow_rewind=True)
    assert planned.plan(unique)[0][2] == "skip-equal"
    commit(planned.a, unique, topic, {0: 52})
    assert f"1 group changed in the source since then: {unique}" in planned.apply(code=1)


def test_a_record_that_is_not_copied_yet_has_no_place(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    topic = clusters.topic(unique)
    clusters.copy(topic, 0, 40)
    clusters.commit(unique, topic, {0: 50})
    assert planned.plan(unique, code=1) == [(unique, 0, "refuse-unsure", 50, None, "not yet", None, None)]
    assert "10 records before the position" in planned.note()
    # And a place that was sure is checked again: here the copier begins again before the position
    clusters.copy(topic, 40, RECORDS)
    assert planned.plan(unique) == [(unique, 0, "copy", 50, 50, "seen", 0, 0)]
    planned.apply()
    clusters.copy(topic, 30, 60)
    ((_, status, evidence, *_),) = planned.verify(code=1)
    assert (status, evidence) == ("unknown", "unknown")
    clusters.copy(topic, 60, RECORDS)
    assert planned.verify(code=1) == [(0, "behind", "seen", 120, "seen", 70, 0)]


def test_topics_have_other_names_in_the_target_and_their_own_on_the_way_back(
    clusters: TwoClusters, planned: Planned, unique: str, tmp_path: Path
) -> None:
    copied = f"A.{unique}"
    topic = clusters.topic(unique, copy=copied)
    clusters.foreign(copied, 5)
    clusters.copy(topic, to=copied)
    clusters.commit(unique, topic, {0: 30})
    rename = ("--rename-topic", r"(.*)=A.\1")
    assert planned.plan(unique, *rename, "--topic", topic) == [(unique, 0, "copy", 30, 35, "seen", 0, 0)]
    (row,) = rows(*planned.words(unique, *rename))
    assert (row["topic"], row["source_topic"]) == (copied, topic)
    planned.apply()
    assert planned.verify() == [(0, "equal", "seen", 35, "seen", 0, 0)]
    # When the group has consumed there
    commit(planned.b, unique, copied, {0: 75})
    back = tmp_path / "back.plan"
    command("migrate", "rollback", planned.path, "--reverse-plan", back)
    # Then the way back ends at the same record
    (step,) = (step for group in Migration(back).groups() for step in group.steps)
    assert (step.tp.topic, step.source_tp.topic, step.after and step.after.offset) == (topic, copied, 70)
    command("migrate", "apply", back, "--yes")
    assert committed(planned.a, unique) == {0: 70}
    assert rows("migrate", "verify", back)[0]["status"] == "equal"
    # And the first plan is not finalized, which could delete the offset that the way back wrote
    finalize = ("migrate", "finalize", planned.path, "--window", "1", "--delete-source", "--yes")
    assert "the source moved from 30 to 70 after the plan" in command(*finalize, code=1).stderr
    assert committed(planned.a, unique) == {0: 70}


def test_the_end_of_a_migration_may_delete_the_offsets_of_the_source(
    clusters: TwoClusters, planned: Planned, unique: str
) -> None:
    topic = clusters.topic(unique)
    clusters.foreign(topic, 5)
    clusters.copy(topic)
    clusters.commit(unique, topic, {0: 50})
    planned.plan(unique)
    planned.apply()
    finalize = ("migrate", "finalize", planned.path, "--window", "1", "--delete-source", "--yes")
    # A group that is not at the record of its present offset does not pass
    commit(planned.a, unique, topic, {0: 52})
    assert "1 of 1 partition do not verify" in command(*finalize, code=1).stderr
    commit(planned.a, unique, topic, {0: 50}, allow_rewind=True)
    commit(planned.b, unique, topic, {0: 75})
    command(*finalize)
    assert committed(planned.a, unique) == {}
    assert planned.verify()[0][:3] == (0, "source-gone", "seen")


def test_what_cannot_be_translated_is_refused_by_name(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    topic = clusters.topic(unique)
    clusters.copy(topic)
    other = clusters.topic(f"{unique}-other", 2, partitions_of_copy=3)
    with open_store(planned.a) as store:
        state = OffsetAndMetadata(5, "bAAAABIgYml0cyBvZiByZWNvcmRz")
        store.commit(unique, {TopicPartition(topic, 0): state, TopicPartition(other, 0): OffsetAndMetadata(5)})
    refused = planned.plan(unique, code=1)
    assert [row[1:3] for row in refused] == [(0, "refuse-untranslated"), (0, "refuse-untranslated")]
    notes = [step.note for group in Migration(planned.path).groups() for step in group.steps]
    assert "its commit metadata is parallel-consumer's encoding" in notes[0]
    assert "it has 2 partitions in the source" in notes[1]
    # And options that change numbers do not go with it
    for words in (["--clamp"], ["--shift", "1"]):
        assert "cannot be combined" in command(*planned.words(unique, *words), code=2).stderr
    # And neither do names that match nothing or one another
    none = command(*planned.words(unique, "--rename-topic", r"none-(.*)=\1"), code=2).stderr
    assert "no topic of the source has such a name" in none
    both = command(*planned.words(unique, "--rename-topic", ".*=one"), code=2).stderr
    assert f"topics {topic} and {other}: both are topic one in the target" in both


def test_a_target_that_is_ahead_is_kept_by_the_users_word(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    topic = clusters.topic(unique)
    clusters.foreign(topic, 5)
    clusters.copy(topic)
    clusters.commit(unique, topic, {0: 50}, {0: 60})
    assert planned.plan(unique, code=1)[0][2] == "refuse-rewind"
    assert planned.plan(unique, "--if-ahead", "keep")[0][2] == "keep-newer"
    assert planned.verify()[0][:3] == (0, "kept-ahead", "seen")
    assert planned.plan(unique, "--allow-rewind")[0][2:5] == ("rewind", 50, 55)
    assert planned.verify(code=1) == [(0, "not-rewound", "seen", 55, "seen", 0, 5)]
    planned.apply()
    assert planned.verify()[0][:2] == (0, "equal")
    # An equal offset is no equal record
    commit(planned.b, unique, topic, {0: 50}, allow_rewind=True)
    assert planned.verify(code=1) == [(0, "behind", "seen", 55, "seen", 5, 0)]


def test_a_consumer_that_jumps_to_the_end_before_apply_or_in_a_new_log_is_no_progress(
    clusters: TwoClusters, planned: Planned, unique: str
) -> None:
    topic = clusters.topic(unique)
    clusters.copy(topic)
    clusters.commit(unique, topic, {0: 20})
    planned.plan(unique)
    # A consumer starts too early in the target, at its end
    commit(planned.b, unique, topic, {0: 100})
    assert "another program may commit there" in planned.apply(code=1)
    assert planned.verify(code=1) == [(0, "ahead-unproven", "unknown", 20, "seen", 0, 80)]
    # Or the target's topic is recreated after apply, and the consumer starts at the end of the new one
    commit(planned.b, unique, topic, {0: 20}, allow_rewind=True)
    planned.plan(unique)
    planned.apply()
    recreate(clusters.b, topic, records=0)
    clusters.copy(topic)
    commit(planned.b, unique, topic, {0: 100})
    assert planned.verify(code=1) == [(0, "ahead-unproven", "unknown", 20, "seen", 0, 80)]


def test_groups_that_share_a_position_share_the_work(
    clusters: TwoClusters, planned: Planned, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = clusters.topic(unique)
    clusters.copy(topic)
    read = create_autospec(KafkaCluster.read_log, side_effect=KafkaCluster.read_log)
    monkeypatch.setattr(KafkaCluster, "read_log", read)
    reads = []
    for number in range(3):
        clusters.commit(f"{unique}-{number}", topic, {0: 50})
        read.reset_mock()
        assert len(planned.plan(f"{unique}-*")) == number + 1
        reads.append(read.call_count)
    assert reads[0] == reads[1] == reads[2] > 0


def test_a_plan_for_logs_that_are_gone_is_refused(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    topic = clusters.topic(unique)
    clusters.copy(topic)
    clusters.commit(unique, topic, {0: 50})
    planned.plan(unique)
    recreate(clusters.a, topic, RECORDS)
    shown = planned.apply(code=1)
    assert f"topic {topic} of the source: the topic was deleted and recreated" in shown
    assert "hint: plan them again: offsetmgr migrate renew" in shown
    renewed = planned.path.with_name("renewed.plan")
    clusters.copy(topic)
    commit(planned.a, unique, topic, {0: 50})
    command("migrate", "renew", planned.path, "-o", renewed, code=None)
    (step,) = (step for group in Migration(renewed).groups() for step in group.steps)
    assert step.action == "refuse-recreated"
    assert committed(planned.b, unique) == {}
    # A topic of the target that was recreated is no copy any more
    commit(planned.a, unique, topic, {0: 60})
    assert planned.plan(unique)[0][2:4] == ("copy", 60)
    recreate(clusters.b, topic, 5 * RECORDS)
    shown = planned.apply(code=1)
    assert "the topic was deleted and recreated: its topic id was" in shown
    assert "needs a new plan" in shown and "run the same command again" not in shown
    assert "make a new plan" in command("migrate", "verify", planned.path, "--format", "json", code=1).stdout
    assert committed(planned.b, unique) == {}


def test_a_killed_apply_continues(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    topic = clusters.topic(unique)
    clusters.foreign(topic, 5)
    clusters.copy(topic)
    positions = {f"{unique}-{number}": {0: 10 + number} for number in range(12)}
    for group, found in positions.items():
        clusters.commit(group, topic, found)
    planned.plan(f"{unique}-*")
    process = start_command("migrate", "apply", str(planned.path), "--yes")
    while process.poll() is None and "apply-intent" not in planned.written():
        pass
    process.send_signal(signal.SIGKILL)
    finish(process, -signal.SIGKILL)
    assert "apply-complete" not in planned.written()
    planned.apply()
    assert {group: committed(planned.b, group) for group in positions} == {
        group: {0: found[0] + 5} for group, found in positions.items()
    }
    assert "verified: 12 partitions of 12 groups" in command("migrate", "verify", planned.path).stderr


def test_the_library_plans_with_rules(clusters: TwoClusters, planned: Planned, unique: str) -> None:
    topic = clusters.topic(unique, copy=f"B.{unique}")
    clusters.copy(topic, to=f"B.{unique}")
    clusters.commit(unique, topic, {0: 50})
    rules, options = TranslationRules((r"(.*)=B.\1",)), PlanOptions(groups=(unique,))
    with Migration.plan(planned.a, planned.b, planned.path, options, translate=rules) as migration:
        assert migration.header.translate == rules
        migration.apply()
        assert migration.verify().summary.ok
        # The group goes on in the source, so a plan of its new position is needed
        commit(planned.a, unique, topic, {0: 51})
        assert not migration.verify().summary.ok
