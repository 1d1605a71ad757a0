"""The files of a bounce belong to one cluster, and a finished bounce counts only while the group stays in its phase."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from test_bounce_waits import RULES, START_MS, WINDOW, ScriptedGroup, member

from offsetmgr.cli.app import run
from offsetmgr.cli.runbook_bounce import _default_state, _prepared
from offsetmgr.cli.runbook_options import PhaseName, baselines_of
from offsetmgr.core.commit_mode import AlreadyInPhase, CommitMode, CommitModeChange
from offsetmgr.core.errors import MalformedData, OtherCluster, UsageError
from offsetmgr.kafka.cluster.base import Cluster
from offsetmgr.migration.baseline_file import BaselineFile, NoBaseline
from offsetmgr.migration.bounce import bounce
from offsetmgr.migration.bounce_checkpoint import BounceState, RestartStep, StepStatus, load, save
from offsetmgr.migration.bounce_plan import BounceOutcome, BounceSpec, plan_bounce
from offsetmgr.migration.fleet_bounce import bounce_groups, journal_record
from offsetmgr.migration.group_observer import GroupView, Registry
from offsetmgr.migration.observation import Observation, PartitionOwner, RegisteredMember
from offsetmgr.migration.precheck import UnrequestedReturn
from offsetmgr.migration.restart_command import CommandResult
from offsetmgr.migration.rollout import Rollout
from offsetmgr.migration.runbook import to_json, write_runbook
from offsetmgr.migration.runbook_commands import RunbookArguments
from offsetmgr.testing.memory import MemoryStore

TO_DUAL = CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.DUAL)
SPEC = BounceSpec("g", CommitMode.DUAL, "restart {member}", rules=RULES, window=WINDOW)


@dataclass
class Group:
    """A group of one member that commits as ``phase`` does."""

    member: RegisteredMember
    phase: CommitMode

    def scripted(self) -> ScriptedGroup:
        def kafka_at(second: float) -> int | None:
            return 10 + int(second) if self.phase.commits_to_kafka else None

        def owners_at(_: float) -> Mapping[int, PartitionOwner]:
            return {n: PartitionOwner(self.member.id, 5) for n in range(2)}

        def zookeeper_at(second: float) -> int:
            return 10 if self.phase is CommitMode.KAFKA else 10 + int(second)

        return ScriptedGroup(lambda _: [self.member], owners_at, zookeeper_at, kafka_at)


def finished(path: Path, at_end: RegisteredMember) -> None:
    """Saves a finished bounce to dual, at whose end ``at_end`` was registered."""
    baseline = Observation("g", START_MS, {}, {}, (), {}, {}, {}, stores={"zookeeper": "c1", "kafka": "c1"})
    state = BounceState("g", TO_DUAL, baseline, [], opened_ms=1, finished_ms=2)
    state.finished_members = {at_end.id: at_end.czxid}
    save(state, path)


@pytest.mark.parametrize("state", [["--state", "state.json"], []])
def test_a_bounce_that_is_resumed_during_the_outage_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [RestartStep(f"m-{n}", None, n, status) for n, status in enumerate((StepStatus.PASSED, StepStatus.PENDING))]
    baseline = Observation("g", START_MS, {}, {}, (), {}, {}, {})
    save(BounceState("g", TO_DUAL, baseline, steps, opened_ms=1), Path(state[1] if state else "bounce-g-dual.json"))
    servers = ["--zookeeper", "127.0.0.1:1", "--bootstrap-server", "127.0.0.1:1", "--timeout", "200"]

    for options, lines in ((["--execute", "--yes"], 1), ([], 0)):
        assert run(["runbook", "bounce", "-g", "g", "--to-phase", "dual", "--command", "x", *state, *servers, *options])
        shown = capsys.readouterr().err
        assert shown.count("bounce zookeeper -> dual of group g: 1 of 2 steps done; step 2, m-1: not begun") == lines
        assert shown.count("resume: ") == lines


@pytest.mark.parametrize("execute", [True, False])
def test_a_finished_group_is_skipped_while_its_members_are_the_same(tmp_path: Path, execute: bool) -> None:
    group = Group(member("h1", 7), CommitMode.ZOOKEEPER)  # its commits are not watched
    finished(tmp_path / "state.json", group.member)
    (found,) = bounce_groups(group.scripted().view(), [SPEC], tmp_path / "state.json", execute=execute)
    assert (found.ok, found.result) == (True, None)


def test_a_finished_group_that_restarted_in_the_same_phase_is_skipped(tmp_path: Path) -> None:
    finished(tmp_path / "state.json", member("h1", 7))
    group = Group(member("h1", 8), CommitMode.DUAL)
    (found,) = bounce_groups(group.scripted().view(), [SPEC], tmp_path / "state.json", execute=True)
    assert (found.ok, found.result) == (True, None)


@pytest.mark.parametrize("start", [None, CommitMode.ZOOKEEPER])
@pytest.mark.parametrize("execute", [True, False])
def test_a_group_that_left_the_phase_is_not_skipped(tmp_path: Path, start: CommitMode | None, execute: bool) -> None:
    finished(tmp_path / "state.json", member("h1", 7))
    group = Group(member("h1", 8), CommitMode.ZOOKEEPER)
    spec = replace(SPEC, start=start)
    (found,) = bounce_groups(group.scripted().view(), [spec], tmp_path / "state.json", execute=execute)
    assert not found.ok
    assert found.error is not None
    assert "its members have restarted since; they are not known to be in phase dual: " in found.error.why
    assert found.error.hint == "name another one with --state for a new bounce"


def at_cluster(cluster: str, group: Group) -> GroupView:
    """The view of the group in a cluster with this id."""
    scripted, store = group.scripted(), MemoryStore(cluster)
    return GroupView(cast("Registry", scripted), store, store, cast("Cluster", scripted), scripted.clock)


def test_a_baseline_of_another_cluster_is_refused_by_name(tmp_path: Path) -> None:
    group = Group(member("h1", 7), CommitMode.ZOOKEEPER)
    view = group.scripted()
    book = write_runbook(view.view(), "g", CommitMode.DUAL, window=WINDOW)
    path = tmp_path / "runbook.json"
    path.write_text(json.dumps(to_json([book])))
    baseline = BaselineFile(path).of("g")
    assert baseline.stores == {"zookeeper": "c1", "kafka": "c1"}
    at_cluster("c1", group).require_stores("baseline runbook.json", baseline)
    with pytest.raises(OtherCluster) as refused:
        at_cluster("c2", group).require_stores("baseline runbook.json", baseline)
    assert refused.value.what == "baseline runbook.json"
    assert refused.value.why == "it was written for zookeeper c1, this is zookeeper c2"


def test_a_state_file_of_another_cluster_is_refused_by_name(tmp_path: Path) -> None:
    group, path = Group(member("h1", 7), CommitMode.ZOOKEEPER), tmp_path / "state.json"
    finished(path, group.member)
    (found,) = bounce_groups(at_cluster("c2", group), [SPEC], path, execute=True)
    assert isinstance(found.error, OtherCluster)
    state = load(path, "g")
    assert state is not None
    save(replace(state, finished_ms=None), path)
    with pytest.raises(OtherCluster, match="it was written for zookeeper c1, this is zookeeper c2"):
        bounce(at_cluster("c2", group), SPEC, path)
    with pytest.raises(OtherCluster, match="it was written for zookeeper c1, this is zookeeper c2"):
        plan_bounce(at_cluster("c2", group), SPEC, path)


def test_a_state_file_of_version_3_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    finished(path, member("h1", 7))
    content = json.loads(path.read_text())
    assert content["version"] == 4
    (saved,) = content["bounces"]
    del saved["finished_members"], saved["baseline"]["stores"]
    path.write_text(json.dumps(content | {"version": 3}))
    state = load(path, "g")
    assert state is not None
    assert (state.finished_members, state.baseline.stores) == ({}, {})
    at_cluster("c2", Group(member("h1", 7), CommitMode.DUAL)).require_stores("state file", state.baseline)


def aborted(path: Path, baseline: Observation) -> None:
    """Saves a bounce to dual whose first member passed and whose second member failed, before the way back."""
    steps = [RestartStep("m1", "h1", 1, StepStatus.PASSED), RestartStep("m2", "h2", 2, StepStatus.COMMAND_FAILED)]
    save(BounceState("g", TO_DUAL, baseline, steps, opened_ms=1), path)


def test_a_bounce_with_a_new_baseline_does_not_resume_the_aborted_bounce(tmp_path: Path) -> None:
    """After the way back, every member must be restarted again."""
    path, group = tmp_path / "state.json", Group(member("h1", 7), CommitMode.ZOOKEEPER)
    first = Observation("g", START_MS - 86_400_000, {}, {}, (), {}, {}, {}, stores={"zookeeper": "c1", "kafka": "c1"})
    aborted(path, first)
    view = group.scripted().view()
    second = replace(SPEC, baseline=replace(first, at_ms=START_MS, members={group.member.id: group.member}))
    for call in (plan_bounce, bounce):
        with pytest.raises(UsageError, match=r"an earlier bounce of group g \(baseline of 2023-11-13T22:13:20Z\)"):
            call(view, second, path)
    assert len(plan_bounce(view, replace(SPEC, baseline=first), path).steps) == 2  # resumes
    assert len(plan_bounce(view, SPEC, path).steps) == 2
    assert [step.member for step in plan_bounce(view, second, tmp_path / "new.json").steps] == [group.member.id]


def test_a_new_baseline_has_another_default_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = Observation("g", START_MS, {}, {}, (), {}, {}, {})
    aborted(Path("bounce-g-dual.json"), first)
    same, new = replace(SPEC, baseline=first), replace(SPEC, baseline=replace(first, at_ms=START_MS + 1))
    view = Group(member("h1", 7), CommitMode.ZOOKEEPER).scripted().view()
    assert _default_state(view, [same], None, PhaseName.DUAL, several=False) == Path("bounce-g-dual.json")
    assert _default_state(view, [new], None, PhaseName.DUAL, several=False) == Path("bounce-g-dual-2.json")
    assert "the bounce in bounce-g-dual.json has another baseline, so this is a new one" in capsys.readouterr().err


@pytest.mark.parametrize(("recorded", "seen"), [(CommitMode.KAFKA, CommitMode.DUAL), (None, CommitMode.KAFKA)])
def test_a_wave_is_resumed_after_other_groups_have_gone_on(
    tmp_path: Path, recorded: CommitMode | None, seen: CommitMode
) -> None:
    """The journal of the plan, or the commits, show that the group has gone on. It is not blocked."""
    finished(tmp_path / "state.json", member("h1", 7))
    group = Group(member("h1", 8), seen)
    spec = replace(SPEC, recorded=recorded)
    (found,) = bounce_groups(group.scripted().view(), [spec], tmp_path / "state.json", execute=True)
    assert (found.ok, found.result) == (True, None)
    assert found.note == "gone on to phase kafka; to take it back to dual, add --from-phase kafka and another --state"
    assert journal_record("g", found) is None


@pytest.mark.parametrize("execute", [True, False])
@pytest.mark.parametrize("several", [True, False])
def test_a_bounce_of_a_wave_begins_no_way_back_without_the_phase(tmp_path: Path, execute: bool, several: bool) -> None:
    """All bounces of the wave are finished, so the state file of a repetition is new."""
    view, path = Group(member("h1", 8), CommitMode.KAFKA).scripted().view(), tmp_path / "new.json"
    spec = replace(SPEC, source=CommitMode.ZOOKEEPER, way_back="offsetmgr runbook bounce ... --from-phase kafka")
    (found,) = bounce_groups(view, [spec], path, execute=execute, several=several)
    assert isinstance(found.error, UnrequestedReturn)
    assert not found.ok
    assert str(found.error).startswith("bounce kafka -> dual: group g is in phase kafka already")
    assert found.error.hint.endswith(": offsetmgr runbook bounce ... --from-phase kafka")
    assert journal_record("g", found) is None  # the group is not blocked
    assert not path.exists()

    named = replace(spec, start=CommitMode.KAFKA)
    (planned,) = bounce_groups(view, [named], path, execute=False, several=several)
    assert planned.ok
    (forward,) = bounce_groups(view, [replace(spec, source=CommitMode.KAFKA)], path, execute=False, several=several)
    assert forward.ok  # the plan goes from Kafka to ZooKeeper


def test_a_finished_wave_is_skipped_and_not_blocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    group, path = Group(member("h1", 7), CommitMode.DUAL), Path("bounce-fleet-dual.json")
    finished(path, group.member)
    view = group.scripted().view()
    assert _default_state(view, [SPEC], Path("fleet.json"), PhaseName.DUAL, several=True) == path
    (found,) = bounce_groups(view, [SPEC], path, execute=True)
    assert (found.ok, found.note) == (True, "finished by an earlier run, according to the state file")

    group.member = member("h1", 8)
    view = group.scripted().view()
    new = _default_state(view, [SPEC], Path("fleet.json"), PhaseName.DUAL, several=True)
    assert new == Path("bounce-fleet-dual-2.json")
    (found,) = bounce_groups(view, [SPEC], new, execute=True)
    assert (found.ok, found.note) == (True, "in phase dual already")
    assert journal_record("g", found) is None


def test_a_bounce_into_the_present_phase_does_not_block_a_group(tmp_path: Path) -> None:
    view = Group(member("h1", 8), CommitMode.DUAL).scripted().view()
    (found,) = bounce_groups(view, [SPEC], tmp_path / "new.json", execute=True, several=False)
    assert isinstance(found.error, AlreadyInPhase)
    assert journal_record("g", found) is None


def test_a_group_without_a_baseline_does_not_hold_up_the_wave(tmp_path: Path) -> None:
    group = Group(member("h1", 7), CommitMode.ZOOKEEPER)
    view, path = group.scripted().view(), tmp_path / "wave-1.json"
    books = to_json([write_runbook(view, "g", CommitMode.DUAL, window=WINDOW)] * 2)
    books["runbooks"][1] = {"group": "damaged", "baseline": {"group": "damaged"}}
    path.write_text(json.dumps(books))

    def spec(name: str) -> BounceSpec:
        return replace(SPEC, group=name, baseline=BaselineFile(path).of(name))

    specs = [_prepared(spec, name) for name in ("absent", "damaged", "g")]
    absent, damaged, planned = bounce_groups(view, specs, tmp_path / "state.json", execute=False)
    assert isinstance(absent.error, NoBaseline)
    assert absent.error.why == "it belongs to group damaged, g, not to absent"
    assert journal_record("absent", absent) is not None
    assert isinstance(damaged.error, NoBaseline)
    assert planned.ok
    path.unlink()
    with pytest.raises(MalformedData, match="No such file"):  # concerns every group
        _prepared(spec, "g")


def test_a_baseline_file_is_read_once_for_all_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = Group(member("h1", 7), CommitMode.ZOOKEEPER).scripted().view()
    books, state = tmp_path / "wave-1.json", tmp_path / "state.json"
    books.write_text(json.dumps(to_json([write_runbook(view, "g", CommitMode.DUAL, window=WINDOW)])))
    finished(state, member("h1", 7))
    reads: list[Path] = []
    read_text = Path.read_text

    def counted(path: Path, **named: str) -> str:
        reads.append(path)
        return read_text(path, **named)

    monkeypatch.setattr(Path, "read_text", counted)
    for path in (books, state):
        baseline_of = baselines_of(view, path)
        for _ in range(3):
            assert baseline_of("g") is not None
            with pytest.raises(NoBaseline, match="it belongs to group g, not to other"):
                baseline_of("other")
    assert reads == [books, state]
    assert baselines_of(view, None)("g") is None


@pytest.mark.parametrize(("configure", "runs"), [(None, 2), ("configure {settings}", 1)])
def test_a_rollout_whose_members_did_not_register_is_repeated(tmp_path: Path, configure: str | None, runs: int) -> None:
    """No new member registers after `kubectl`. With ``configure``, another rollout would restart the members again."""
    commands: list[str] = []

    def run(command: str, log: Path, timeout_s: float, started: object = None) -> CommandResult:
        commands.append(command)
        group.members_at = lambda _: []
        return CommandResult(0)

    group = Group(member("h1", 7), CommitMode.ZOOKEEPER).scripted()
    rollout = Rollout("deployment/g", configure=configure)
    spec = replace(SPEC, start=CommitMode.ZOOKEEPER, command="", rollout=rollout)
    for _ in range(2):
        result = bounce(group.view(), spec, tmp_path / "state.json", run=run)
        assert (result.outcome, result.steps[0].status) == (BounceOutcome.FAILED, StepStatus.RETURNED)
        assert "0 of 1 members of deployment/g have registered" in result.why
    assert len(commands) == runs


def test_a_runbook_warns_of_copied_offsets_that_expire() -> None:
    group = Group(member("h1", 7), CommitMode.ZOOKEEPER).scripted()
    group.owners_at = lambda _: {0: PartitionOwner(member("h1", 7).id, 5)}
    arguments = RunbookArguments(retention_ms=86_400_000)
    book = write_runbook(group.view(), "g", CommitMode.KAFKA, start=CommitMode.ZOOKEEPER, arguments=arguments)
    (warning,) = [str(one) for one in book.warnings if "Kafka deletes them" in str(one)]
    assert warning.startswith(
        "no consumer commits the offsets of 1 partition (t-1): if you copy them now, Kafka deletes"
    )
    assert "about 2023-11-15T22:13" in warning  # a day after START_MS
    assert "renew them: offsetmgr migrate apply migration-g.json --refresh" in warning
    book = write_runbook(group.view(), "g", CommitMode.KAFKA, start=CommitMode.ZOOKEEPER)
    assert not [one for one in book.warnings if "Kafka deletes them" in str(one)]
