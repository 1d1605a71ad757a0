"""The steps of a runbook: their commands parse, their names are whole, and each has its time and its way back."""

import itertools
import json
import shlex
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from in_process import USAGE_ERROR, Output, parse
from one_migration import Migration, commit
from scripted_group import ScriptedGroup, member

from offsetmgr.core.commit_mode import SETTINGS, CommitMode, CommitModeChange, require_safe, route
from offsetmgr.core.errors import GateRefused
from offsetmgr.core.model import ABSENT, Committed, TopicPartition
from offsetmgr.migration.observation import PartitionOwner
from offsetmgr.testing.memory import MemoryStore

MEMBERS = [member(f"h{n}", n + 1) for n in range(9)]
PARTITIONS = [f"t-{n}" for n in range(18)]
GROUP = ScriptedGroup(
    lambda _: MEMBERS,
    lambda _: {n: PartitionOwner(MEMBERS[n % 9].id, n) for n in range(18)},
    lambda _: 100,
    lambda _: None,
    partitions=18,
    name="my shop",
    log_end=120,
)
COMMANDS = ("--command", "restart {member} {settings}", "--test-command", "ssh {host} true")
KUBERNETES = ("--kubernetes", "deployment/shop", "--namespace", "prod", "--test-command", "true")


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "admin.properties").write_text("client.id=me\n")
    return "--command-config", str(tmp_path / "admin.properties")


def written(group: ScriptedGroup, to: str, *arguments: object, code: int = 0) -> tuple[list[dict[str, Any]], Output]:
    """The runbooks that the command writes, and its output."""
    Path("book.json").unlink(missing_ok=True)
    done = group.runbook("write", "--to", to, "-o", "book.json", *arguments, code=code)
    return json.loads(Path("book.json").read_text())["runbooks"], done


def steps(start: str, to: str, *arguments: object, group: ScriptedGroup = GROUP) -> list[dict[str, Any]]:
    ((book,), _) = written(group, to, "--from", start, *arguments)
    return list(book["steps"])


@pytest.fixture
def plan(tmp_path: Path, login: tuple[str, str]) -> tuple[str, str]:
    """The option that names a plan of the group."""
    migration = Migration(tmp_path, MemoryStore("source", kind="zookeeper"), name="fleet.json")
    commit(migration.source, "my shop", 100)
    commit(migration.source, "-dash", 100)
    migration.plan()
    return "--plan", "fleet.json"


FROM_PLAN = replace(GROUP, by_plan=True)
ROUTES = list(itertools.permutations(("zookeeper", "dual", "kafka"), 2))


@pytest.mark.parametrize("how", ["servers", "plan", "plan of a dashed name", "kubernetes", "no-command"])
@pytest.mark.parametrize(("start", "to"), ROUTES)
def test_every_command_parses_and_every_step_has_its_time_and_its_way_back(start, to, how, login, plan):
    restart = {"kubernetes": KUBERNETES, "no-command": ()}.get(how, COMMANDS)
    options, group = (plan, FROM_PLAN) if "plan" in how else ((), GROUP)
    group = replace(group, name="-dash") if "dash" in how else group
    wrong = []
    for step in steps(start, to, *restart, *options, *login, group=group):
        for command in (*step["commands"], *step["back"]):
            words = shlex.split(command)
            if words[0] != "offsetmgr":
                assert words[0] == "rm" or words[0].split("=")[0] in ("RESTART", "TEST")
                continue
            try:
                parse(words[1:])
            except USAGE_ERROR as error:
                wrong.append(f"{command}: {error}")
            assert shlex.join(login) in command
        assert how == "no-command" or (step["takes"] and step["closed"])
        if any("--yes" in command for command in step["commands"]):
            assert step["back"] or step["way_back"].startswith("As from"), step["title"]
            assert step["prints"]
    assert wrong == []


