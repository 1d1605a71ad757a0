"""``migrate readiness``: could groups resume in the target if the source were lost now? Two real clusters."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTopic
from in_process import Output, command, rows
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from two_clusters import RECORDS, TwoClusters, consuming

from offsetmgr.app import migrate
from offsetmgr.app.connections import connect
from offsetmgr.core.document import moment
from offsetmgr.core.errors import FileFailure, TimedOut, Unreachable
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.selection import GroupSelection
from offsetmgr.sandbox import KraftBroker
from offsetmgr.translation import readiness
from offsetmgr.translation.comparison import PositionCounts, UnsureSkips
from offsetmgr.translation.readiness import GroupReadiness, LastReadiness, Readiness

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NUMBERS = ("group", "partitions", "repeats", "skips", "absent", "unknown", "reasons")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "offsetmgr" / "readiness"


def arguments(clusters: TwoClusters, *words: object) -> list[str]:
    sides = ["--from", f"kafka://{clusters.a}", "--to", f"kafka://{clusters.b}"]
    return ["migrate", "readiness", *sides, *map(str, words)]


def check(clusters: TwoClusters, *words: object, code: int = 1) -> Output:
    return command(*arguments(clusters, *words), code=code)


def numbers(clusters: TwoClusters, *words: object, code: int = 1) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    """The rows of the groups: group, partitions, repeats, skips, absent, unknown, reasons; and the last row."""
    *groups, total = rows(*arguments(clusters, *words), code=code)
    return [tuple(row[name] for name in NUMBERS) for row in groups], total


def shown(text: str) -> list[str]:
    """The consequences, without the line of the clusters and what follows them."""
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert lines.pop().startswith("compared: ")
    return lines


@pytest.mark.servers
def test_each_group_has_the_records_that_it_would_repeat_and_skip(clusters: TwoClusters, unique: str) -> None:
    # Given a copy that lacks the last 10 records of partition 0, and the same groups in both clusters
    topic = clusters.topic(unique, 3)
    clusters.foreign(topic, 7)
    clusters.copy(topic, stop=90)
    clusters.copy(topic, partition=1)
    clusters.copy(topic, partition=2, stop=97)
    right, behind, ahead, absent, beyond = (f"{unique}-{one}" for one in ("a", "b", "c", "d", "e"))
    clusters.commit(right, topic, {0: 50, 1: 50}, {0: 57, 1: 50})
    clusters.commit(behind, topic, {0: 50, 1: 50}, {0: 47, 1: 40})
    clusters.commit(ahead, topic, {0: 50}, {0: 60})
    clusters.commit(absent, topic, {0: 50, 1: 50}, {0: 57})
    # and one that has processed records that only A holds: it repeats what follows its offset at B
    clusters.commit(beyond, topic, {0: 99, 1: RECORDS}, {0: 87, 1: RECORDS})
    # Then each group has its numbers, and partition 2, in which no group has an offset, is compared too
    groups, total = numbers(clusters, f"{unique}-*")
    assert groups == [
        (right, 2, 0, 0, 0, 0, None),
        (behind, 2, 20, 0, 0, 0, None),
        (ahead, 1, 0, 3, 0, 0, None),
        (absent, 2, 0, 0, 1, 0, None),
        (beyond, 2, 10, 0, 0, 0, None),
    ]
    assert (total["group"], total["repeats"], total["only_source"], total["unknown_partitions"]) == (None, 30, 13, 0)
    out, err = check(clusters, f"{unique}-*")
    assert [line.split()[0] for line in out.splitlines()[1:]] == [behind, ahead, absent, beyond]
    assert f"if kafka://{clusters.a} were lost now:" in err
    assert shown(err) == [
        "1 of 5 groups would resume at the right record",
        "2 groups would repeat 30 records",
        "1 group would skip 3 records that the target holds",
        "1 position without an offset there: auto.offset.reset decides",
        "0 positions not known",
        f"13 records that only the source holds would be lost, in {topic}-0, {topic}-2",
    ]
    assert "next: offsetmgr offsets diff --from " in err and f"--translate auto --group '{unique}-*'\n" in err
    # and the exit code is 0 within the bounds, each of which counts
    assert check(clusters, right, "--max-lost", 13, code=0).stderr.endswith("\nready\n")
    assert "not ready, by --max-repeats 0 and --max-lost 12" in check(clusters, right, "--max-lost", 12).stderr
    assert check(clusters, right, behind, "--max-lost", 13, "--max-repeats", 20, code=0).stdout == ""
    for group, repeats in ((behind, 19), (ahead, 99), (absent, 99)):
        check(clusters, group, "--max-lost", 13, "--max-repeats", repeats)
    # and only the selected partitions are compared
    assert numbers(clusters, right, "--topic", f"{topic}:1", code=0)[1]["only_source"] == 0
    assert right in check(clusters, right, "--topic", f"{topic}:1", "--all", code=0).stdout
    # and a program gets the same numbers
    with connect(f"kafka://{clusters.b}") as connections:
        sides = f"kafka://{clusters.a}", f"kafka://{clusters.b}"
        found = migrate.readiness(connections, *sides, GroupSelection(f"{unique}-*"))
    assert [(one.name, one.repeats, one.skips, one.absent, one.unknown) for one in found.groups] == [
        (row[0], *row[2:6]) for row in groups
    ]
    assert found.is_ready(20, 13) is False and found.only_source == 13


@pytest.mark.servers
def test_only_a_group_with_members_lives_in_the_target(clusters: TwoClusters, unique: str, tmp_path: Path) -> None:
    # Given a group that offsetmgr has moved, without its partition 1, and one that may have members
    topic, plan = clusters.topic(f"{unique}-t", 2), tmp_path / "plan"
    clusters.foreign(topic, 7)
    clusters.copy(topic)
    clusters.copy(topic, partition=1)
    moved, member = f"{unique}-a", f"{unique}-b"
    clusters.commit(moved, topic, {0: 50})
    command("migrate", "plan", moved, *arguments(clusters)[2:], "--translate", "auto", "-o", plan)
    command("migrate", "apply", plan, "--yes")
    clusters.commit(moved, topic, {1: 50}, {0: 60})
    clusters.commit(member, topic, {0: 50}, {0: 60})
    with consuming(clusters.b, member, topic):
        # Then the members are named, and the loss of A changes nothing for them: nothing is counted
        assert numbers(clusters, f"{unique}-*")[0] == [
            (moved, 2, 0, 3, 1, 0, None),
            (member, 1, None, None, None, None, None),
        ]
        lines = shown(check(clusters, member, code=0).stderr)
        assert lines[0].startswith(f"1 group already lives in the target: {member} (1 member: rdkafka")
        assert f'group_id="{member}"' not in check(clusters, member, "--format", "prometheus", code=0).stdout
        # and an offset of another writer is named, but its group is checked
        out, err = check(clusters, f"{unique}-*")
        assert f"a plan wrote 57 to {topic}-0 there, which is at 60 now: another command, or a consumer" in out
        assert "1 position without an offset there" in err and "0 of 1 group would resume at the right record" in err
    assert [one[3] for one in numbers(clusters, f"{unique}-*")[0]] == [3, 3]


@pytest.mark.servers
def test_what_is_not_known_never_passes_and_is_never_zero(clusters: TwoClusters, unique: str) -> None:
    # Given a copy whose end equals no record of A, a topic that B lacks, and an offset that only B has
    changed, absent, good = clusters.topic(f"{unique}-x"), f"{unique}-y", clusters.topic(f"{unique}-z", 2)
    clusters.copy(changed)
    clusters.foreign(changed, 3)
    clusters.make_topic(absent, bootstrap=clusters.a)
    for partition in range(2):
        clusters.copy(good, partition=partition)
    clusters.commit(unique, changed, {0: 50}, {0: 50})
    clusters.commit(unique, absent, {0: 0})
    clusters.commit(unique, good, {0: 50}, {0: 50, 1: 50})
    clusters.commit(f"{unique}-far", good, {0: 50}, {0: 500})
    # Then nothing of it counts as 0, and the bounds do not matter
    bounds = ("--max-repeats", 999, "--max-lost", 999)
    groups, total = numbers(clusters, f"{unique}*", *bounds)
    assert groups[0][:6] == (unique, 4, 0, 0, 0, 3)
    assert groups[0][6] == "1 bracketed, 1 only-to, 1 refused"
    assert groups[1] == (f"{unique}-far", 1, 0, 0, 0, 1, "1 outside the log")
    assert (total["unknown"], total["only_source"], total["unknown_partitions"]) == (4, 0, 2)
    out, err = check(clusters, f"{unique}*", *bounds)
    assert f"topic {absent}: the target has no such topic" in err
    assert "4 positions not known (1 bracketed, 1 only-to, 1 outside the log, 1 refused)" in err
    assert "in 2 more partitions, their number is not known" in err
    assert "500 is outside the target's log, 0 to 100" in out
    # and a part of A's log that was not read is not known either
    few = check(clusters, f"{unique}-far", "--max-read", 10, *bounds).stderr
    assert "their number is not known" in few and "hint: --max-read 1MB reads far enough" in few
    # and a group that is only at B does not need A
    clusters.commit(f"{unique}-b", good, {0: 0})
    with pytest.raises(AssertionError, match="nothing to check"):
        command(
            "migrate", "readiness", f"{unique}-b", "--from", f"kafka://{clusters.b}", "--to", f"kafka://{clusters.a}"
        )


@pytest.mark.servers
def test_without_the_source_the_last_known_state_is_shown_with_its_age(
    kraft: KraftBroker, make_topic: MakeTopic, unique: str, tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KraftBroker(tmp_path / "a") as broker:
        clusters = TwoClusters(broker.bootstrap, kraft.bootstrap, make_topic)
        topic = clusters.topic(unique)
        clusters.copy(topic, stop=95)
        clusters.commit(unique, topic, {0: 50}, {0: 47})
        bounds = ("--max-repeats", 3, "--max-lost", 5)
        # Given two checks at once, of which neither disturbs the other
        line = [sys.executable, "-m", "offsetmgr", *arguments(clusters, unique, *bounds, "--format", "csv")]
        both = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [(one.communicate()[0].count("\n"), one.returncode) for one in both] == [(3, 0), (3, 0)]
        (file,) = state.iterdir()
        names = (f"{unique}*", unique)
        numbers(clusters, *names, *bounds, code=0)
        before = numbers(clusters, unique, *bounds, code=0)
        # When A is killed
        broker.kill()
    # Then the same command shows the last numbers with their age, and fails
    groups, total = numbers(clusters, unique, *bounds)
    assert (groups, total["only_source"], total["current"]) == (before[0], 5, False)
    assert total["checked_at"] == before[1]["checked_at"] and total["age_ms"] > 0
    err = check(clusters, unique, *bounds).stderr
    assert err.startswith(f"error: the source kafka://{clusters.a} does not respond: ")
    ago = rf"as of \d+-\d\d-\d\d \d\d:\d\d UTC, [\d.]+ \w+ ago, if kafka://{clusters.a} had been lost then:"
    assert re.search(ago, err) and "1 group would repeat 3 records" in shown(err)
    assert err.endswith("\nready then\n")
    text, _ = check(clusters, unique, *bounds, "--format", "prometheus")
    found = {one.name: one.samples[0].value for one in text_string_to_metric_families(text)}
    assert [*found] == [one.name for one in openmetrics.text_string_to_metric_families(text)]
    assert found["offsetmgr_readiness_timestamp_seconds"] == before[1]["checked_at"] / 1000
    assert found["offsetmgr_readiness_current"] == 0 and found["offsetmgr_read_errors"] == 1
    assert found["offsetmgr_readiness_group_repeats"] == 3 and found["offsetmgr_readiness_only_source"] == 5
    # and the order of the names does not matter
    assert numbers(clusters, *reversed(names), *bounds)[0] == before[0]
    # and another selection names the command that shows it
    other = check(clusters, "--all-groups").stderr
    assert f"hint: a last known state is saved of other options, of {moment(before[1]['checked_at'])}" in other
    assert f"--group {unique}" in other
    # and the addresses may be other ones of the same cluster
    a, b = f"localhost:{clusters.a.partition(':')[2]},127.0.0.1:1", f"127.0.0.1:1,{clusters.b}"
    respelled = numbers(TwoClusters(a, b, make_topic), unique, *bounds)
    assert (respelled[0], respelled[1]["checked_at"]) == (before[0], before[1]["checked_at"])
    unknown = check(TwoClusters("127.0.0.1:1", clusters.b, make_topic), unique).stderr
    assert f"There are states from kafka://{clusters.a} to kafka://{clusters.b} of " in unknown
    assert f"to show one: offsetmgr migrate readiness --from kafka://{clusters.a}" in unknown
    # and a state of another cluster, a damaged one and one of a newer version are not shown
    content = file.read_bytes()
    monkeypatch.setattr(readiness, "VERSION", 2)
    assert "hint: the last known state in" in (newer := check(clusters, unique).stderr)
    assert "is of version 1; known: 2; use the offsetmgr that wrote it" in newer
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file.write_bytes(content[:-9])
    assert "is not JSON: " in (damaged := check(clusters, unique).stderr) and "; delete the file" in damaged
    for saved in state.iterdir():
        saved.unlink()
    assert "hint: there is no last known state" in check(clusters, unique).stderr
    assert 'errors{command="migrate readiness"} 1' in check(clusters, unique, "--format", "prometheus").stdout


def test_the_files_are_bounded_and_an_unwritable_directory_is_no_failure_of_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "_MAX_FILES", 3)
    monkeypatch.setattr(readiness, "_MAX_GROUPS", 2)
    groups = tuple(GroupReadiness(name, 1, repeats) for name, repeats in (("a", 0), ("b", 7), ("c", 0)))
    checked = Readiness("kafka://a", "kafka://b", 0, {"source": "A", "target": "B"}, {"all_groups": True}, groups)
    kept = [LastReadiness(tmp_path, ("kafka://a", "kafka://b"), {"all_groups": True, "topic": (n,)}) for n in "abcde"]
    for one in kept:
        one.save(checked)
        one.save(checked)
    assert [one.path.exists() for one in kept[-3:]] == [True] * 3 and len(list(tmp_path.iterdir())) == 3
    # The groups that are not ready are kept first, and the others still count
    silent = Unreachable("the source kafka://a does not respond")
    known = kept[-1].instead(silent, {})
    assert [one.name for one in known.groups] == ["b", "a"] and known.silent is silent
    assert "  2 of 3 groups would resume at the right record" in [*known.lines(0)] and not known.is_ready(7)
    # The numbers belong to one cluster
    kept[-1].instead(silent, {"target": LogOrigin("B", "")})
    with pytest.raises(Unreachable) as raised:
        kept[-1].instead(silent, {"target": LogOrigin("C", "")})
    assert raised.value.hint == "the last known state is of another target, cluster B"
    blocked = LastReadiness(kept[-1].path / "below", ("a", "b"), {})
    with pytest.raises(FileFailure):
        blocked.save(checked)


def test_a_position_that_is_not_sure_counts_as_unknown_and_skips_at_least_its_least() -> None:
    counts = PositionCounts(4, right=1, unsure_skips={"bracketed": UnsureSkips(2, 3, 9)}, elsewhere=1)
    group = GroupReadiness.of("g", counts)
    assert (group.partitions, group.skips, group.unknown) == (4, 3, 3)
    assert group.reasons_text == "2 bracketed, 1 outside the log"
    sides = Readiness("kafka://a", "kafka://b", 0, {}, {})
    with pytest.raises(TimedOut):
        sides.of({}, {}, [TimedOut("broker", "no answer")])
    partly = sides.of({"g": PositionCounts(1, right=1)}, {T0: 4, T1: None}, [TimedOut("broker", "no answer")])
    assert (partly.only_source, partly.unknown_partitions) == (4, 1)
    assert not partly.is_complete and not partly.is_ready(9, 9)
