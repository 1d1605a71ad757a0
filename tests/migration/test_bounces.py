"""Bounces of scripted groups: their files, their gates, the groups of a plan, and the commands that restart members."""

import json
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from in_process import Output, command
from one_migration import Migration, commit
from scripted_group import START_MS, ScriptedGroup, member, writes

from offsetmgr import OffsetAdmin, PlanOptions
from offsetmgr.app.connections import Connections
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import MalformedData, OffsetMgrError, Unreachable
from offsetmgr.migration.observation import ObservationWindow, PartitionOwner, RegisteredMember, watch_group
from offsetmgr.testing.memory import MemoryStore

ZOOKEEPER, DUAL, KAFKA = CommitMode.ZOOKEEPER, CommitMode.DUAL, CommitMode.KAFKA
PLAN = ("--to-phase", "dual", "--command", "restart {member}", "--quiet", "2", "--format", "json")
CHECK = ("--phase", "dual", "--quiet", "2")


def group_of(one: RegisteredMember, phase: CommitMode, cluster: str = "c1") -> ScriptedGroup:
    """A group of one member that commits as ``phase`` does."""
    return ScriptedGroup(
        members_at=lambda _: [one],
        owners_at=lambda _: {n: PartitionOwner(one.id, 5) for n in range(2)},
        zookeeper_at=lambda second: 10 if phase is KAFKA else 10 + int(second),
        kafka_at=lambda second: 10 + int(second) if phase is not ZOOKEEPER else None,
        cluster_name=cluster,
    )


def finished(path: Path, at_end: RegisteredMember, *, opened: bool = False) -> None:
    """Bounces a group to dual; at the end ``at_end`` is registered. ``opened``: as if the bounce were not finished."""
    done = path.with_suffix(".done")
    done.unlink(missing_ok=True)
    old = member("h0", 1)
    group = group_of(old, ZOOKEEPER)
    group.members_at = lambda _: [at_end] if done.exists() else [old]
    group.owners_at = lambda _: dict.fromkeys(range(2), PartitionOwner(at_end.id if done.exists() else old.id, 5))
    group.kafka_at = lambda second: 10 + int(second) if done.exists() else None
    group.bounce("dual", writes("{member}", done), path, "--from-phase", "zookeeper")
    if opened:
        content = json.loads(path.read_text())
        content["bounces"][0]["finished_ms"] = None
        path.write_text(json.dumps(content))


def wave(group: ScriptedGroup, state: Path, *arguments: object, execute: bool = True, code: int = 0) -> str:
    """A bounce to dual of this group and of one without members."""
    how = ("--execute", "--yes") if execute else ()
    command = ("--to-phase", "dual", "--command", "restart {member}", "--quiet", "2", "--state", state)
    return group.runbook("bounce", "--group", "absent", *command, *how, *arguments, code=code).stderr


@pytest.mark.parametrize("execute", [True, False])
@pytest.mark.parametrize(
    ("at_end", "now", "phase", "said"),
    [
        (7, 7, ZOOKEEPER, "finished by an earlier run, according to the state file"),  # its commits are not watched
        (7, 8, DUAL, "finished by an earlier run, according to the state file"),  # restarted in the same phase
        (7, 8, KAFKA, "gone on to phase kafka; to take it back to dual, add --from-phase kafka and another --state"),
    ],
)
def test_a_finished_group_of_a_wave_is_skipped(tmp_path, execute, at_end, now, phase, said):
    finished(tmp_path / "state.json", member("h1", at_end))
    shown = wave(group_of(member("h1", now), phase), tmp_path / "state.json", execute=execute, code=1)
    assert f"group g: {said}\n" in shown
    assert "not done: absent\n" in shown


@pytest.mark.parametrize(("start", "execute"), [((), True), (("--from-phase", "zookeeper"), False)])
def test_a_group_that_left_the_phase_is_not_skipped(tmp_path: Path, start: tuple[str, ...], execute: bool) -> None:
    finished(tmp_path / "state.json", member("h1", 7))
    group = group_of(member("h1", 8), ZOOKEEPER)
    shown = wave(group, tmp_path / "state.json", *start, execute=execute, code=1)
    assert "its members have restarted since; they are not known to be in phase dual: " in shown
    assert "(name another one with --state for a new bounce)" in shown


@pytest.mark.parametrize("arguments", [("bounce", *PLAN), ("write", "--to", "dual")])
def test_a_phase_that_another_client_hides_is_known_after_the_client_was_stopped(arguments: tuple[str, ...]) -> None:
    group = group_of(member("h1", 7), ZOOKEEPER)
    group.kafka_at = lambda second: 5 + int(second)
    shown = group.runbook(*arguments, code=1).stderr
    assert "another client (a mirror?) writes there" in shown
    assert "stop the other client, then check again" in shown


@pytest.mark.parametrize(("phase", "to"), [(ZOOKEEPER, None), (DUAL, "kafka")])
def test_a_check_names_the_phase_of_the_group_and_the_next_step(phase, to):
    group, servers = group_of(member("h1", 7), phase), "--zookeeper zk:2181 --bootstrap-server k:9092"
    step = f"runbook write --group g --to {to} -o runbook-g.json -o runbook-g.html"
    step = step if to else "migrate plan --from zookeeper://zk:2181 --to kafka://k:9092 --group g -o g.json"
    code = int(phase is not DUAL)
    last = group.runbook("check", *CHECK, code=code).stdout.splitlines()[-1]
    assert last == f"group g: phase {phase.value} (seen); next: offsetmgr {step} {servers}"
    found = json.loads(group.runbook("check", *CHECK, "--format", "json", code=code).stdout)["location"]
    assert (found["phase"], found["confidence"]) == (phase.value, "seen")
    assert found["next"]["command"] == f"offsetmgr {step} {servers}"