CHECKS = ["Check the servers", "Test the restart command", "Show the restarts"]
TO_DUAL, TO_KAFKA = "Restart the members into phase dual", "Restart the members into phase kafka"
END = ["Finalize", "Stop the old consumers and start the new ones", "Delete the old offsets"]


def test_the_steps_are_the_whole_job(plan: tuple[str, str]) -> None:
    def titles(start: str, to: str, *arguments: object, group: ScriptedGroup = GROUP) -> list[str]:
        return [step["title"] for step in steps(start, to, *arguments, group=group)]

    assert titles("zookeeper", "kafka", *COMMANDS) == [*CHECKS, "Plan", "Apply", TO_DUAL, "Verify", TO_KAFKA, *END]
    of_plan = titles("zookeeper", "kafka", *COMMANDS, *plan, group=FROM_PLAN)
    assert of_plan == [*CHECKS, "Apply", TO_DUAL, "Verify", TO_KAFKA, *END]
    assert titles("zookeeper", "dual", *COMMANDS) == [*CHECKS, "Plan", "Apply", TO_DUAL, "Verify"]
    assert titles("dual", "kafka", *COMMANDS) == [*CHECKS, "Plan", "Apply", TO_KAFKA, "Verify", *END]
    back = [*CHECKS, TO_DUAL, "Restart the members into phase zookeeper"]
    assert titles("kafka", "zookeeper", *COMMANDS) == back
    assert titles("kafka", "dual", *COMMANDS) == [*CHECKS, TO_DUAL]
    assert titles("zookeeper", "kafka")[0] == "Define the commands that reach the members"


