"""``offsets diff --translate auto``: two real clusters, and a copier that does what replicators do."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from committed_offsets import commit
from in_process import command, rows
from two_clusters import RECORDS, TwoClusters

from offsetmgr import OffsetAndMetadata, TopicPartition, TranslationRules, open_store
from offsetmgr.core.errors import UnsupportedOperation, UsageError
from offsetmgr.core.model import LogRange
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.translation.alignment import Alignment, LogStretch, Translation, Verdict
from offsetmgr.translation.comparison import CommittedPositions, PositionDifference
from offsetmgr.translation.translator import TooMuch, TranslatedPartition, Translations


@pytest.mark.servers
def test_each_position_is_compared_with_the_place_of_its_record(
    clusters: TwoClusters, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = clusters.twice(unique)
    for group, b in {"right": {0: 57, 1: 70}, "early": {0: 47, 1: 50}, "late": {0: 60, 1: 71}}.items():
        clusters.commit(f"{unique}-{group}", topic, {0: 50, 1: 50}, b)
    clusters.commit(f"{unique}-only-a", topic, {1: 20, 0: RECORDS})
    # Then exactly the positions at other records are differences, by the number of records
    assert clusters.diff(f"{unique}-*") == [
        (f"{unique}-early", 0, 50, 47, 57, 10, 0, "seen"),
        (f"{unique}-early", 1, 50, 50, 70, 20, 0, "seen"),
        (f"{unique}-late", 0, 50, 60, 57, 0, 3, "seen"),
        (f"{unique}-late", 1, 50, 71, 70, 0, 1, "seen"),
        (f"{unique}-only-a", 0, RECORDS, None, 7 + RECORDS, None, None, "seen"),
        (f"{unique}-only-a", 1, 20, None, 20, None, None, "seen"),
    ]
    shown = command(*clusters.arguments(f"{unique}-*"), code=1)
    outcomes = "2 at the right record, 2 repeat 30 records, 2 skip 4 records, 2 without an offset in the target"
    assert shown.stderr.endswith(f"8 partitions: {outcomes}\n")
    titles = shown.stdout.splitlines()[0].split()
    assert titles == ["GROUP", "TOPIC", "PART", "FROM", "TO", "RIGHT", "REPEATS", "SKIPS", "VERDICT", "NOTE"]
    # And a large read is announced
    monkeypatch.setattr("offsetmgr.app.translation._MANY_RECORDS", 100)
    monkeypatch.setattr("offsetmgr.cli.render.PROGRESS_AFTER_S", 0)
    large = command(*clusters.arguments(f"{unique}-*", "--max-read", "1GB"), code=1).stderr
    sides = f"kafka://{clusters.a} -> kafka://{clusters.b}"
    read = "reading about 130 records in each cluster, at most 2 GB of 2 partitions; --max-read and --throttle limit it"
    assert large.startswith(f"{sides}\n{read}\nreading both logs, KiB: ")
    # And one that ends too early names a limit that suffices
    few = command(*clusters.arguments(f"{unique}-early", "--max-read", "10"), code=1).stderr
    assert "hint: --max-read 1MB reads far enough\n" in few
    assert "max-read" not in command(*clusters.arguments(f"{unique}-early", "--max-read", "1MB"), code=1).stderr
    # And a group at the right records has none
    assert clusters.diff(f"{unique}-right", code=0) == []
    assert "2 partitions: 2 at the right record" in command(*clusters.arguments(f"{unique}-right")).stderr
    # And a comparison of the numbers warns that they belong to other logs
    plain = clusters.arguments(f"{unique}-right")
    assert "equal offsets are not the same records; --translate auto" in command(*plain[:6], *plain[8:], code=1).stderr


@pytest.mark.servers
def test_topics_and_groups_may_have_other_names_in_the_target(clusters: TwoClusters, unique: str) -> None:
    copied = f"A.{unique}"
    topic = clusters.topic(unique, copy=copied)
    clusters.copy(topic, to=copied)
    clusters.commit(unique, topic, {0: 30}, {0: 29}, copied)
    rename = ("--rename-topic", r"(.*)=A.\1")
    assert clusters.diff(unique, *rename) == [(unique, 0, 30, 29, 30, 1, 0, "seen")]
    (row,) = rows(*clusters.arguments(unique, "--topic", topic, *rename), code=1)
    assert (row["topic"], row["to_topic"]) == (topic, copied)
    # Without the rule, the target has no copy of the topic, and its offset is one of another topic
    shown = command(*clusters.arguments(unique, "--format", "json"), code=1)
    assert f"topic {unique}: the target has no such topic\nhint: if the target's topic has another name" in shown.stderr
    assert [row["verdict"] for row in json.loads(shown.stdout)] == ["only-to", "refused"]
    # A topic of the target that has the source's name is no copy
    clusters.make_topic(topic, bootstrap=clusters.b)
    commit(f"kafka://{clusters.b}", unique, topic, {0: 0})
    shown = command(*clusters.arguments(unique, *rename), code=1)
    assert f"not compared: offsets in topics of the target that are no copies: {topic}\n1 partition: 0" in shown.stderr
    # A rule with another result, and names that match nothing
    wrong = command(*clusters.arguments(unique, "--rename-topic", rf"{topic}=B.{topic}"), code=1).stderr
    assert "hint: check the name that --rename-topic gives in the target\n" in wrong
    assert f"not compared: offsets in topics of the target that are no copies: {copied}, {topic}" in wrong
    none = command(*clusters.arguments(unique, "--rename-topic", r"A\.none-(.*)=\1"), code=2).stderr
    assert r"error: --rename-topic 'A\.none-(.*)=\1': no topic of the source has such a name" in none
    assert f"hint: a pattern must match a whole name in the source: {topic}\n" in none
    other = command(*clusters.arguments("--all-groups", "--rename", "none=other"), code=2).stderr
    assert "--rename 'none=other': the source has no group none, and the target no group other" in other
    # And back, with another name of the group
    commit(f"kafka://{clusters.a}", f"{unique}-back", topic, {0: 29})
    back = ["--from", f"kafka://{clusters.b}", "--to", f"kafka://{clusters.a}", "--translate", "auto"]
    names = ["--rename-topic", r"A\.(.*)=\1", "--rename", f"{unique}={unique}-back"]
    topics = ("--topic", copied)
    assert command("offsets", "diff", unique, *topics, *back, *names).stdout == ""
    # And a comparison of nothing is an error
    none = command(*clusters.arguments(unique, "--topic", "none"), code=1).stderr
    assert "error: topic none: not among the groups' offsets in" in none
    assert " partitions: " not in none
    assert "hint: --topic selects names in the source; check the names" in none
    # And a group with offsets only in the target may be in another store
    commit(f"kafka://{clusters.b}", f"{unique}-b", topic, {0: 29})
    only_b = command(*clusters.arguments(f"{unique}-b"), code=1).stderr
    assert f"hint: group {unique}-b has no offset in kafka://{clusters.a}; --from names another store" in only_b


@pytest.mark.servers
def test_topics_and_metadata_that_cannot_be_translated_are_refused_by_name(clusters: TwoClusters, unique: str) -> None:
    topic = clusters.topic(unique, 2, partitions_of_copy=3)
    clusters.commit(unique, topic, {0: 10, 1: 10})
    other = clusters.topic(f"{unique}-other")
    clusters.copy(other)
    with open_store(f"kafka://{clusters.a}") as store:
        state = OffsetAndMetadata(5, "bAAAABIgYml0cyBvZiByZWNvcmRz")
        store.commit(unique, {TopicPartition(other, 0): state})
    swapped = clusters.topic(f"{unique}-swapped", 2)
    clusters.copy(swapped, to_partition=1)
    clusters.copy(swapped, partition=1, to_partition=0)
    clusters.commit(unique, swapped, {0: 10})
    shown = command(*clusters.arguments(unique), code=1)
    assert f"error: {swapped}-0: its records lie in {swapped}-1 of the target" in shown.stderr
    assert f"error: topic {topic}: it has 2 partitions in the source, and {topic} has 3 in the target" in shown.stderr
    assert "its commit metadata is parallel-consumer's encoding" in shown.stderr
    assert shown.stderr.endswith("4 partitions: 0 at the right record, 4 not known (4 refused)\n")
    assert {row[7] for row in clusters.diff(unique)} == {"refused"}


@pytest.mark.servers
def test_the_source_may_be_zookeeper_whose_brokers_have_the_logs(
    clusters: TwoClusters, zookeeper: ZooKeeperServer, unique: str
) -> None:
    topic = clusters.topic(unique)
    clusters.copy(topic, 10)
    source = f"zookeeper://{zookeeper.connect}/kafka"
    commit(source, unique, topic, {0: 40})
    commit(f"kafka://{clusters.b}", unique, topic, {0: 40})
    sides = ("--from", source, "--to", f"kafka://{clusters.b}")
    (row,) = rows("offsets", "diff", unique, *sides, "--translate", "auto", code=1)
    assert (row["from_offset"], row["right_offset"], row["skips"]) == (40, 30, 10)


@pytest.mark.servers
def test_stores_of_one_cluster_and_files_are_refused(clusters: TwoClusters, unique: str) -> None:
    clusters.commit(unique, clusters.topic(unique), {0: 5})
    here = f"kafka://{clusters.a}"
    same = command("offsets", "diff", unique, "--from", here, "--to", here, "--translate", "auto", code=2).stderr
    assert "both stores belong to one cluster" in same
    assert "compare the offsets: leave out --translate" in same


TP = TopicPartition("orders", 0)


def positions(
    verdict: Verdict, to: int | None, *accepted: Verdict, right: int | None = 57, alignment: Alignment | None = None
) -> CommittedPositions:
    committed = CommittedPositions(accepted)
    committed.add("g", TP, 50, to)
    translation = Translation(verdict, right, upper=60 if verdict is Verdict.BRACKETED else None, why="why")
    log = LogRange(5, 110) if alignment else None
    committed.compare(TranslatedPartition(TP, TP, {50: translation}, alignment=alignment, log=log))
    return committed


def compared(*given: Any, **options: Any) -> list[PositionDifference]:
    return list(positions(*given, **options).differences())


def test_only_accepted_verdicts_count_as_the_right_record() -> None:
    seen, inferred = Verdict.SEEN, Verdict.INFERRED
    assert compared(seen, 57, seen) == []
    (one,) = compared(inferred, 57, seen)
    assert (one.verdict, one.right, one.note) == ("inferred", 57, "why")
    assert compared(inferred, 57, seen, inferred) == []
    (one,) = compared(Verdict.BRACKETED, 57, seen, inferred)
    assert (one.right, one.right_end, one.note) == (57, 60, "right is 57 to 60; why")
    (one,) = compared(Verdict.UNKNOWN, None, seen, right=None)
    assert (one.from_offset, one.to_offset, one.right, one.note) == (50, None, None, "why")


@pytest.mark.parametrize(
    ("to", "repeats", "note"),
    [
        (10, 47, "repeats are counted by offsets: these records were not read"),
        (3, None, "3 is outside the target's log, 5 to 110"),
        (111, None, "111 is outside the target's log, 5 to 110"),
        (105, None, ""),
    ],
)
def test_an_offset_of_the_target_may_be_one_whose_records_were_not_read(to: int, repeats: int, note: str) -> None:
    stretch = SimpleNamespace(b=LogStretch(first=30, start=5, end=100, hidden=10), difference=lambda *_: None)
    (one,) = compared(Verdict.SEEN, to, Verdict.SEEN, alignment=cast(Any, stretch))
    assert (one.repeats, one.note) == (repeats, f"why; {note}".removesuffix("; "))


@pytest.mark.parametrize(
    ("verdict", "to", "outcome"),
    [
        (Verdict.BRACKETED, 70, "1 skips 10 to 13 records (bracketed)"),
        (Verdict.BRACKETED, 58, "1 skips 0 to 1 record (bracketed)"),
        (Verdict.BRACKETED, 57, "1 not known (1 bracketed)"),
        (Verdict.MISSING, 62, "1 skips 5 records, and the target lacks others (missing)"),
        (Verdict.INFERRED, 62, "1 skips 5 records (inferred)"),
    ],
)
def test_the_summary_counts_records_that_a_group_skips_in_each_case(verdict: Verdict, to: int, outcome: str) -> None:
    def difference(_: int, right: Translation, committed: int, surely: bool = False) -> tuple[int, int]:
        first = right.upper if surely else right.offset
        return 0, max(0, committed - (first or right.offset or 0))

    alignment = cast(Any, SimpleNamespace(difference=difference, superseded=lambda *_: 0))
    committed = positions(verdict, to, Verdict.SEEN, alignment=alignment)
    list(committed.differences())
    assert str(committed.counts) == f"1 partition: 0 at the right record, {outcome}"


def test_two_topics_with_one_name_in_the_target_are_refused() -> None:
    translations = Translations(cast(Any, None), TranslationRules((".*=all",)))
    translations.target(TP)
    with pytest.raises(UsageError, match="topics orders and payments: both are topic all in the target"):
        translations.target(TopicPartition("payments", 0))


def test_a_later_position_hides_no_record_that_the_target_lacks() -> None:
    def translate(positions: dict[TopicPartition, set[int]], *_: object) -> list[TranslatedPartition]:
        lacking = 10 if 5 in positions[TP] else 0
        return [
            TranslatedPartition(
                TP, TP, {one: Translation(Verdict.SEEN, one) for one in positions[TP]}, None, lacking=lacking
            )
        ]

    translator = SimpleNamespace(topic_ids=lambda _: {}, translate=translate)
    translations = Translations(cast(Any, translator), TranslationRules())
    for position in (9, 5, 7):
        translations.load([(TP, position)])
    assert translations.partitions[TP].lacking == 10


def test_a_partition_whose_log_cannot_be_read_is_no_partition_at_the_right_record() -> None:
    committed = CommittedPositions()
    other, third = TopicPartition("orders", 1), TopicPartition("orders", 2)
    for tp in (TP, other, third):
        committed.add("g", tp, 50, 50)
    committed.compare(TranslatedPartition(TP, TP, {}, UnsupportedOperation("topic orders", "why")))
    committed.compare(TranslatedPartition(other, other, {}, TooMuch("reading the logs", "why")))
    assert [one.verdict for one in committed.differences()] == ["refused", "unknown", "unreadable"]
    kinds = "1 refused, 1 unknown, 1 unreadable"
    assert str(committed.counts) == f"3 partitions: 0 at the right record, 3 not known ({kinds})"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rename-topic", "orders"], "--rename-topic 'orders': must be PATTERN=REPLACEMENT"),
        (["--rename-topic", "(=x"], "--rename-topic '(=x': not a regular expression"),
        (["--rename-topic", r"a=\2"], "invalid group reference 2"),
        (["--max-read", "much"], "--max-read: 'much' is not a number of bytes"),
        (["--rename", "old"], "--rename 'old': must be OLD=NEW"),
    ],
)
def test_a_wrong_value_is_a_usage_error(words: list[str], message: str) -> None:
    sides = ("--from", "file:a.csv", "--to", "file:b.csv")
    assert message in command("offsets", "diff", *sides, "--translate", "auto", *words, code=2).stderr


def test_the_options_of_a_translation_need_one() -> None:
    sides = ("--from", "file:a.csv", "--to", "file:b.csv")
    assert "add --translate auto" in command("offsets", "diff", *sides, "--throttle", "1MB", code=2).stderr
    shown = command("offsets", "diff", *sides, "--translate", "auto", code=1).stderr
    assert "has no logs of Kafka 0.8 or later" in shown


def test_several_contexts_are_no_two_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "config.toml"))
    for name in ("one", "two"):
        command("context", "add", name, "--bootstrap-server", "127.0.0.1:1")
    shown = command("offsets", "diff", "--context", "one,two", "--translate", "auto", code=2).stderr
    assert "hint: name both clusters with --from and --to" in shown


def test_an_option_without_its_value_names_its_command() -> None:
    assert "hint: see offsetmgr offsets diff --help" in command("offsets", "diff", "--translate", code=2).stderr