def test_a_check_and_its_last_line_agree(tmp_path: Path) -> None:
    first, second = member("h1", 7), member("h2", 3)
    group, book = group_of(member("h1", 1), ZOOKEEPER), tmp_path / "book.json"
    group.members_at = lambda _: [second]
    group.runbook("write", "--to", "dual", "--from", "zookeeper", "-o", book)
    group = group_of(first, DUAL)
    group.members_at = lambda _: [first, second]
    check = (*CHECK, "--baseline", book)
    last = group.runbook("check", *check, code=1).stdout.splitlines()[-1]
    assert last.startswith(f"group g: phase dual (inferred); next: make the check pass first: {second.id}: not bounced")
    assert group.runbook("check", *check, "--format", "csv", code=1).stdout.splitlines()[-1].startswith("location,g,,")
    group.members_at, group.zookeeper_at, group.kafka_at = lambda _: [first], lambda _: 1000, lambda _: 1000
    last = group.runbook("check", *check, "--accept-idle").stdout.splitlines()[-1]
    assert last.startswith("group g: phase dual (inferred); next: offsetmgr runbook write --group g --to kafka")


def test_a_check_calls_the_waiting_of_its_window() -> None:
    group, left = group_of(member("h1", 7), DUAL), list[float]()
    with patch.object(Connections, "group_view", lambda _: group.view()), OffsetAdmin("zookeeper://zk:2181") as admin:
        assert admin.check_phase("g", DUAL, window=ObservationWindow(30, 1, left.append)).passed
    assert left


def test_files_of_another_cluster_are_refused_by_name(tmp_path: Path) -> None:
    here, there = (group_of(member("h1", 7), ZOOKEEPER, cluster) for cluster in ("c1", "c2"))
    book, state = tmp_path / "runbook.json", tmp_path / "state.json"
    here.runbook("write", "--to", "dual", "-o", book)
    baseline = json.loads(book.read_text())["runbooks"][0]["baseline"]
    assert baseline["stores"] == {"zookeeper": "c1", "kafka": "c1"}
    here.runbook("check", *CHECK, "--baseline", book, code=1)
    why = "it was written for zookeeper c1, this is zookeeper c2"
    assert f"baseline {book}: {why}" in there.runbook("check", *CHECK, "--baseline", book, code=2).stderr
    finished(state, member("h1", 7), opened=True)
    for how in ((), ("--execute", "--yes")):
        refused = there.runbook("bounce", *PLAN, "--state", state, *how, code=2)
        assert f"state file {state}: {why}" in refused.stderr
    finished(tmp_path / "other.json", member("h1", 7))
    assert why in wave(there, tmp_path / "other.json", code=1)


def test_a_state_file_of_version_3_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    finished(path, member("h1", 7), opened=True)
    content = json.loads(path.read_text())
    assert content["version"] == 4
    (saved,) = content["bounces"]
    del saved["finished_members"], saved["baseline"]["stores"]
    path.write_text(json.dumps(content | {"version": 3}))
    resumed = group_of(member("h1", 7), DUAL, "c2").runbook("bounce", *PLAN, "--state", path)
    assert [step["status"] for step in json.loads(resumed.stdout)["steps"]] == ["passed"]


@pytest.fixture
def aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ScriptedGroup, list[Path]]:
    """The default state file of a bounce to dual whose first member passed and whose second member failed, before the
    way back; the group, and its baselines before the bounce and after the way back."""
    monkeypatch.chdir(tmp_path)
    first, second, done = member("h1", 1), member("h2", 2), tmp_path / "done"
    group = group_of(first, ZOOKEEPER)
    group.members_at = lambda _: [member("h1", 50) if done.exists() else first, second]
    group.owners_at = lambda _: {n: PartitionOwner(one.id, 5) for n, one in enumerate(group.members_at(0))}
    group.kafka_at = lambda second: 10 + int(second)
    books = [tmp_path / "before.json", tmp_path / "after.json"]
    group.runbook("write", "--to", "dual", "--from", "zookeeper", "-o", books[0])
    command = f"test ! -e {done} && {writes('{member}', done)}"
    group.bounce(
        "dual", command, Path("bounce-g-dual.json"), "--baseline", books[0], "--from-phase", "zookeeper", code=1
    )
    group.clock.seconds = 86_400
    group.runbook("write", "--to", "dual", "--from", "zookeeper", "-o", books[1])
    return group, books


def test_a_bounce_with_a_new_baseline_does_not_resume_the_aborted_bounce(aborted, tmp_path):
    """After the way back, every member must be restarted again."""
    group, (before, after) = aborted

    def statuses(*arguments: object) -> list[str]:
        planned = group.runbook("bounce", *PLAN, "--from-phase", "zookeeper", *arguments)
        return [step["status"] for step in json.loads(planned.stdout)["steps"]]

    state = ("--state", tmp_path / "bounce-g-dual.json")
    for how in ((), ("--execute", "--yes")):
        refused = group.runbook("bounce", *PLAN, *state, "--baseline", after, *how, code=2).stderr
        assert "an earlier bounce of group g (baseline of 2023-11-14T22:13:2" in refused
    resumed = ["passed", "command-failed"]
    assert statuses(*state, "--baseline", before) == statuses(*state) == resumed
    assert statuses("--baseline", after, "--state", tmp_path / "new.json") == ["pending", "pending"]

    # The default state file
    assert statuses("--baseline", before) == resumed
    shown = group.runbook("bounce", *PLAN, "--from-phase", "zookeeper", "--baseline", after)
    assert "the bounce in bounce-g-dual.json has another baseline, so this is a new one" in shown.stderr
    failing = ("--to-phase", "dual", "--command", "false {member}", "--from-phase", "zookeeper", "--execute", "--yes")
    group.runbook("bounce", *failing, "--baseline", after, code=1)
    assert (tmp_path / "bounce-g-dual-2.json").exists()