def titled(title: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    (step,) = [step for step in found if step["title"] == title]
    return step


@pytest.mark.parametrize(("start", "to"), ROUTES)
@pytest.mark.parametrize("restart", [COMMANDS, KUBERNETES])
def test_a_runbook_says_nothing_twice(start: str, to: str, restart: tuple[str, ...], login: tuple[str, str]) -> None:
    found = Counter(
        text for step in steps(start, to, *restart) for text in (*step["text"], *map(tuple, step["closed"]))
    )
    assert [text for text, count in found.items() if count > 1 and text[0] != "another reason"] == []


def test_the_ways_back_undo_the_bounces_in_reverse_order(login: tuple[str, str]) -> None:
    last = titled(TO_KAFKA, steps("zookeeper", "kafka", *COMMANDS))
    phases = [[word for word in command.split() if word in ("zookeeper", "dual", "kafka")] for command in last["back"]]
    assert phases == [["dual", "kafka"], ["zookeeper", "dual"]]
    assert all(command.endswith("--execute --yes") for command in last["back"])


def test_a_runbook_of_a_plan_moves_only_its_group_back(plan: tuple[str, str]) -> None:
    for options, group, scoped in ((plan, FROM_PLAN, True), ((), GROUP, False)):
        found = steps("zookeeper", "kafka", *COMMANDS, *options, group=group)
        back = [command for step in found for command in step["back"] if " migrate " in command]
        assert sum("--reverse-plan" in command for command in back) == 1
        assert all(("--group 'my shop'" in command) is scoped for command in back)


def test_the_check_of_the_servers_does_not_let_a_warning_pass_for_a_passed_check(login: tuple[str, str]) -> None:
    check = titled(CHECKS[0], steps("zookeeper", "kafka", *COMMANDS))
    text = "The exit code is 1 if a check failed. Read the warnings: they do not change the exit code."
    assert check["text"][-1].endswith(text)


def test_the_time_of_a_bounce_follows_from_its_members_and_windows(login: tuple[str, str]) -> None:
    moving = replace(GROUP, zookeeper_at=lambda second: 100 if second < 7 else 101)
    ((book,), _) = written(moving, "dual", *COMMANDS)
    assert book["from"]["known"] == "seen"
    assert titled(TO_DUAL, book["steps"])["takes"] == (
        "usually 9 members × (restart + three commits; the first were seen after 7 s). At most 9 × (120 s to register"
        " + 180 s for the gate) + 180 s = 48 min, and the run time of the restart commands"
    )
    many = replace(GROUP, members_at=lambda _: [member(f"h{n}", n + 1) for n in range(24)])
    assert " = 2 h 3 min, " in titled(TO_DUAL, steps("zookeeper", "dual", *COMMANDS, group=many))["takes"]
    ((book,), _) = written(GROUP, "kafka", "--from", "dual", *COMMANDS)
    assert any("stays above 1,000 messages" in one and "It was 360" in one for one in book["abort"])


def test_a_rollout_is_one_step_and_its_way_back_is_named(login: tuple[str, str]) -> None:
    bounce = titled(TO_DUAL, steps("zookeeper", "dual", *KUBERNETES))
    assert "step 1 of 1: deployment/shop\n" in bounce["prints"]
    assert bounce["takes"].endswith("600 s for the rollout + 120 s to register + 2 × 180 s for the gates = 18 min")
    remedy = dict(bounce["closed"])["the command for deployment/shop: exit code N"]
    assert "kubectl --namespace prod rollout undo deployment/shop" in remedy


def test_a_written_runbook_shortens_no_names(login: tuple[str, str]) -> None:
    unowned = replace(GROUP, owners_at=lambda _: {})
    _, done = written(unowned, "kafka", "--from", "zookeeper", "-o", "book.md", "-o", "book.html", *COMMANDS)
    for page in ("book.md", "book.html"):
        plain = Path(page).read_text().replace("\\_", "_")
        assert all(m.id in plain for m in MEMBERS)
        assert ", ".join(PARTITIONS) in plain
    assert f"({', '.join(PARTITIONS[:6])}, ...): let the group rebalance first" in done.stderr


def test_several_groups_have_a_table_and_sections_below_the_title_of_each(login: tuple[str, str]) -> None:
    two = replace(GROUP, name="shop", others=("cart",))
    written(two, "dual", "--group", "cart", "--from", "zookeeper", "-o", "book.md", *COMMANDS)
    text = Path("book.md").read_text()
    assert text.startswith("# Runbook: 2 groups\n\n| group ")
    for name in ("shop", "cart"):
        assert f"## Group {name}: zookeeper -> dual\n" in text
    assert text.count("\n### Before you begin\n") == text.count("\n#### 1. Check the servers\n") == 2


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("zookeeper", "Kafka is ahead of ZooKeeper, which the group uses"),
        ("kafka", "ZooKeeper is ahead of Kafka, which the group uses"),
    ],
)
def test_the_remedies_of_a_bounce_into_dual_name_the_stores_as_its_error_does(start, message, login):
    assert message in dict(titled(CHECKS[-1], steps(start, "dual", *COMMANDS))["closed"])
    ahead = {"zookeeper": (lambda _: 100, lambda _: 110), "kafka": (lambda _: 110, lambda _: 100)}[start]
    group = replace(GROUP, zookeeper_at=ahead[0], kafka_at=ahead[1])
    bounce = ("--to-phase", "dual", "--from-phase", start, *COMMANDS[:2])
    assert message in group.runbook("bounce", *bounce, code=1).stderr


def test_a_name_that_kubernetes_does_not_allow_holds_up_no_other_group(login: tuple[str, str]) -> None:
    rollout = ("--from", "zookeeper", "--kubernetes", "deployment/{group}")
    three = replace(GROUP, name="a", others=("b_c", "d"))
    books, done = written(three, "dual", "--group", "b_c", "--group", "d", *rollout, code=1)
    assert [book["group"] for book in books] == ["a", "d"]
    assert "  ! group b_c: --kubernetes deployment/b_c: it is neither" in done.stderr
    alone = replace(GROUP, name="b_c").runbook("write", "--to", "dual", *rollout, code=2).stderr
    assert "--kubernetes deployment/b_c" in alone


