"""The test of the restart command, and the options that restart members."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import typer
from test_bounce_waits import START_MS, ScriptedGroup, member

from offsetmgr.cli.command_tests import show_command_tests
from offsetmgr.cli.render import OutputFormat
from offsetmgr.cli.runbook_options import RestartFlags
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import GroupNotFound, UsageError
from offsetmgr.migration.bounce_plan import BounceSpec
from offsetmgr.migration.command_test import run_command_tests
from offsetmgr.migration.observation import Observation, RegisteredMember
from offsetmgr.migration.restart_command import CommandResult

FIRST, SECOND = member("h1", 1), member("h2", 2)
FIXED = RegisteredMember("g_fixed", None, START_MS, 3, 3, ("t",))
SPEC = BounceSpec("g", CommitMode.DUAL)


@dataclass
class Runner:
    """Records the commands; those that contain ``fails`` exit with 255, those that contain ``hangs`` time out."""

    fails: str = "\0"
    hangs: str = "\0"
    commands: list[str] = field(default_factory=list)

    def __call__(self, command: str, log: Path, timeout_s: float, started: object = None) -> CommandResult:
        self.commands.append(command)
        return CommandResult(255 if self.fails in command else 0, timed_out=self.hangs in command)


def group(*members: RegisteredMember) -> ScriptedGroup:
    return ScriptedGroup(lambda _: list(members), lambda _: {}, lambda _: 1, lambda _: 1)


def statuses(spec: BounceSpec, template: str, run: Runner, *members: RegisteredMember) -> list[tuple[str, str]]:
    tests = run_command_tests(group(*members).view(), spec, template, Path("log"), run=run)
    return [(one.member, one.status) for one in tests]


def test_the_command_is_run_for_every_member_also_after_a_failure() -> None:
    run = Runner(fails="h1", hangs="h2")
    assert statuses(SPEC, "ssh {host} true", run, SECOND, FIRST) == [
        (FIRST.id, "failed (exit code 255)"),
        (SECOND.id, "failed (timeout)"),
    ]
    assert run.commands == ["ssh h1 true", "ssh h2 true"]


def test_members_with_the_same_command_share_one_run() -> None:
    run = Runner()
    assert [status for _, status in statuses(SPEC, "kubectl auth can-i", run, FIRST, SECOND)] == ["ok", "ok"]
    assert run.commands == ["kubectl auth can-i"]


def test_only_members_of_the_baseline_are_tested() -> None:
    baseline = Observation("g", START_MS, {SECOND.id: SECOND}, {}, (), {}, {}, {})
    run = Runner()
    assert statuses(replace(SPEC, baseline=baseline), "x {member}", run, FIRST, SECOND) == [(SECOND.id, "ok")]
    with pytest.raises(GroupNotFound, match="no live member"):
        statuses(SPEC, "x {member}", run)


def test_an_unknown_host_is_found_in_the_test_and_in_the_restart_command() -> None:
    restart = replace(SPEC, command="ssh {host} restart {member}")
    for spec, template in ((SPEC, "ssh {host} true"), (restart, "true")):
        with pytest.raises(UsageError, match="the consumer id is configured"):
            statuses(spec, template, Runner(), FIXED)
        assert statuses(replace(spec, hosts={FIXED.id: "h9"}), template, Runner(), FIXED) == [(FIXED.id, "ok")]


def test_a_failure_is_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view, log = group(FIRST, SECOND).view(), tmp_path / "bounce.log"
    show_command_tests(view, [SPEC], "true {member}", log, OutputFormat.TABLE)
    assert capsys.readouterr().err == "2 members tested, 0 failed; nothing was restarted\n"
    with pytest.raises(typer.Exit) as ended:
        show_command_tests(view, [SPEC], "test {host} = h1", log, OutputFormat.TABLE)
    assert ended.value.exit_code == 1
    printed = capsys.readouterr()
    assert "failed (exit code 1)" in printed.out
    assert printed.err == f"2 members tested, 1 failed; nothing was restarted\nthe output of the commands is in {log}\n"
    assert "--- exit code 1" in log.read_text()


# --- the options --------------------------------------------------------------------------------------


def test_options_of_a_restart_that_contradict_each_other_are_rejected() -> None:
    with pytest.raises(UsageError, match="restarts all members at once"):
        RestartFlags("restart {member}", kubernetes="deployment/shop").restart()
    for option in ({"namespace": "prod"}, {"kube_context": "east"}, {"configure": "configure {settings}"}):
        with pytest.raises(UsageError, match="belong to --kubernetes"):
            RestartFlags(**option).restart()


def test_the_options_are_printed_as_they_were_given() -> None:
    restart = RestartFlags("ssh {host} restart", "ssh {host} true").restart()
    assert restart.options("shop") == ("--command 'ssh {host} restart'", "--test-command 'ssh {host} true'")
    hosts = restart._replace(hosts=" --host m=h9")
    assert hosts.options("shop")[0] == "--command 'ssh {host} restart' --host m=h9"
    flags = RestartFlags(kubernetes="deployment/{group}", namespace="prod", configure="configure {settings}")
    assert flags.restart().options("shop") == (
        "--kubernetes deployment/shop --namespace prod --configure 'configure {settings}'",
        "--test-command 'kubectl --namespace prod auth can-i patch deployment/shop'",
    )