@pytest.mark.parametrize("name", ["state.json", ""])
@pytest.mark.parametrize(("how", "lines"), [(("--execute", "--yes"), 1), ((), 0)])
@pytest.mark.usefixtures("aborted")
def test_a_bounce_that_is_resumed_during_the_outage_says_how_far_it_is(name, how, lines):
    state = Path("bounce-g-dual.json")
    content = json.loads(state.read_text())
    content["bounces"][0]["steps"][1]["status"] = "pending"
    (state.rename(name) if name else state).write_text(json.dumps(content))
    servers = ("--zookeeper", "127.0.0.1:1", "--bootstrap-server", "127.0.0.1:1", "--timeout", "200")
    resumed = ("--group", "g", "--to-phase", "dual", "--command", "x", *(("--state", name) if name else ()))
    shown = command("runbook", "bounce", *resumed, *servers, *how, code=1).stderr
    halfway = f"bounce zookeeper -> dual of group g: 1 of 2 steps done; step 2, {member('h2', 2).id}: not begun"
    assert (shown.count(halfway), shown.count("resume: ")) == (lines, lines)


def test_a_finished_bounce_of_one_group_is_followed_by_a_new_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished(Path("bounce-g-dual.json"), member("h1", 7))
    shown = group_of(member("h1", 7), DUAL).runbook("bounce", *PLAN, "--execute", "--yes", code=1).stderr
    assert "the bounce in bounce-g-dual.json is finished, so this is a new one" in shown
    assert "the group is in this phase already" in shown


def test_one_file_holds_the_bounces_of_several_groups(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    finished(state, member("h1", 7))
    group = replace(group_of(member("h1", 7), ZOOKEEPER), name="other")
    group.bounce("dual", "exit 3; {member}", state, "--from-phase", "zookeeper", code=1)
    found = {one["group"]: one["finished_ms"] for one in json.loads(state.read_text())["bounces"]}
    assert (set(found), found["g"] is None, found["other"]) == ({"g", "other"}, False, None)
    for name, to, why in (
        ("g", "dual", "is finished"),
        ("new", "kafka", "it belongs to the bounce zookeeper -> dual of group g"),
    ):
        refused = replace(group, name=name).bounce(to, "restart {member}", state, code=2)
        assert why in refused.stderr
    new = replace(group, name="new").bounce("dual", "exit 3; {member}", state, "--from-phase", "zookeeper", code=1)
    assert "exit code 3" in new.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting"),
        ("[]", "not an object"),
        ("{}", "not the state of a rolling bounce"),
        ('{"format": "offsetmgr-bounce", "version": 9}', "version 9"),
        ('{"format": "offsetmgr-bounce", "version": 2}', "has no 'group'"),
        ('{"format": "offsetmgr-bounce", "version": 3}', "'bounces' is not a list"),
        ('{"format": "offsetmgr-bounce", "version": 3, "bounces": [1]}', "'bounces' is not a list of objects"),
        ('{"format": "offsetmgr-bounce", "version": 3, "bounces": [{"group": "g"}]}', "damaged"),
    ],
)
def test_a_broken_state_file_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    shown = group_of(member("h1", 7), ZOOKEEPER).runbook("bounce", *PLAN, "--state", path, code=1).stderr
    assert str(path) in shown
    assert why in shown


def test_two_processes_never_execute_the_same_bounce(tmp_path: Path) -> None:
    group, state, nested = group_of(member("h1", 7), ZOOKEEPER), tmp_path / "state.json", list[str]()
    restart = ("dual", "exit 3; {member}", state, "--from-phase", "zookeeper")

    def members(_: float) -> list[RegisteredMember]:
        if not nested and (tmp_path / ".state.json.lock").exists():  # the first run has begun
            nested.append("")
            nested.append(group.bounce(*restart, code=1).stderr)
        return [member("h1", 7)]

    group.members_at = members
    group.bounce(*restart, code=1)
    assert "another process is executing it" in nested[1]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["state.json", "state.log"]


def test_a_group_without_a_baseline_does_not_hold_up_the_wave(tmp_path: Path) -> None:
    group, path, state = group_of(member("h1", 7), ZOOKEEPER), tmp_path / "wave-1.json", tmp_path / "state.json"
    group.runbook("write", "--to", "dual", "-o", path)
    books = json.loads(path.read_text())
    books["runbooks"] += [{"group": "damaged", "baseline": {"group": "damaged"}}]
    path.write_text(json.dumps(books))
    shown = wave(group, state, "--group", "damaged", "--baseline", path, execute=False, code=1)
    assert "group absent: baseline" in shown
    assert "it belongs to group damaged, g, not to absent" in shown
    assert "! group damaged: baseline" in shown
    assert "not done: absent, damaged\n" in shown
    path.unlink()
    assert "No such file" in wave(group, state, "--baseline", path, execute=False, code=1)  # concerns every group


