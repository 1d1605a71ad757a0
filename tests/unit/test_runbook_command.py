"""The restart command: filled templates, hostile member ids, and exit codes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offsetmgr.core.commit_mode import CommitMode, CommitModeChange
from offsetmgr.core.errors import JournalError, UnknownVersion, UsageError
from offsetmgr.migration.bounce_checkpoint import (
    BounceState,
    OffsetCopy,
    RestartStep,
    StepStatus,
    exclusive,
    load,
    resume,
    save,
)
from offsetmgr.migration.observation import Observation
from offsetmgr.migration.restart_command import CommandResult, check_template, fill_template, run_in_shell


def filled(template: str, *, member: str = "g_h1-1-ab", host: str | None = "h1") -> str:
    return fill_template(template, group="g", member=member, host=host, phase=CommitMode.DUAL)


def test_a_template_is_filled_from_the_members_registration() -> None:
    assert filled("ssh {host} restart {member} {phase} {settings}") == (
        "ssh h1 restart g_h1-1-ab dual 'offsets.storage=kafka dual.commit.enabled=true'"
    )


def test_other_braces_are_unchanged() -> None:
    assert filled("ssh {host} | awk '{print $1}' ${HOME}") == "ssh h1 | awk '{print $1}' ${HOME}"


def test_a_template_must_name_the_member_or_its_host() -> None:
    with pytest.raises(UsageError, match=r"neither {host} nor {member}"):
        check_template("systemctl restart consumer")


@pytest.mark.parametrize("member", ["a; rm -rf /", "$(reboot)", "it's", "a b", "`x`", "{host}"])
def test_a_hostile_member_id_stays_one_shell_word(member: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_in_shell(filled("printf '<%s>' {member}", member=member), log, 120) == CommandResult(0)
    assert f"<{member}>" in log.read_text()


@pytest.mark.parametrize("template", ["ssh h 'restart {member}'", 'ssh h "restart {member}"', "x `y {member}`"])
def test_a_value_that_needs_quoting_is_refused_inside_quotes(template: str) -> None:
    assert "g_h1-1-ab" in filled(template)
    with pytest.raises(UsageError, match="cannot be quoted safely"):
        filled(template, member="$(reboot)")


def test_a_value_is_quoted_after_closed_quotes_and_escaped_ones() -> None:
    assert filled("echo 'x' \"y\" \\' {member}", member="a b") == "echo 'x' \"y\" \\' 'a b'"


def test_a_value_that_looks_like_an_option_is_refused() -> None:
    with pytest.raises(UsageError, match="begins with a dash"):
        filled("ssh {host} restart", host="-oProxyCommand=reboot")


def test_an_unknown_host_is_refused_if_the_template_needs_it() -> None:
    assert filled("restart {member}", host=None) == "restart g_h1-1-ab"
    with pytest.raises(UsageError, match="the consumer id is configured and does not contain it"):
        filled("ssh {host}", host=None)


def test_the_exit_code_and_the_output_of_a_command_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "bounce.log"
    assert run_in_shell("echo out; echo err >&2; exit 3", log, 120) == CommandResult(3)
    assert log.read_text().splitlines()[1:] == ["out", "err", "--- exit code 3"]


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "bounce.log"
    assert run_in_shell("sleep 60 & sleep 60", log, 0.2) == CommandResult(-9, timed_out=True)
    assert log.read_text().endswith("--- exit code -9 (timeout)\n")


# --- the state file ------------------------------------------------------------------------------

EMPTY = Observation("g", 1, {}, {}, (), {}, {}, {})
STATE = BounceState(
    "g",
    CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL),
    EMPTY,
    [
        RestartStep("m1", "h1", 7, StepStatus.RUNNING, {"m1": 7}, ["m2"], "restart m1", None, 5),
        RestartStep("m3", None, 8),
    ],
    [OffsetCopy("t", 0, None, 12)],
    opened_ms=4,
)


def test_the_saved_state_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert load(path, "g") is None
    save(STATE, path)
    assert load(path, "g") == STATE


def test_one_file_holds_the_bounces_of_several_groups(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    other = replace(STATE, group="h")
    save(STATE, path)
    save(other, path)
    save(replace(STATE, finished_ms=9), path)
    assert load(path, "h") == other
    assert resume(path, "h", CommitMode.DUAL) == other
    assert resume(path, "new", CommitMode.DUAL) is None
    with pytest.raises(UsageError, match="is finished"):
        resume(path, "g", CommitMode.DUAL)
    with pytest.raises(UsageError, match="it belongs to the bounce kafka -> dual of group g"):
        resume(path, "new", CommitMode.KAFKA)


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("{", JournalError, "Expecting"),
        ("[]", JournalError, "not the state of a rolling bounce"),
        ('{"format": "offsetmgr-bounce", "version": 9}', UnknownVersion, "version 9"),
        ('{"format": "offsetmgr-bounce", "version": 2}', JournalError, "damaged"),
        ('{"format": "offsetmgr-bounce", "version": 3}', JournalError, "damaged"),
        ('{"format": "offsetmgr-bounce", "version": 3, "bounces": [1]}', JournalError, "damaged"),
    ],
)
def test_a_broken_state_file_is_named(tmp_path: Path, text: str, error: type[Exception], why: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(error, match=why):
        load(path, "g")


def test_two_processes_never_execute_the_same_bounce(tmp_path: Path) -> None:
    path = tmp_path / "bounce.log"
    with exclusive(path), pytest.raises(JournalError, match="another process is executing it"), exclusive(path):
        pass
    with exclusive(path):
        pass
