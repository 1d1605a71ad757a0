"""The steps of a runbook: their commands parse, their names are whole, and each has its time and its way back."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import replace

import pytest
from test_bounce_waits import START_MS, member
from test_doc_blocks import USAGE_ERROR, parse

from offsetmgr.cli.runbook import books_of
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange, route
from offsetmgr.core.document import to_html, to_markdown
from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import Committed, LogRange, TopicPartition
from offsetmgr.migration.evidence import Confidence
from offsetmgr.migration.observation import Observation, PartitionOwner
from offsetmgr.migration.phase_inference import InferredPhase
from offsetmgr.migration.rollout import Rollout
from offsetmgr.migration.runbook import Risk, Runbook
from offsetmgr.migration.runbook_commands import RunbookArguments, RunbookStep, RunbookSubject, duration, start_closed
from offsetmgr.migration.runbook_render import runbook_parts, runbook_title
from offsetmgr.migration.runbook_steps import abort_criteria, runbook_steps

ZOOKEEPER, DUAL, KAFKA = CommitMode.ZOOKEEPER, CommitMode.DUAL, CommitMode.KAFKA
MEMBERS = [member(f"h{n}", n + 1) for n in range(9)]
PARTITIONS = tuple(TopicPartition("orders", n) for n in range(18))
BASELINE = Observation(
    "my shop",
    START_MS,
    {m.id: m for m in MEMBERS},
    {tp: PartitionOwner(MEMBERS[n % 9].id, n) for n, tp in enumerate(PARTITIONS)},
    PARTITIONS,
    {tp: Committed(100) for tp in PARTITIONS},
    {},
    {tp: LogRange(0, 120) for tp in PARTITIONS},
    stores={"zookeeper": "c1", "kafka": "c1"},
)
SERVERS = "--zookeeper zk:2181 --bootstrap-server k:9092 --command-config admin.properties"
ARGUMENTS = RunbookArguments(
    options=SERVERS,
    servers=SERVERS,
    followups=" --command-config admin.properties",
    zookeeper="zookeeper://zk:2181",
    kafka="kafka://k:9092",
    restart="--command 'restart {member} {settings}'",
    test="--test-command 'ssh {host} true'",
)
FROM_PLAN = replace(ARGUMENTS, options="--plan fleet.json --command-config admin.properties", plan="fleet.json")
KUBERNETES = replace(
    ARGUMENTS,
    restart="--kubernetes deployment/shop --namespace prod",
    test="--test-command true",
    rollout=Rollout("deployment/shop", "prod"),
)
UNKNOWN = replace(ARGUMENTS, restart="", test="")


def subject(start: CommitMode, to: CommitMode) -> RunbookSubject:
    return RunbookSubject("my shop", to, route(start, to), BASELINE, commits_after_s=7)


def steps(start: CommitMode, to: CommitMode, arguments: RunbookArguments = ARGUMENTS) -> tuple[RunbookStep, ...]:
    return runbook_steps(subject(start, to), arguments)


ROUTES = [(start, to) for start, to in itertools.permutations(CommitMode, 2)]


@pytest.mark.parametrize(
    "arguments", [ARGUMENTS, FROM_PLAN, KUBERNETES, UNKNOWN], ids=["servers", "plan", "k8s", "none"]
)
@pytest.mark.parametrize(("start", "to"), ROUTES)
def test_every_command_parses(start: CommitMode, to: CommitMode, arguments: RunbookArguments) -> None:
    wrong = []
    for step in steps(start, to, arguments):
        for command in (*step.commands, *step.back):
            words = shlex.split(command)
            if words[0] != "offsetmgr":
                assert words[0] == "rm" or words[0].split("=")[0] in ("RESTART", "TEST")
                continue
            try:
                parse(words[1:])
            except USAGE_ERROR as error:
                if words[1] != "doctor":  # the command is in another part of this release
                    wrong.append(f"{command}: {error}")
            assert "--command-config admin.properties" in command
    assert wrong == []


def titles(start: CommitMode, to: CommitMode, arguments: RunbookArguments = ARGUMENTS) -> list[str]:
    return [step.title for step in steps(start, to, arguments)]


CHECKS = ["Check the servers", "Test the restart command", "Show the restarts"]
TO_DUAL, TO_KAFKA = "Restart the members into phase dual", "Restart the members into phase kafka"
END = ["Finalize", "Stop the old consumers and start the new ones", "Delete the old offsets"]


def test_a_name_that_begins_with_a_dash_is_no_option_of_a_command() -> None:
    dashed = replace(subject(ZOOKEEPER, KAFKA), group="-dash")
    for step in runbook_steps(dashed, FROM_PLAN):
        for command in (*step.commands, *step.back):
            words = shlex.split(command)
            if words[0] != "rm":
                parse(words[1:])


def test_the_steps_are_the_whole_job() -> None:
    assert titles(ZOOKEEPER, KAFKA) == [*CHECKS, "Plan", "Apply", TO_DUAL, "Verify", TO_KAFKA, *END]
    assert titles(ZOOKEEPER, KAFKA, FROM_PLAN) == [*CHECKS, "Apply", TO_DUAL, "Verify", TO_KAFKA, *END]
    assert titles(ZOOKEEPER, DUAL) == [*CHECKS, "Plan", "Apply", TO_DUAL, "Verify"]
    assert titles(DUAL, KAFKA) == [*CHECKS, "Plan", "Apply", TO_KAFKA, "Verify", *END]
    assert titles(KAFKA, ZOOKEEPER) == [*CHECKS, TO_DUAL, "Restart the members into phase zookeeper"]
    assert titles(KAFKA, DUAL) == [*CHECKS, TO_DUAL]
    assert titles(ZOOKEEPER, KAFKA, UNKNOWN)[0] == "Define the commands that reach the members"


@pytest.mark.parametrize(("start", "to"), ROUTES)
def test_every_step_that_changes_something_has_its_time_and_its_way_back(start: CommitMode, to: CommitMode) -> None:
    for step in steps(start, to):
        assert step.takes
        assert step.closed
        if any("--yes" in command for command in step.commands):
            assert step.back, step.title
            assert step.prints


def test_the_ways_back_undo_the_bounces_in_reverse_order() -> None:
    (last,) = [step for step in steps(ZOOKEEPER, KAFKA) if step.title == TO_KAFKA]
    assert [[word for word in command.split() if word in ("zookeeper", "dual", "kafka")] for command in last.back] == [
        ["dual", "kafka"],
        ["zookeeper", "dual"],
    ]
    assert all(command.endswith("--execute --yes") for command in last.back)


def test_a_runbook_of_a_plan_moves_only_its_group_back() -> None:
    for arguments, scoped in ((FROM_PLAN, True), (ARGUMENTS, False)):
        back = [c for step in steps(ZOOKEEPER, KAFKA, arguments) for c in step.back if " migrate " in c]
        assert sum("--reverse-plan" in command for command in back) == 2
        assert all(("--group 'my shop'" in command) is scoped for command in back)


def test_the_check_of_the_servers_does_not_let_a_warning_pass_for_a_passed_check() -> None:
    (check,) = [step for step in steps(ZOOKEEPER, KAFKA) if step.title == CHECKS[0]]
    assert check.text[-1].endswith(
        "The exit code is 1 if a check failed. Read the warnings: they do not change the exit code."
    )


def test_the_time_of_a_bounce_follows_from_its_members_and_windows() -> None:
    (bounce,) = [step for step in steps(ZOOKEEPER, DUAL) if step.title == TO_DUAL]
    assert bounce.takes == (
        "usually 9 members × (restart + three commits; the first were seen after 7 s). At most 9 × (120 s to register"
        " + 180 s for the gate) + 180 s = 48 min, and the run time of the restart commands"
    )
    assert [duration(seconds) for seconds in (45, 119, 360, 7300)] == ["45 s", "119 s", "6 min", "2 h 2 min"]
    assert any(
        "stays above 1,000 messages" in one and "It was 360" in one for one in abort_criteria(subject(DUAL, KAFKA))
    )


def test_a_rollout_is_one_step_and_its_way_back_is_named() -> None:
    (bounce,) = [step for step in steps(ZOOKEEPER, DUAL, KUBERNETES) if step.title == TO_DUAL]
    assert "step 1 of 1: deployment/shop\n" in bounce.prints
    assert bounce.takes.endswith("600 s for the rollout + 120 s to register + 2 × 180 s for the gates = 18 min")
    remedies = dict(bounce.closed)
    assert (
        "kubectl --namespace prod rollout undo deployment/shop"
        in remedies["the command for deployment/shop: exit code N"]
    )


def test_a_written_runbook_shortens_no_names() -> None:
    found = InferredPhase(ZOOKEEPER, Confidence.SEEN, "commits to ZooKeeper alone")
    risk = Risk("no traffic ({}): send messages", PARTITIONS)
    changes = route(ZOOKEEPER, KAFKA)
    book = Runbook("my shop", KAFKA, found, BASELINE, changes, steps(ZOOKEEPER, KAFKA), ("abort",), (risk,))
    for text in (to_markdown(runbook_title([book]), runbook_parts([book])), to_html("t", runbook_parts([book]))):
        plain = text.replace("\\_", "_")
        assert all(m.id in plain for m in MEMBERS)
        assert ", ".join(map(str, PARTITIONS)) in plain
    assert risk.shortened.startswith("no traffic (orders-0, ") and risk.shortened.endswith(
        "orders-5, ...): send messages"
    )


def test_several_groups_have_a_table_and_sections_below_the_title_of_each() -> None:
    found = InferredPhase(ZOOKEEPER, Confidence.SEEN, "commits to ZooKeeper alone")
    books = [
        Runbook(name, DUAL, found, BASELINE, route(ZOOKEEPER, DUAL), steps(ZOOKEEPER, DUAL), ("abort",), ())
        for name in ("shop", "cart")
    ]
    text = to_markdown(runbook_title(books), runbook_parts(books))
    assert text.startswith("# Runbook: 2 groups\n\n| group ")
    for name in ("shop", "cart"):
        assert f"## Group {name}: zookeeper -> dual\n" in text
    assert text.count("\n### Before you begin\n") == text.count("\n#### 1. Check the servers\n") == 2


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (ZOOKEEPER, "Kafka is ahead of ZooKeeper, which the group uses"),
        (KAFKA, "ZooKeeper is ahead of Kafka, which the group uses"),
    ],
)
def test_the_remedies_of_a_bounce_into_dual_name_the_stores_as_its_error_does(start: CommitMode, message: str) -> None:
    assert [closed for closed, _ in start_closed(CommitModeChange(start, DUAL))] == [message]


def test_a_name_that_kubernetes_does_not_allow_holds_up_no_other_group(capsys: pytest.CaptureFixture[str]) -> None:
    rollout = Rollout("deployment/{group}")
    found = InferredPhase(ZOOKEEPER, Confidence.SEEN, "commits to ZooKeeper alone")

    def make(name: str) -> Runbook:
        rollout.of_group(name)
        return Runbook(name, DUAL, found, BASELINE, route(ZOOKEEPER, DUAL), steps(ZOOKEEPER, DUAL), ("abort",), ())

    books, failed = books_of(["a", "b_c", "d"], make)
    assert ([book.group for book in books], failed) == (["a", "d"], ["b_c"])
    assert "  ! group b_c: --kubernetes deployment/b_c: it is neither" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--kubernetes deployment/b_c"):
        books_of(["b_c"], make)


def test_the_clean_up_names_the_time_for_which_kafka_keeps_the_copies() -> None:
    def text(arguments: RunbookArguments) -> str:
        (step,) = [one for one in steps(ZOOKEEPER, KAFKA, arguments) if one.section == "Clean up"]
        return " ".join(step.text)

    assert "for example after a week" in text(ARGUMENTS)
    short = text(replace(ARGUMENTS, retention_ms=86_400_000))
    assert "for example" not in short
    assert "Kafka keeps an offset only for 24 h after its last commit" in short
    command = short[short.index("offsetmgr migrate apply") :].partition(". ")[0].partition(" The ")[0]
    parse(shlex.split(command)[1:])
    assert "--refresh" in command