@pytest.mark.parametrize(("configure", "runs"), [((), 2), (("--configure", "echo {settings}"), 1)])
def test_a_rollout_whose_members_did_not_register_is_repeated(tmp_path, monkeypatch, configure, runs):
    """No new member registers after `kubectl`. With --configure, another rollout would restart the members again."""
    calls, kubectl = tmp_path / "calls", tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f"#!/bin/sh\n{writes('$2', calls)}\n")
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(kubectl.parent), prepend=":")
    group = group_of(member("h1", 7), ZOOKEEPER)
    group.members_at = lambda _: [] if calls.exists() else [member("h1", 7)]
    rollout = ("--kubernetes", "deployment/g", *configure, "--from-phase", "zookeeper", "--to-phase", "dual")
    for _ in range(2):
        failed = group.runbook("bounce", *rollout, "--state", tmp_path / "s.json", "--execute", "--yes", code=1)
        assert "0 of 1 members of deployment/g have registered" in failed.stderr
        assert json.loads((tmp_path / "s.json").read_text())["bounces"][0]["steps"][0]["status"] == "returned"
    assert calls.read_text().split().count("status") == runs


def test_a_runbook_warns_of_copied_offsets_that_expire(tmp_path: Path) -> None:
    group = group_of(member("h1", 7), ZOOKEEPER)
    group.owners_at = lambda _: {0: PartitionOwner(member("h1", 7).id, 5)}

    def warnings(name: str) -> list[Any]:
        group.runbook("write", "--to", "kafka", "--from", "zookeeper", "-o", tmp_path / name)
        found = json.loads((tmp_path / name).read_text())["runbooks"][0]["warnings"]
        return [one for one in found if "Kafka deletes them" in one]

    assert warnings("unlimited.json") == []
    group.retention_ms = 86_400_000
    (warning,) = warnings("a-day.json")
    assert warning.startswith(
        "no consumer commits the offsets of 1 partition (t-1): if you copy them now, Kafka deletes"
    )
    assert "about 2023-11-15T22:13" in warning  # a day after the first observation
    assert warning.endswith("unless you renew them when no old consumer is registered: see Clean up")


FROM_ZOOKEEPER = ("--from-phase", "zookeeper")


def steps_of(state: Path) -> Any:
    return json.loads(state.read_text())["bounces"][0]["steps"]


def test_a_watch_of_commits_is_announced_after_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ScriptedGroup(lambda _: [FIRST], lambda _: {}, lambda _: 10, lambda _: 10)
    monkeypatch.setattr(time, "monotonic", group.clock.monotonic)
    shown = group.runbook("check", "--phase", "dual", code=1).stderr
    assert shown.splitlines()[0] == "watching commits for up to 27 s"
    assert shown.count("watching commits") == 1


def test_the_gate_after_a_restart_waits_for_the_rebalance(tmp_path: Path) -> None:
    """After the restart, the other member owns all partitions for 3 s. Then the successor owns its part."""
    old, other, new = member("h1", 1), member("h2", 2), member("h1", 50)
    done, noticed = tmp_path / "done", []

    def since() -> float | None:
        if done.exists() and not noticed:
            noticed.append(group.clock.seconds)
        return group.clock.seconds - noticed[0] if noticed else None

    def owners(_: float) -> Mapping[int, PartitionOwner]:
        passed = since()
        if passed is None:
            return {0: PartitionOwner(old.id, 5), 1: PartitionOwner(other.id, 6)}
        if passed < 3:
            return {0: PartitionOwner(other.id, 60), 1: PartitionOwner(other.id, 61)}
        return {0: PartitionOwner(new.id, 70), 1: PartitionOwner(other.id, 71)}

    group = replace(group_of(old, DUAL), owners_at=owners)
    group.members_at = lambda _: [old, other] if since() is None else [new, other]
    # The second command fails: here the test ends the bounce.
    failed = group.bounce(
        "dual", f"test ! -e {done} && {writes('{member}', done)}", tmp_path / "state.json", *FROM_ZOOKEEPER, code=1
    )
    first, second = steps_of(tmp_path / "state.json")
    assert (first["status"], first["successors"]) == ("passed", [new.id]), failed.stderr
    assert second["status"] == "command-failed"


def test_a_member_whose_session_expired_is_restarted_when_it_has_registered_again(tmp_path: Path) -> None:
    old, again = member("h1", 1), RegisteredMember(member("h1", 1).id, "h1", START_MS, 40, 40, ("t",))
    state, commands = tmp_path / "state.json", tmp_path / "commands"
    expired_at: list[float] = []

    def members(second: float) -> list[RegisteredMember]:
        if state.exists() and not expired_at:  # the first step begins
            expired_at.append(second)
        if not expired_at:
            return [old]
        return [] if second < expired_at[0] + 4 else [again]

    group = group_of(old, ZOOKEEPER)
    group.members_at = members
    group.owners_at = lambda second: {n: PartitionOwner(old.id, 5) for n in (0, 1)} if members(second) else {}
    group.bounce("dual", f"{writes('{member}', commands)}; exit 1", state, *FROM_ZOOKEEPER, code=1)
    assert commands.read_text().split() == [old.id]
    assert steps_of(state)[0]["before"] == {again.id: 40}


DRY_RUN = ("--to-phase", "dual", "--command", "restart {member}", "--format", "json")


