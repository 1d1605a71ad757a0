"""The state of each group in words, from the journal and from the servers, and the page of a fleet."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_migration import ORDERS, Migration, commit
from test_doc_blocks import parse

from offsetmgr.cli.app import run
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.document import (
    DocumentColumn,
    DocumentPart,
    Facts,
    Paragraph,
    SectionTitle,
    Table,
    to_html,
    to_markdown,
)
from offsetmgr.core.errors import GateRefused, JournalError
from offsetmgr.groups.operation_log import OperationLog, OperationStart
from offsetmgr.migration.bounce_checkpoint import BounceState, RestartStep, StepStatus, save
from offsetmgr.migration.fleet import (
    CommandOptions,
    GroupState,
    GroupStatus,
    LiveGroup,
    StateOrigin,
    group_statuses,
)
from offsetmgr.migration.fleet_bounce import GroupBounce, journal_record
from offsetmgr.migration.fleet_page import fleet_parts, fleet_title
from offsetmgr.migration.fleet_view import FleetView
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.journal import Journal, JournalRecord, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter
from offsetmgr.migration.observation import Observation
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import append_to_journal
from offsetmgr.migration.rollback import rollback
from offsetmgr.migration.verify import MigrationVerifier


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    found = Migration(tmp_path)
    for name in ("shop", "audit", "<b>|odd"):
        commit(found.source, name, 10, 20)
    found.plan()
    return found


def status(migration: Migration, group: str = "shop", live: LiveGroup | None = None) -> GroupStatus:
    evidence = {} if live is None else {group: live}
    found = group_statuses(PlanFile(migration.path), migration.state(), live=evidence)
    return next(one for one in found if one.group == group)


def record(migration: Migration, *records: JournalRecord) -> None:
    append_to_journal(PlanFile(migration.path), records)


def seen(phase: CommitMode | None, *obstacles: str, members: tuple[str, ...] = ("m-1",)) -> LiveGroup:
    return LiveGroup(phase, StateOrigin.SEEN, "commits were seen", members, obstacles)


def test_a_name_that_begins_with_a_dash_is_no_option_of_the_next_command(tmp_path: Path) -> None:
    found = Migration(tmp_path)
    commit(found.source, "-dash", 10, 20)
    found.plan()
    found.apply()
    command = status(found, "-dash").next_command
    assert command.endswith(" --group -dash")
    parse(shlex.split(command)[1:])


def test_the_journal_records_the_phase_of_a_group(migration: Migration) -> None:
    migration.apply()
    record(migration, {"kind": "group-phase", "group": "shop", "phase": "dual", "why": "3 members committed"})
    found = status(migration)
    assert (found.state, found.evidence, found.known) == (GroupState.DUAL, "3 members committed", StateOrigin.JOURNAL)
    assert "runbook bounce" in found.next_command
    assert "--to-phase kafka" in found.next_command
    assert status(migration, "audit").state is GroupState.APPLIED


@pytest.mark.parametrize(
    ("phase", "applied", "expected"),
    [
        (None, False, ["migrate", "apply", "PLAN", "--group", "<b>|odd", "--from-command-config", "a b"]),
        (CommitMode.ZOOKEEPER, True, ["runbook", "bounce", "--plan", "PLAN", "--group", "<b>|odd", "--to-phase",
                                      "dual", "--command", "$RESTART", "--context", "prod"]),
        (CommitMode.KAFKA, True, ["migrate", "finalize", "PLAN", "<b>|odd", "--from-command-config", "a b"]),
    ],
)  # fmt: skip
def test_the_next_commands_have_the_connection_options_and_are_valid(
    migration: Migration, phase: CommitMode | None, applied: bool, expected: list[str]
) -> None:
    if applied:
        migration.apply()
    options = CommandOptions(" --from-command-config 'a b'", " --context prod")
    live = {"<b>|odd": seen(phase)}
    rows = group_statuses(PlanFile(migration.path), migration.state(), live=live, options=options)
    (command,) = [one.next_command for one in rows if one.group == "<b>|odd"]
    words = shlex.split(command)[1:]
    parse(words)
    assert words == [str(migration.path) if word == "PLAN" else word for word in expected]
    assert "TEMPLATE" not in command


def test_the_page_counts_groups_that_this_plan_cannot_finish_by_themselves(migration: Migration) -> None:
    migration.apply()
    plan, only = PlanFile(migration.path), frozenset(["shop"])
    with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        writer = JournaledWriter("undo", migration.target, journal, SystemClock(), only=only)
        assert rollback(plan, migration.state(), writer).ok
    text = to_markdown("t", fleet_parts(plan, group_statuses(plan, migration.state()), 0, watched=False))
    assert "- groups: 3\n- finalized: 0\n- blocked: 0\n- to do: 2\n- not planned or rolled back: 1\n" in text
    assert "They contain no connection options" in text


def test_a_stopped_bounce_blocks_the_group_until_it_passes(migration: Migration) -> None:
    migration.apply()
    refused = journal_record("shop", GroupBounce("shop", error=GateRefused("bounce to dual", "Kafka is ahead")))
    assert refused is not None
    record(migration, refused)
    assert status(migration).blocked_by == "bounce to dual: Kafka is ahead"
    record(migration, {"kind": "group-phase", "group": "shop", "phase": "dual", "why": ""})
    assert status(migration).blocked_by == ""


def blocked(migration: Migration, step: str, why: str) -> None:
    record(migration, {"kind": "group-blocked", "group": "shop", "step": step, "why": why, "hint": ""})


def test_a_group_that_finalize_refused_before_apply_is_not_blocked_after_apply(migration: Migration) -> None:
    blocked(migration, "finalize", "it was not applied completely")
    assert status(migration).blocked_by == "finalize: it was not applied completely"
    migration.apply()
    assert status(migration).blocked_by == ""
    blocked(migration, "finalize", "some members may still commit to the source alone")
    assert status(migration).blocked_by.startswith("finalize: some members")


def test_apply_does_not_end_the_block_of_a_bounce(migration: Migration) -> None:
    blocked(migration, "bounce zookeeper -> dual", "the gate is closed")
    migration.apply()
    assert status(migration).blocked_by == "bounce zookeeper -> dual: the gate is closed"


def test_members_that_were_seen_in_the_phase_end_the_block_of_their_bounce(migration: Migration) -> None:
    migration.apply()
    blocked(migration, "bounce zookeeper -> dual", "the gate is closed")
    assert status(migration, live=seen(CommitMode.ZOOKEEPER)).blocked_by
    assert status(migration, live=seen(CommitMode.DUAL)).blocked_by == ""
    inferred = LiveGroup(CommitMode.DUAL, StateOrigin.INFERRED, "", ("m-1",))
    assert status(migration, live=inferred).blocked_by


def test_a_refused_rollback_does_not_block_a_group_that_was_finalized_later(migration: Migration) -> None:
    migration.apply()
    commit(migration.target, "shop", 15, 25)
    plan, only = PlanFile(migration.path), frozenset(["shop"])
    with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        writer = JournaledWriter("undo", migration.target, journal, SystemClock(), only=only)
        assert not rollback(plan, migration.state(), writer).ok
    assert status(migration).blocked_by.startswith("not rolled back: orders-0: ")
    rolled_back = SystemClock().now_ms()
    while SystemClock().now_ms() == rolled_back:  # the journal orders steps by their millisecond
        pass
    record(migration, {"kind": "group-finalized", "group": "shop", "verified": 2, "left_out": 0, "gate": ["seen", ""]})
    found = status(migration)
    assert (found.state, found.blocked_by) == (GroupState.FINALIZED, "")


@pytest.mark.parametrize(
    ("recorded", "phase", "state"),
    [
        (None, CommitMode.ZOOKEEPER, GroupState.APPLIED),
        (None, CommitMode.DUAL, GroupState.DUAL),
        (None, None, GroupState.APPLIED),
        ("dual", CommitMode.DUAL, GroupState.DUAL),
        ("dual", CommitMode.KAFKA, GroupState.KAFKA),
        ("dual", None, GroupState.DUAL),
        ("kafka", CommitMode.ZOOKEEPER, GroupState.ZOOKEEPER),
    ],
)
def test_evidence_from_the_servers_takes_precedence(
    migration: Migration, recorded: str | None, phase: CommitMode | None, state: GroupState
) -> None:
    migration.apply()
    if recorded:
        record(migration, {"kind": "group-phase", "group": "shop", "phase": recorded, "why": "earlier"})
    found = status(migration, live=seen(phase))
    assert (found.state, found.known, found.evidence) == (state, StateOrigin.SEEN, "commits were seen")
    assert (found.since_ms is None) == (found.state.value != (recorded or "applied"))


FINALIZED = {"kind": "group-finalized", "group": "shop", "verified": 2, "left_out": 0, "gate": ["seen", ""]}


def phase(name: str) -> JournalRecord:
    return {"kind": "group-phase", "group": "shop", "phase": name, "why": f"committed as {name}"}


@pytest.mark.parametrize(
    ("before", "after", "live", "state", "blocked"),
    [
        ("kafka", None, None, "finalized", ""),
        (None, "kafka", None, "finalized", ""),
        ("dual", None, None, "finalized", ""),
        ("kafka", "dual", None, "dual", "commit as phase dual does"),
        (None, "zookeeper", None, "zookeeper", "commit as phase zookeeper does"),
        ("kafka", None, CommitMode.KAFKA, "finalized", ""),
        ("kafka", None, CommitMode.DUAL, "dual", "commit as phase dual does"),
        ("kafka", None, CommitMode.ZOOKEEPER, "zookeeper", "commit as phase zookeeper does"),
        ("dual", None, CommitMode.DUAL, "dual", ""),
        ("kafka", "dual", CommitMode.KAFKA, "kafka", ""),
    ],
)
def test_a_finalized_group_whose_members_went_back_is_not_finalized(
    migration: Migration, before: str | None, after: str | None, live: CommitMode | None, state: str, blocked: str
) -> None:
    migration.apply()
    for one in (before and phase(before), FINALIZED, after and phase(after)):
        if one:
            record(migration, one)
    found = status(migration, live=None if live is None else seen(live))
    assert (found.state, blocked in found.blocked_by, bool(found.blocked_by)) == (state, True, bool(blocked))
    if state == "dual":
        assert "--to-phase kafka" in found.next_command


def test_a_finalized_group_with_members_in_different_phases_is_blocked(migration: Migration) -> None:
    migration.apply()
    record(migration, phase("kafka"), FINALIZED)
    mixed = seen(None, "members are in different phases: dual: ...; kafka: ...")
    found = status(migration, live=mixed)
    assert (found.state, found.blocked_by) == (
        GroupState.KAFKA,
        "members are in different phases: dual: ...; kafka: ...",
    )
    assert status(migration, live=seen(None, members=())).state is GroupState.FINALIZED


def test_offsets_of_a_finalized_group_that_are_gone_are_an_obstacle(migration: Migration) -> None:
    migration.apply()
    record(migration, FINALIZED)
    assert status(migration, live=view_of(migration).observe(None)["shop"]).blocked_by == ""
    migration.target.delete("shop", ORDERS[:1])
    found = status(migration, live=view_of(migration).observe(None)["shop"])
    assert (found.state, "orders-0 missing" in found.blocked_by) == (GroupState.FINALIZED, True)


@pytest.mark.parametrize(
    ("statuses", "progress"),
    [
        (["passed", "pending"], "1 of 2 steps done; step 2, m-1: not begun"),
        (["member-left", "running"], "1 of 2 steps done; step 2, m-1: its command was started, and the result is not"),
        (["returned", "pending"], "0 of 2 steps done; step 1, m-0: restarted, and its gate has not passed"),
        (["command-failed", "pending"], "0 of 2 steps done; step 1, m-0: its command failed"),
        (["passed", "passed"], "2 of 2 steps done; the gate of the whole group is left"),
    ],
)
def test_the_status_of_a_group_halfway_through_a_bounce_says_how_far_it_is(
    migration: Migration, statuses: list[str], progress: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_STATE_HOME", str(migration.directory))
    migration.apply()
    record(migration, phase("kafka"), FINALIZED)
    change = CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL)
    steps = [RestartStep(f"m-{n}", None, n, StepStatus(one)) for n, one in enumerate(statuses)]
    state = BounceState("shop", change, Observation("shop", 1, {}, {}, (), {}, {}, {}), steps, opened_ms=1)
    file = migration.directory / "back.json"
    save(state, file)
    with OperationLog().recorded(OperationStart("runbook bounce", (), ("shop",), 1, 0, (str(file),))):
        pass

    def shown() -> dict[str, Any]:
        assert run(["migrate", "status", str(migration.path), "shop", "--format", "json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        return dict(row)

    row = shown()
    assert row["state"] == "kafka"
    assert row["blocked_by"].startswith(f"bounce kafka -> dual of group shop: {progress}")
    words = shlex.split(row["next"])
    parse(words[1:])
    assert words[words.index("--state") + 1] == str(file)
    assert run(["migrate", "status", str(migration.path), "--format", "markdown"]) == 0
    assert "steps done" in capsys.readouterr().out

    save(replace(state, finished_ms=2), file)
    assert (shown()["state"], shown()["blocked_by"]) == ("finalized", None)
    file.write_text("damaged")
    assert "bounce state" in shown()["blocked_by"]


def test_a_phase_without_copied_offsets_is_an_obstacle(migration: Migration) -> None:
    found = status(migration, live=seen(CommitMode.KAFKA))
    assert (found.state, found.blocked_by) == (GroupState.KAFKA, "its offsets are not applied")
    assert found.next_command.startswith("offsetmgr migrate apply")


def view_of(migration: Migration) -> FleetView:
    verifier = MigrationVerifier(PlanFile(migration.path), migration.source, migration.target)
    return FleetView(verifier, migration.state(), None, CommitMode.KAFKA, ObservationWindow(0))


def test_a_group_whose_source_moved_on_needs_a_new_plan(migration: Migration) -> None:
    assert view_of(migration).observe(None)["shop"].obstacles == ()
    commit(migration.source, "shop", 11)
    (obstacle,) = view_of(migration).observe(None)["shop"].obstacles
    assert obstacle == "1 partition: orders-0 the source moved on after the plan: make a new plan for the group"
    migration.apply()
    (obstacle,) = view_of(migration).observe(frozenset(["shop"]))["shop"].obstacles
    assert obstacle.startswith("1 partition: orders-0 source-ahead")


def test_a_group_whose_copied_offsets_were_deleted_is_rolled_back_and_not_finalized(migration: Migration) -> None:
    migration.apply()
    migration.target.delete("shop", ORDERS[:1])
    found = status(migration, live=view_of(migration).observe(None)["shop"])
    assert "orders-0 missing: the target has no commit" in found.blocked_by
    assert found.next_command == f"offsetmgr migrate rollback {shlex.quote(str(migration.path))} --group shop"
    assert status(migration, "audit", view_of(migration).observe(None)["audit"]).next_command.split()[2] == "finalize"


def test_a_group_that_does_not_verify_is_not_to_be_finalized(migration: Migration) -> None:
    migration.apply()
    commit(migration.source, "shop", 11)
    found = status(migration, live=view_of(migration).observe(None)["shop"])
    assert "orders-0 source-ahead" in found.blocked_by
    assert found.next_command == f"offsetmgr migrate verify {shlex.quote(str(migration.path))} --group shop"


def test_another_process_that_holds_the_journal_is_waited_for_and_then_reported(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetmgr.migration.plan_run.RECORD_WAIT_S", 0.3)
    held = Journal(journal_path(migration.path), plan_sha256=PlanFile(migration.path).sha256, clock=SystemClock())
    with held, pytest.raises(JournalError, match="another process is working on this plan"):
        record(migration, {"kind": "group-phase", "group": "shop", "phase": "dual", "why": ""})


def test_both_pages_show_every_group_and_escape_its_name(migration: Migration) -> None:
    migration.apply()
    plan = PlanFile(migration.path)
    found = group_statuses(plan, migration.state())
    parts = fleet_parts(plan, found, 1_767_268_800_000, watched=False)
    html, markdown = to_html(fleet_title(plan), parts), to_markdown(fleet_title(plan), parts)
    assert "<b>" not in html.partition("<body>")[2]
    assert "&lt;b&gt;|odd" in html
    assert "| `<b>\\|odd` |" in markdown
    assert html.count('<td class="words" data-name="state">applied</td>') == 3
    assert "<script" not in html
    assert "Written 2026-01-01 12:00 from the plan and its journal. All times are UTC." in html


def test_markdown_does_not_interpret_texts() -> None:
    columns = (DocumentColumn("group", "name"), DocumentColumn("why", "words"), DocumentColumn("n", "number"))
    parts: list[DocumentPart] = [
        SectionTitle("a*b"),
        Paragraph("see [x](y)\n# no title"),
        Facts([("lag", None), ("groups", 1_234)]),
        Table(columns, [("a|b", "<i>", 1_000), ("`tick`", "", None)]),
        Table(columns, []),
    ]
    text = to_markdown("t_1", parts)
    assert text.startswith("# t\\_1\n\n## a\\*b\n\nsee \\[x\\](y) \\# no title\n")
    assert "- lag: unknown\n- groups: 1,234\n" in text
    assert "| `a\\|b`   | \\<i> | 1,000   |" in text
    assert "| \\`tick\\` |      | unknown |" in text
    assert text.endswith("None.\n")
