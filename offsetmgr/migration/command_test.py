"""Runs a test of the restart command for each member, without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from offsetmgr.core.errors import GroupNotFound
from offsetmgr.migration.bounce_plan import BounceSpec
from offsetmgr.migration.observation import GroupView
from offsetmgr.migration.restart_command import CommandResult, fill_template, run_in_shell


@dataclass(frozen=True, slots=True)
class CommandTest:
    """The test of one member: the command, its result and its run time."""

    group: str
    member: str
    host: str | None
    command: str
    result: CommandResult
    duration_s: float

    @property
    def seconds(self) -> float:
        """The run time in seconds, rounded to tenths."""
        return round(self.duration_s, 1)

    @property
    def status(self) -> str:
        """``ok``, or the reason for the failure."""
        if self.result.timed_out:
            return "failed (timeout)"
        return f"failed (exit code {self.result.exit_code})" if self.result.exit_code else "ok"


def run_command_tests(view: GroupView, spec: BounceSpec, template: str, log: Path) -> Iterator[CommandTest]:
    """Runs the template for each live member of the group, or of the baseline, and yields each result. Members with the
    same command share one run. If the specification has a restart command, it is filled in too, so that an invalid one
    is found.

    Raises `GroupNotFound` if no member is alive, and any error from `fill_template`.
    """
    live = view.members(spec.group)
    members = [m for _, m in sorted(live.items()) if spec.baseline is None or m.id in spec.baseline.members]
    if not members:
        raise GroupNotFound(f"group {spec.group}", "no live member of it is registered in ZooKeeper")
    done: dict[str, tuple[CommandResult, float]] = {}
    for member in members:
        host = spec.host_of(member.id, member.host)
        command = fill_template(template, group=spec.group, member=member.id, host=host, phase=spec.to)
        if spec.command:
            fill_template(spec.command, group=spec.group, member=member.id, host=host, phase=spec.to)
        if command not in done:
            began = view.clock.monotonic()
            result = run_in_shell(command, log, spec.command_timeout_s)
            done[command] = (result, view.clock.monotonic() - began)
        yield CommandTest(spec.group, member.id, host, command, *done[command])