@pytest.mark.parametrize("catches_up", [True, False])
def test_a_store_that_stays_ahead_is_refused_when_the_window_is_over(catches_up: bool) -> None:
    """A member in dual mode is observed between its write to Kafka and its write to ZooKeeper 2 s later."""
    group = group_of(member("h1", 1), DUAL)
    group.zookeeper_at = lambda second: 14 if catches_up and second >= 2 else 10
    group.kafka_at = lambda _: 14
    done = group.runbook("bounce", *DRY_RUN, *FROM_ZOOKEEPER, code=int(not catches_up))
    if catches_up:
        assert json.loads(done.stdout)["from_phase"] == "zookeeper"
    else:
        assert "Kafka is ahead of ZooKeeper" in done.stderr
        assert group.clock.seconds >= 30


@pytest.mark.parametrize(
    ("start", "zookeeper", "kafka", "why"),
    [
        # A dual member would start at the larger offset, 500, and never consume 300 to 499.
        ("zookeeper", [300], [500], "would never be consumed (t-0: ZooKeeper 300, Kafka 500"),
        ("kafka", [500], [300], "ZooKeeper is ahead of Kafka"),
        ("zookeeper", [5], [None], None),  # the store in use is ahead
        ("kafka", [5], [7], None),
        # Resumed manually, without the state file. The member writes Kafka first, so Kafka is ahead for a moment.
        ("zookeeper", [10, 14, 14], [10, 14, 18], None),
    ],
)
def test_a_change_to_dual_is_refused_if_the_larger_offset_would_skip_messages(start, zookeeper, kafka, why):
    group = group_of(member("h1", 1), DUAL)
    group.zookeeper_at = lambda second: zookeeper[min(int(second), len(zookeeper) - 1)]
    group.kafka_at = lambda second: kafka[min(int(second), len(kafka) - 1)]
    done = group.runbook("bounce", *DRY_RUN, "--from-phase", start, code=int(why is not None))
    assert (why or "") in done.stderr


def test_one_dual_member_does_not_show_that_the_whole_group_is_dual() -> None:
    """The bounce is half done, without a state file. The ZooKeeper-only member commits 5 s after the dual member."""
    dual, old = member("h1", 50), member("h2", 2)

    def zookeeper(partition: int, second: float) -> int:
        return 10 + int(second) if partition == 0 or second >= 5 else 10

    def kafka(partition: int, second: float) -> int:
        return 10 + int(second) if partition == 0 else 10

    owners = {0: PartitionOwner(dual.id, 60), 1: PartitionOwner(old.id, 5)}
    group = ScriptedGroup(lambda _: [dual, old], lambda _: owners, zookeeper, kafka, by_partition=True)
    assert json.loads(group.runbook("bounce", *DRY_RUN).stdout)["from_phase"] == "zookeeper"


@pytest.mark.parametrize("begins", [0, 5])
@pytest.mark.parametrize(("ends", "tolerant", "survives"), [(20, True, True), (40, True, False), (20, False, False)])
def test_an_outage_is_waited_for_within_the_window(begins: int, ends: int, tolerant: bool, survives: bool) -> None:
    group = ScriptedGroup(lambda _: [member("h1", 1)], lambda _: {}, int, lambda _: 10)
    group.outage = (begins, ends, Unreachable("ZooKeeper at h:2181", "no connection"))
    errors: list[OffsetMgrError] = []
    window = ObservationWindow(30, 1, failed=errors.append, tolerant=tolerant)

    def watch() -> float:
        watch_group(group.view(), "g", window, enough=lambda _: group.clock.seconds >= 25)
        return group.clock.seconds

    if survives:
        assert (watch(), len(errors)) == (25, ends - begins)
        return
    with pytest.raises(Unreachable):
        watch()
    assert group.clock.seconds == (30 if tolerant else begins)


GROUPS = ("a-applied", "b-rolled-back", "c-unread", "d-planned")
RESTART = ("--command", "restart {member}", "--quiet", "2")


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    """One wave from ZooKeeper: a group is applied, one was rolled back, one could not be planned, and one is not
    applied."""
    found = Migration(tmp_path, source=MemoryStore("source", kind="zookeeper"))
    for group in GROUPS:
        commit(found.source, group, 10)
        commit(found.target, group, 1)
    found.source.broken["c-unread"] = MalformedData("znode", "it cannot be read")
    (tmp_path / "waves").write_text("group,wave\n*,1\n")
    sides = ("--from", "memory:source", "--to", "memory:target", "--all-groups")
    found.command("migrate", "plan", *sides, "--waves", tmp_path / "waves", "-o", found.path, code=None)
    found.apply(GROUPS[:2])
    assert found.rollback(GROUPS[1]).ok
    return found


def live(phase: CommitMode, *names: str) -> ScriptedGroup:
    """Groups with these names, whose members commit as the phase does."""
    return replace(group_of(member("h1", 7), phase), name=names[0], others=names[1:])


def bounce(migration: Migration, group: ScriptedGroup, to: str, *arguments: object, code: int | None = 0) -> Output:
    state = ("--state", migration.directory / "state.json", "--format", "json")
    with migration.stores():
        return group.runbook(
            "bounce", "--plan", migration.path, "--to-phase", to, *RESTART, *state, *arguments, code=code
        )