def test_the_clean_up_names_the_time_for_which_kafka_keeps_the_copies(login: tuple[str, str]) -> None:
    def text(group: ScriptedGroup) -> str:
        (step,) = [one for one in steps("zookeeper", "kafka", *COMMANDS, group=group) if one["section"] == "Clean up"]
        return " ".join(step["text"])

    assert "for example after a week" in text(GROUP)
    short = text(replace(GROUP, retention_ms=86_400_000))
    assert "for example" not in short
    assert "Kafka keeps an offset only for 24 h after its last commit" in short
    command = short[short.index("offsetmgr migrate apply") :].partition(". ")[0].partition(" The ")[0]
    parse(shlex.split(command)[1:])
    assert "--refresh" in command


# --- phases of a bounce: their settings, the safe changes, and the reasons against direct changes


ZOOKEEPER, DUAL, KAFKA = CommitMode.ZOOKEEPER, CommitMode.DUAL, CommitMode.KAFKA
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_each_phase_has_the_exact_consumer_settings() -> None:
    assert SETTINGS[ZOOKEEPER].as_lines() == ["offsets.storage=zookeeper"]
    assert SETTINGS[DUAL].as_lines() == ["offsets.storage=kafka", "dual.commit.enabled=true"]
    # dual.commit.enabled defaults to true with offsets.storage=kafka, so the phase kafka sets it to false.
    assert SETTINGS[KAFKA].as_lines() == ["offsets.storage=kafka", "dual.commit.enabled=false"]


def test_every_pair_of_phases_is_a_safe_change_or_rejected() -> None:
    safe = []
    for start, to in product(CommitMode, CommitMode):
        try:
            safe.append(require_safe(start, to))
        except GateRefused:
            continue
    assert safe == [
        CommitModeChange(ZOOKEEPER, DUAL),
        CommitModeChange(DUAL, ZOOKEEPER),
        CommitModeChange(DUAL, KAFKA),
        CommitModeChange(KAFKA, DUAL),
    ]


@pytest.mark.parametrize(
    ("start", "to", "zookeeper", "kafka", "reason", "now"),
    [
        (
            *(ZOOKEEPER, KAFKA, {T0: Committed(500), T1: Committed(70)}, {T0: ABSENT, T1: Committed(20)}),
            *("reads Kafka alone", "t-0 is at 500, and Kafka has no offset; t-1 is at 70, Kafka at 20: 50 repeated"),
        ),
        (
            *(KAFKA, ZOOKEEPER, {T0: Committed(120)}, {T0: Committed(180)}),
            *("received no commits since Kafka took over", "t-0 is at 180, ZooKeeper at 120: 60 repeated"),
        ),
    ],
)
def test_a_direct_change_is_rejected_with_the_losses_and_repeats(start, to, zookeeper, kafka, reason, now):
    with pytest.raises(GateRefused) as refused:
        require_safe(start, to, zookeeper=zookeeper, kafka=kafka)
    assert refused.value.what == f"bounce {start.value} -> {to.value} directly"
    assert reason in refused.value.why
    assert refused.value.why.endswith(f"now: {now}")
    assert refused.value.hint.startswith("go through dual")


@pytest.mark.parametrize(
    ("start", "to", "changes"),
    [
        (ZOOKEEPER, KAFKA, ["zookeeper -> dual", "dual -> kafka"]),
        (KAFKA, ZOOKEEPER, ["kafka -> dual", "dual -> zookeeper"]),
        (DUAL, KAFKA, ["dual -> kafka"]),
        (ZOOKEEPER, DUAL, ["zookeeper -> dual"]),
        (KAFKA, KAFKA, []),
    ],
)
def test_the_route_between_two_phases_leads_through_dual(start: CommitMode, to: CommitMode, changes: list[str]) -> None:
    assert [str(change) for change in route(start, to)] == changes
