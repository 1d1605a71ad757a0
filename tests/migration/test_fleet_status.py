"""The state of each group in words, from the journal and from the servers, and the page of a fleet."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from in_process import parse
from one_migration import ORDERS, Migration, commit
from scripted_group import ScriptedGroup, member, writes

from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.commit_mode import Confidence, Phase, PhaseEvidence
from offsetmgr.core.errors import JournalError
from offsetmgr.migration.location import LiveGroup
from offsetmgr.migration.observation import PartitionOwner
from offsetmgr.migration.progress import Journal

FINALIZED = {"kind": "group-finalized", "group": "shop", "verified": 2, "left_out": 0, "gate": ["seen", ""]}
ODD = "<b>|odd"
MEMBERS = member("h1", 1).id, member("h2", 2).id


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    found = Migration(tmp_path)
    for name in ("shop", "audit", ODD):
        commit(found.source, name, 10, 20)
    found.plan()
    return found


def status(migration: Migration, group: str = "shop", live: LiveGroup | None = None, *options: str) -> dict[str, Any]:
    if live is None:
        return migration.status(*options)[group]
    view = SimpleNamespace(observe=lambda _: {group: live})  # what the servers show
    with patch.object(SourceAndTarget, "fleet_view", lambda *_: view):
        return migration.status("--window", "1", *options)[group]


def seen(phase: Phase, *obstacles: str, members: tuple[str, ...] = ("m-1",)) -> LiveGroup:
    return LiveGroup(PhaseEvidence(phase, Confidence.SEEN, "commits were seen"), members, obstacles)


def phase(name: str, group: str = "shop") -> dict[str, Any]:
    return {"kind": "group-phase", "group": group, "phase": name, "why": f"committed as {name}"}


def blocked(migration: Migration, step: str, why: str, group: str = "shop") -> None:
    migration.append({"kind": "group-blocked", "group": group, "step": step, "why": why, "hint": ""})


def test_a_name_of_a_group_or_a_plan_is_no_option_and_no_markup(tmp_path: Path) -> None:
    found = Migration(tmp_path, name="a*b_1.json")
    commit(found.source, "-dash", 10, 20)
    found.plan()
    text = page(found, "markdown")
    assert text.startswith("# Migration a\\*b\\_1\n")
    assert "\nNone.\n" in text  # no group is blocked
    found.apply()
    command = status(found, "-dash")["next"]
    assert command.endswith(" --group -dash")
    parse(shlex.split(command)[1:])


@pytest.mark.parametrize(
    ("mode", "applied", "expected"),
    [
        (Phase.UNKNOWN, False, ["migrate", "apply", "PLAN", "--group", ODD, "--from-command-config", "LOGIN"]),
        (
            *(Phase.ZOOKEEPER, True),
            ["runbook", "bounce", "--plan", "PLAN", "--group", ODD, "--to-phase", "dual", "--command", "$RESTART"],
        ),
        (Phase.KAFKA, True, ["migrate", "finalize", "PLAN", ODD, "--from-command-config", "LOGIN"]),
    ],
)
def test_the_next_commands_have_the_connection_options_and_are_valid(migration, monkeypatch, mode, applied, expected):
    config, login = migration.directory / "own.toml", migration.directory / "a b"
    config.write_text("[context.prod]\ntimeout = 1000\n")
    login.write_text("client.id=me\n")
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(config))
    if applied:
        migration.apply()
    options = ("--from-command-config", str(login), "--context", "prod")
    words = shlex.split(status(migration, ODD, seen(mode), *options)["next"])[1:]
    parse(words)
    names = {"PLAN": str(migration.path), "LOGIN": str(login)}
    assert words == [*(names.get(word, word) for word in expected), "--context", "prod"]


@pytest.mark.parametrize(
    ("before", "applied", "after"),
    [
        # A refusal of finalize before apply does not block a group after apply, and a bounce does.
        (("finalize", "it was not applied completely"), "", "some members may still commit to the source alone"),
        (("bounce zookeeper -> dual", "the gate is closed"), "bounce zookeeper -> dual: the gate is closed", "again"),
    ],
)
def test_a_refused_step_blocks_a_group_until_the_step_before_it_is_done(migration, before, applied, after):
    blocked(migration, *before)
    assert status(migration)["blocked_by"] == ": ".join(before)
    migration.apply()
    assert status(migration)["blocked_by"] == (applied or None)
    blocked(migration, before[0], after)
    assert status(migration)["blocked_by"] == f"{before[0]}: {after}"


def test_members_that_were_seen_in_the_phase_end_the_block_of_their_bounce(migration: Migration) -> None:
    migration.apply()
    blocked(migration, "bounce zookeeper -> dual", "the gate is closed")
    assert status(migration, live=seen(Phase.ZOOKEEPER))["blocked_by"]
    assert status(migration, live=seen(Phase.DUAL))["blocked_by"] is None
    inferred = LiveGroup(PhaseEvidence(Phase.DUAL, Confidence.INFERRED, ""), ("m-1",))
    assert status(migration, live=inferred)["blocked_by"]


def test_a_group_without_writes_is_planned_until_it_is_finalized(migration: Migration) -> None:
    commit(migration.target, "audit", 10, 20)
    migration.plan_again()
    before = status(migration, "audit")
    assert (before["state"], before["next"]) == ("planned", f"offsetmgr migrate finalize {migration.path} audit")
    migration.apply("shop")
    assert status(migration, "audit") == before


def test_the_status_keeps_an_empty_group_id_and_reads_no_login_without_servers(migration: Migration) -> None:
    commit(migration.source, "", 10)
    migration.plan_again()
    found = migration.status("--from-command-config", str(migration.directory / "missing"))[""]
    assert (found["target_group"], found["owner"]) == ("", None)


def test_a_refused_rollback_does_not_block_a_group_that_was_finalized_later(migration: Migration) -> None:
    migration.apply()
    commit(migration.target, "shop", 15, 25)
    assert not migration.rollback("shop").ok
    assert status(migration)["blocked_by"].startswith("not rolled back: orders-0: ")
    migration.append(FINALIZED)
    assert (status(migration)["state"], status(migration)["blocked_by"]) == ("finalized", None)


@pytest.mark.parametrize(
    ("recorded", "mode", "state"),
    [
        (None, Phase.ZOOKEEPER, "applied"),
        (None, Phase.DUAL, "dual"),
        (None, Phase.UNKNOWN, "applied"),
        ("dual", Phase.DUAL, "dual"),
        ("dual", Phase.KAFKA, "kafka"),
        ("dual", Phase.UNKNOWN, "dual"),
        ("kafka", Phase.ZOOKEEPER, "zookeeper"),
    ],
)
def test_evidence_from_the_servers_takes_precedence(migration, recorded, mode, state):
    migration.apply()
    if recorded:
        migration.append(phase(recorded))
    found = status(migration, live=seen(mode))
    assert (found["state"], found["known"], found["evidence"]) == (state, "seen", "commits were seen")
    assert (found["since"] is None) == (state != (recorded or "applied"))
    if recorded:
        found = status(migration)
        assert (found["state"], found["known"], found["evidence"]) == (recorded, "journal", f"committed as {recorded}")


@pytest.mark.parametrize(
    ("before", "after", "live", "state", "obstacle"),
    [
        ("kafka", None, None, "finalized", ""),
        (None, "kafka", None, "finalized", ""),
        ("dual", None, None, "finalized", ""),
        ("kafka", "dual", None, "dual", "commit as phase dual does"),
        (None, "zookeeper", None, "zookeeper", "commit as phase zookeeper does"),
        ("kafka", None, Phase.KAFKA, "finalized", ""),
        ("kafka", None, Phase.DUAL, "dual", "commit as phase dual does"),
        ("kafka", None, Phase.ZOOKEEPER, "zookeeper", "commit as phase zookeeper does"),
        ("dual", None, Phase.DUAL, "dual", ""),
        ("kafka", "dual", Phase.KAFKA, "kafka", ""),
    ],
)
def test_a_finalized_group_whose_members_went_back_is_not_finalized(migration, before, after, live, state, obstacle):
    migration.apply()
    migration.append(*(one for one in (before and phase(before), FINALIZED, after and phase(after)) if one))
    found = status(migration, live=None if live is None else seen(live))
    text = found["blocked_by"] or ""
    assert (found["state"], obstacle in text, bool(text)) == (state, True, bool(obstacle))
    if state == "dual":
        assert "--to-phase kafka" in found["next"]


def test_a_finalized_group_with_members_in_different_phases_is_blocked(migration: Migration) -> None:
    migration.apply()
    migration.append(phase("kafka"), FINALIZED)
    different = "members are in different phases: dual: ...; kafka: ..."
    found = status(migration, live=seen(Phase.UNKNOWN, different))
    assert (found["state"], found["blocked_by"]) == ("kafka", different)
    assert status(migration, live=seen(Phase.UNKNOWN, members=()))["state"] == "finalized"


def test_a_phase_without_copied_offsets_is_an_obstacle(migration: Migration) -> None:
    found = status(migration, live=seen(Phase.KAFKA))
    assert (found["state"], found["blocked_by"]) == ("kafka", "its offsets are not applied")
    assert found["next"].startswith("offsetmgr migrate apply")


# --- bounces that are not finished ----------------------------------------------------------------------


@pytest.fixture
def state_file(migration: Migration) -> Path:
    """The state file of a bounce from kafka to dual of group shop: the first member passed, and the second failed."""
    done = migration.directory / "done"

    def members(_: float) -> list[Any]:
        return [member("h1", 50 if done.exists() else 1), member("h2", 2)]

    group = ScriptedGroup(
        members,
        lambda _: {n: PartitionOwner(one.id, 5) for n, one in enumerate(members(0))},
        lambda second: 10 + int(second),
        lambda second: 10 + int(second),
        name="shop",
    )
    migration.apply()
    migration.append(phase("kafka"), FINALIZED)
    path = migration.directory / "back.json"
    with migration.stores():
        group.cluster_name = "source"  # the store of the plan
        command = f"test ! -e {done} && {writes('{member}', done)}"
        group.bounce("dual", command, path, "--from-phase", "kafka", code=1)
    return path


@pytest.mark.parametrize(
    ("statuses", "progress"),
    [
        (["passed", "pending"], "1 of 2 steps done; step 2, {1}: not begun"),
        (["member-left", "running"], "1 of 2 steps done; step 2, {1}: its command was started, and the result is not"),
        (["returned", "pending"], "0 of 2 steps done; step 1, {0}: restarted, and its gate has not passed"),
        (["command-failed", "pending"], "0 of 2 steps done; step 1, {0}: its command failed"),
        (["passed", "passed"], "2 of 2 steps done; the gate of the whole group is left"),
    ],
)
def test_the_status_of_a_group_halfway_through_a_bounce_says_how_far_it_is(migration, state_file, statuses, progress):
    content = json.loads(state_file.read_text())
    (bounce,) = content["bounces"]
    for step, one in zip(bounce["steps"], statuses, strict=True):
        step["status"] = one
    state_file.write_text(json.dumps(content))
    row = status(migration)
    assert row["state"] == "kafka"
    assert row["blocked_by"].startswith("bounce kafka -> dual of group shop: " + progress.format(*MEMBERS))
    words = shlex.split(row["next"])
    parse(words[1:])
    assert words[words.index("--state") + 1] == str(state_file)
    assert "steps done" in page(migration, "markdown")
    bounce["finished_ms"] = 2
    state_file.write_text(json.dumps(content))
    assert (status(migration)["state"], status(migration)["blocked_by"]) == ("finalized", None)
    state_file.write_text("damaged")
    assert "bounce state" in status(migration)["blocked_by"]


# --- what the servers show ------------------------------------------------------------------------------


def asked(migration: Migration, group: str = "shop") -> dict[str, Any]:
    """The row of a group after a comparison of both stores with the plan."""
    return migration.status("--window", "0")[group]


def test_offsets_of_a_finalized_group_that_are_gone_are_an_obstacle(migration: Migration) -> None:
    migration.apply()
    migration.append(FINALIZED)
    assert asked(migration)["blocked_by"] is None
    migration.target.delete("shop", ORDERS[:1])
    assert asked(migration)["state"] == "finalized"
    assert "orders-0 missing" in asked(migration)["blocked_by"]


def test_a_group_whose_source_moved_on_needs_a_new_plan(migration: Migration) -> None:
    assert asked(migration)["blocked_by"] is None
    commit(migration.source, "shop", 11)
    obstacle = "1 partition: orders-0 the source moved on after the plan: make a new plan for the group"
    assert asked(migration)["blocked_by"] == obstacle
    migration.apply()
    found = asked(migration)
    assert found["blocked_by"].startswith("1 partition: orders-0 source-ahead")
    assert found["next"] == f"offsetmgr migrate verify {shlex.quote(str(migration.path))} --group shop"


def test_a_group_whose_copied_offsets_were_deleted_is_rolled_back_and_not_finalized(migration: Migration) -> None:
    migration.apply()
    migration.target.delete("shop", ORDERS[:1])
    found = asked(migration)
    assert "orders-0 missing: the target has no commit" in found["blocked_by"]
    assert found["next"] == f"offsetmgr migrate rollback {shlex.quote(str(migration.path))} --group shop"
    assert asked(migration, "audit")["next"].split()[2] == "finalize"


def test_another_process_that_holds_the_journal_is_waited_for_and_then_reported(migration: Migration) -> None:
    sha256 = json.loads(migration.path.read_text())["sha256"]
    arguments: dict[str, Any] = {"plan_sha256": sha256, "clock": SystemClock(), "lock_wait_s": 0.3}
    with (
        Journal(migration.journal, **arguments),
        pytest.raises(JournalError, match="another process is working on this plan"),
        Journal(migration.journal, **arguments),
    ):
        pass


# --- the page -------------------------------------------------------------------------------------------


def page(migration: Migration, kind: str) -> str:
    path = migration.directory / f"page.{kind}"
    migration.run("status", "--format", kind, "-o", str(path))
    return path.read_text()


def test_the_page_counts_groups_that_this_plan_cannot_finish_by_themselves(migration: Migration) -> None:
    migration.apply()
    assert migration.rollback("shop").ok
    text = page(migration, "markdown")
    assert "- groups: 3\n- finalized: 0\n- blocked: 0\n- to do: 2\n- not planned or rolled back: 1\n" in text
    assert "They contain no connection options" in text


def test_both_pages_show_every_group_and_interpret_no_text(migration: Migration) -> None:
    migration.apply()
    blocked(migration, "see [x](y)", "`tick` <i>\n# no title", group=ODD)
    html, markdown = page(migration, "html"), page(migration, "markdown")
    body = html.partition("<body>")[2]
    assert "<b>" not in body and "<i>" not in body
    assert "&lt;b&gt;|odd" in body
    assert html.count('<td class="words" data-name="state">applied</td>') == 4  # also in the table of blocked groups
    assert "<script" not in html
    assert " from the plan and its journal. All times are UTC." in html
    assert "| `<b>\\|odd` |" in markdown
    assert "see \\[x\\](y): \\`tick\\` \\<i>\\\\n\\# no title" in markdown