def selected(done: Output) -> list[str]:
    """The groups that a bounce of several groups names, one after the other."""
    return re.findall(r"^group (\S+)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("to", ["dual", "kafka"])
def test_a_wave_leaves_out_groups_that_were_rolled_back_or_not_planned(migration: Migration, to: str) -> None:
    done = bounce(migration, live(ZOOKEEPER, *GROUPS), to, "--wave", "1", code=None)
    assert selected(done) == ["a-applied", "d-planned"]
    assert "left out by the plan: b-rolled-back (rolled back), c-unread (not planned); name a group" in done.stderr
    assert "warning: 1 group not applied, see `migrate apply`: d-planned" in done.stderr


def test_a_group_that_was_rolled_back_is_restarted_by_name_or_back_with_its_wave(migration: Migration) -> None:
    named = bounce(migration, live(ZOOKEEPER, "b-rolled-back"), "dual")
    assert json.loads(named.stdout)["group"] == "b-rolled-back"
    back = bounce(migration, live(DUAL, *GROUPS), "zookeeper", "--wave", "1", code=None)
    assert selected(back) == ["a-applied", "b-rolled-back", "d-planned"]
    assert "not applied" not in back.stderr


@pytest.mark.parametrize("execute", [(), ("--execute", "--yes")])
@pytest.mark.parametrize("wave", [(), ("--wave", "1")])
def test_a_bounce_to_dual_begins_no_way_back_without_the_phase(migration, execute, wave):
    """All bounces of the wave are finished, so the state file of a repetition is new."""
    login = migration.directory / "k.properties"
    login.write_text("client.id=me\n")
    group, connect = live(KAFKA, "a-applied"), ("--host", "c1=h1", "--command-config", login)
    refused = bounce(migration, group, "dual", *wave, *connect, *execute, code=1).stderr
    assert "bounce kafka -> dual: group a-applied is in phase kafka already" in refused
    command = re.search(r"name its phase with --from-phase: (.*?)\)?$", refused, re.MULTILINE)
    assert command is not None
    assert shlex.split(command[1]) == [
        *("offsetmgr", "runbook", "bounce", "--plan", str(migration.path), "--group", "a-applied"),
        *("--to-phase", "dual", "--from-phase", "kafka", "--command", "restart {member}", "--host", "c1=h1"),
        *("--zookeeper", "zk:2181", "--bootstrap-server", "k:9092", "--command-config", str(login), "--execute"),
    ]
    assert not (migration.directory / "state.json").exists()
    assert migration.status()["a-applied"]["blocked_by"] is None
    bounce(migration, group, "dual", *wave, "--from-phase", "kafka")


def test_a_plan_from_kafka_goes_forward_to_dual(renamed: Migration) -> None:
    assert json.loads(bounce(renamed, live(KAFKA, "audit"), "dual").stdout)["from_phase"] == "kafka"


def test_a_bounce_into_the_present_phase_does_not_block_a_group(migration: Migration) -> None:
    for arguments, code in ((("--execute", "--yes"), 1), (("--wave", "1", "--execute", "--yes"), 0)):
        done = bounce(migration, live(DUAL, "a-applied"), "dual", *arguments, code=code).stderr
        assert ("group a-applied: in phase dual already" in done) is (code == 0)
        assert migration.status()["a-applied"]["blocked_by"] is None


def test_a_refused_bounce_blocks_the_group_until_its_members_have_reached_the_phase(migration: Migration) -> None:
    ahead = live(ZOOKEEPER, "a-applied")
    ahead.kafka_at = lambda _: 500
    bounce(migration, ahead, "dual", "--from-phase", "zookeeper", "--execute", "--yes", code=1)
    assert migration.status()["a-applied"]["blocked_by"].startswith("bounce zookeeper -> dual: Kafka is ahead of ")
    dual = live(DUAL, "a-applied")
    with migration.stores():
        dual.runbook("check", "--plan", migration.path, "--phase", "dual", "--quiet", "2")
    row = migration.status()["a-applied"]
    assert (row["state"], row["evidence"]) == ("dual", "1 member committed as phase dual does (inferred)")
    assert row["blocked_by"] is None


def test_a_wave_is_resumed_after_the_journal_records_that_a_group_has_gone_on(migration: Migration) -> None:
    """The journal decides: the commits of the group are not watched."""
    migration.append({"kind": "group-phase", "group": "a-applied", "phase": "kafka", "why": "1 member committed"})
    group = live(DUAL, "a-applied")
    bounce(migration, group, "dual", "--from-phase", "zookeeper", "--execute", "--yes", code=1)
    state = migration.directory / "state.json"
    content = json.loads(state.read_text())
    content["bounces"][0]["finished_ms"] = 1
    state.write_text(json.dumps(content))
    done = bounce(migration, group, "dual", "--wave", "1", "--execute", "--yes").stderr
    assert "group a-applied: gone on to phase kafka; to take it back to dual, add --from-phase kafka" in done
    assert "watching its commits" not in done


@pytest.mark.parametrize("phase", ["dual", "kafka"])
def test_a_check_that_outlasts_a_renewal_writes_nothing_to_the_old_journal(migration: Migration, phase: str) -> None:
    group, second = replace(live(DUAL, "a-applied"), by_plan=True), migration.directory / "second.json"
    members = group.members_at

    def renewing(seconds: float) -> object:
        if seconds >= 2 and not second.exists():
            migration.run("renew", "-o", str(second), code=None)
            journals.append(migration.journal.read_bytes())
        return members(seconds)

    group.members_at = renewing  # type: ignore[assignment]
    journals: list[bytes] = []
    with migration.stores():
        check = ("--plan", migration.path, "--phase", phase, "--quiet", "2")
        group.zookeeper_at = lambda second: 10 + max(int(second) - 3, 0)
        group.kafka_at = group.zookeeper_at
        done = group.runbook("check", *check, code=int(phase != "dual"))
    assert journals == [migration.journal.read_bytes()]
    assert done.stdout.endswith(".html --zookeeper zk:2181 --bootstrap-server k:9092\n")
    shown, passed = done.stderr, phase == "dual"
    assert ("warning: the plan's journal does not record this step: " if passed else "not used as evidence: ") in shown
    assert f"it was renewed as {second}" in shown
    assert (f"(use {second})" in shown) is passed


# --- groups that the plan renames -----------------------------------------------------------------------
@pytest.fixture
def renamed(tmp_path: Path) -> Migration:
    """A plan from Kafka to ZooKeeper that renames ``shop-new`` to ``shop``."""
    stores = MemoryStore("source", kind="kafka"), MemoryStore("target", kind="zookeeper")
    found = Migration(tmp_path, *stores, PlanOptions(rename={"shop-new": "shop"}))
    for group in ("shop-new", "audit"):
        commit(found.source, group, 10)
    found.plan()
    return found


@pytest.mark.parametrize("excluded", ["shop-new", "shop", "shop-*"])
def test_both_names_of_a_renamed_group_exclude_it(renamed, excluded):
    group, every = live(KAFKA, "audit", "shop"), ("--group", "*")
    assert selected(bounce(renamed, group, "dual", *every)) == ["audit", "shop"]
    done = bounce(renamed, group, "dual", *every, "--exclude-group", excluded)
    assert json.loads(done.stdout)["group"] == "audit"


@pytest.mark.parametrize("given", ["shop-new", "shop", "shop-*"])
def test_both_names_of_a_renamed_group_select_it_and_the_journal_gets_the_name_in_the_plan(renamed, given):
    group = live(DUAL, "shop")
    with renamed.stores():
        group.runbook("check", "--plan", renamed.path, "--phase", "dual", "--quiet", "2", "--group", given)
    row = renamed.status()["shop-new"]
    assert row["state"] == "dual"
    words = row["next"].split()
    assert words[1:3] == ["migrate", "apply"]
    assert words[words.index("--group") + 1] == "shop-new"


@pytest.mark.parametrize(("given", "code", "why"), [("*", 2, "matches 2 groups of the plan"), ("other", 1, "other")])
def test_a_name_that_selects_not_one_group_of_the_plan_is_an_error(renamed, given, code, why):
    with renamed.stores():
        check = ("--plan", renamed.path, "--phase", "dual", "--group", given)
        assert why in live(DUAL, "shop").runbook("check", *check, code=code).stderr


FIRST, SECOND = member("h1", 1), member("h2", 2)
FIXED = RegisteredMember("g_fixed", None, 1, 3, 3, ("t",))


def access(tmp_path: Path, template: str, *arguments: object, code: int = 0, members: list[RegisteredMember]) -> Any:
    """The rows of ``--test-command``, and what the command prints on standard error."""
    group = ScriptedGroup(lambda _: members, lambda _: {}, lambda _: 1, lambda _: 1)
    options = ("--to-phase", "dual", "--test-command", template, "--state", tmp_path / "b.json", "--format", "json")
    done = group.runbook("bounce", *options, *arguments, code=code)
    return done.stdout and [(row["member"], row["status"]) for row in json.loads(done.stdout)], done.stderr


def test_the_command_is_run_for_every_live_member_also_after_a_failure(tmp_path: Path) -> None:
    calls, book, log = tmp_path / "calls", tmp_path / "book.json", tmp_path / "b.log"
    template = f"{writes('{host}', calls)}; test {{host}} = h2 && sleep 9; exit 255"
    found, shown = access(tmp_path, template, "--command-timeout", "0.2", code=1, members=[SECOND, FIRST])
    assert found == [(FIRST.id, "failed (exit code 255)"), (SECOND.id, "failed (timeout)")]
    assert calls.read_text().split() == ["h1", "h2"]
    assert shown == f"2 members tested, 2 failed; nothing was restarted\nthe output of the commands is in {log}\n"
    assert "--- exit code 255" in log.read_text()
    group_of(SECOND, ZOOKEEPER).runbook("write", "--to", "dual", "-o", book)
    found, _ = access(tmp_path, "true {member}", "--baseline", book, members=[FIRST, SECOND])
    assert found == [(SECOND.id, "ok")]
    assert "no live member" in access(tmp_path, "true {member}", code=1, members=[])[1]


def test_members_with_the_same_command_share_one_run(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    found, shown = access(tmp_path, writes("run", calls), members=[FIRST, SECOND])
    assert found == [(FIRST.id, "ok"), (SECOND.id, "ok")]
    assert calls.read_text() == "run\n"
    assert shown == "2 members tested, 0 failed; nothing was restarted\n"


@pytest.mark.parametrize(("restart", "template"), [((), "test {host}"), (("--command", "ssh {host} {member}"), "true")])
def test_an_unknown_host_is_found_in_the_test_and_in_the_restart_command(tmp_path, restart, template):
    assert "the consumer id is configured" in access(tmp_path, template, *restart, code=2, members=[FIXED])[1]
    host = ("--host", f"{FIXED.id}=h9")
    assert access(tmp_path, template, *restart, *host, members=[FIXED])[0] == [(FIXED.id, "ok")]


# --- templates ----------------------------------------------------------------------------------------
SETTINGS = "'offsets.storage=kafka dual.commit.enabled=true'"
QUOTED = ("ssh h 'restart {member}'", 'ssh h "restart {member}"', "x `y {member}`")


def filled(template: str, member_id: str = "g_h1-1-ab", host: str | None = "h1", code: int = 0) -> str:
    """The restart command of a member, or the error."""
    only = RegisteredMember(member_id, host, 1, 3, 3, ("t",))
    done = group_of(only, ZOOKEEPER).runbook(
        "bounce", "--to-phase", "dual", "--command", template, "--format", "json", code=code
    )
    return done.stderr if code else str(json.loads(done.stdout)["steps"][0]["command"])


@pytest.mark.parametrize(
    ("template", "member_id", "command"),
    [
        ("ssh {host} restart {member} {phase} {settings}", "g_h1-1-ab", f"ssh h1 restart g_h1-1-ab dual {SETTINGS}"),
        ("ssh {host} | awk '{print $1}' ${HOME}", "g_h1-1-ab", "ssh h1 | awk '{print $1}' ${HOME}"),
        ("echo 'x' \"y\" \\' {member}", "a b", "echo 'x' \"y\" \\' 'a b'"),
        *((template, "g_h1-1-ab", template.replace("{member}", "g_h1-1-ab")) for template in QUOTED),
    ],
)
def test_a_template_is_filled_from_the_members_registration(template: str, member_id: str, command: str) -> None:
    assert filled(template, member_id, "h1" if "{host}" in template else None) == command


@pytest.mark.parametrize(
    ("template", "member_id", "host", "why"),
    [
        *((template, "$(reboot)", "h1", "cannot be quoted safely") for template in QUOTED),
        ("ssh {host} restart", "g_h1-1-ab", "-oProxyCommand=reboot", "begins with a dash"),
        ("ssh {host}", "g_h1-1-ab", None, "the consumer id is configured and does not contain it"),
    ],
)
def test_a_value_that_is_not_safe_or_not_known_is_refused(template, member_id, host, why):
    assert why in filled(template, member_id, host, code=2)


@pytest.mark.parametrize("hostile", ["a; rm -rf /", "$(reboot)", "it's", "a b", "`x`", "{host}"])
def test_a_hostile_member_id_stays_one_shell_word(hostile: str, tmp_path: Path) -> None:
    only = RegisteredMember(hostile, "h1", 1, 3, 3, ("t",))
    assert access(tmp_path, "printf '<%s>' {member}", members=[only])[0] == [(hostile, "ok")]
    assert f"<{hostile}>" in (tmp_path / "b.log").read_text()


def test_the_output_of_a_command_is_kept_and_one_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "b.log"
    access(tmp_path, "echo out; echo err >&2; exit 3", code=1, members=[FIRST])
    assert log.read_text().splitlines()[1:] == ["out", "err", "--- exit code 3"]
    access(tmp_path, "sleep 60 & sleep 60", "--command-timeout", "0.2", code=1, members=[FIRST])
    assert log.read_text().endswith("--- exit code -9 (timeout)\n")


# --- rollouts -----------------------------------------------------------------------------------------
KUBECTL = "kubectl --context east --namespace prod"


def test_the_settings_are_environment_variables_and_setting_them_starts_the_rollout(tmp_path: Path) -> None:
    group = group_of(member("h1", 1), ZOOKEEPER)
    workload = ("--kubernetes", "deployment/{group}", "--namespace", "prod", "--kube-context", "east")
    planned = group.runbook("bounce", *PLAN[:2], *PLAN[4:], *workload, "--command-timeout", "90")
    status = f"{KUBECTL} rollout status deployment/g --timeout=90s"
    assert json.loads(planned.stdout)["steps"][0]["command"] == (
        f"{KUBECTL} set env deployment/g OFFSETS_STORAGE=kafka DUAL_COMMIT_ENABLED=true && {status}"
    )
    book = tmp_path / "book.json"
    group.runbook("write", "--to", "dual", *workload, "-o", book)
    text = book.read_text()
    assert f"{KUBECTL} rollout undo deployment/g" in text
    assert f"--test-command '{KUBECTL} auth can-i patch deployment/g'" in text
    assert "--kubernetes deployment/g --namespace prod --kube-context east" in text


@pytest.mark.parametrize(
    ("phase", "to", "settings"), [(ZOOKEEPER, "dual", SETTINGS), (DUAL, "zookeeper", "offsets.storage=zookeeper")]
)
def test_a_command_of_the_user_sets_the_settings_in_both_directions(phase: CommitMode, to: str, settings: str) -> None:
    workload = ("--kubernetes", "statefulset/shop", "--configure", "configure {group} {settings}", "--accept-idle")
    planned = group_of(member("h1", 1), phase).runbook("bounce", "--to-phase", to, *PLAN[4:], *workload)
    rollout = "kubectl rollout restart statefulset/shop && kubectl rollout status statefulset/shop --timeout=600s"
    assert json.loads(planned.stdout)["steps"][0]["command"] == f"configure g {settings} && {rollout}"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        *(
            (("--kubernetes", name), "neither deployment/NAME nor statefulset/NAME with a NAME of a-z")
            for name in ("shop", "pod/shop", "deployment/", "deployment/a b", "deployment/-x", "deployment/A")
        ),
        (("--kubernetes", "deployment/shop", "--configure", "ssh {host} configure"), "once for all members"),
        (("--command", "restart {member}", "--kubernetes", "deployment/shop"), "restarts all members at once"),
        (("--namespace", "prod"), "belong to --kubernetes"),
        (("--kube-context", "east"), "belong to --kubernetes"),
        (("--configure", "configure {settings}"), "belong to --kubernetes"),
        (("--command", "systemctl restart consumer"), "neither {host} nor {member}"),
    ],
)
def test_options_of_a_restart_that_are_invalid_or_contradict_each_other_are_rejected(options, why):
    assert why in group_of(FIRST, ZOOKEEPER).runbook("bounce", "--to-phase", "dual", *options, code=2).stderr
