"""Fills in the template of the command that restarts one member, and runs the command in a shell.

Member ids and hosts come from ZooKeeper. Every client that may register a consumer can write them, so they are not
trusted. If a placeholder is outside quotes in the template, its value is quoted. If a placeholder is inside quotes, a
value that needs quoting is rejected.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice, Argument, Invocation
from offsetmgr.core.commit_mode import SETTINGS, CommitMode
from offsetmgr.core.errors import UsageError

PLACEHOLDERS = ("host", "member", "group", "phase", "settings")
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@%+=/][A-Za-z0-9_.,:@%+=/-]*")


def placeholders(template: str) -> set[str]:
    """Returns the names of the placeholders in the template."""
    return set(_PLACEHOLDER.findall(template))


def check_template(template: str) -> None:
    """Raises `UsageError` if the template does not name the member to restart."""
    if not ({"host", "member"} & placeholders(template)):
        raise UsageError(
            Advice("{command}"),
            "the template contains neither {host} nor {member}, so the command would be the same for every member",
            Advice("for instance: {command} {}", "'ssh {host} systemctl restart my-consumer'"),
        )


def fill_template(template: str, *, group: str, member: str, host: str | None, phase: CommitMode) -> str:
    """Returns the command for one member, with the values quoted for a POSIX shell.

    Raises `UsageError` if a value is missing, if it begins with a dash (the shell command would parse it as an option),
    or if its placeholder is inside quotes and the value is not plain text.
    """
    values = {
        "host": host,
        "member": member,
        "group": group,
        "phase": phase.value,
        "settings": " ".join(SETTINGS[phase].as_lines()),
    }
    parts: list[str] = []
    end = 0
    quote = ""
    for found in _PLACEHOLDER.finditer(template):
        text = template[end : found.start()]
        quote = _open_quote(text, quote)
        parts += [text, _value(found[1], values, quote)]
        end = found.end()
    return "".join([*parts, template[end:]])


def _value(name: str, values: Mapping[str, str | None], quote: str) -> str:
    value = values[name]
    if value is None:
        raise UsageError(
            f"{{{name}}} of member {values['member']}",
            "it is unknown, because the consumer id is configured and does not contain it",
            Advice("give it with {host} MEMBER=HOST, or use {} in the command", "{member}"),
        )
    if value.startswith("-"):
        raise UsageError(f"{{{name}}} = {value!r}", "it begins with a dash and would be parsed as an option")
    if not quote:
        return shlex.quote(value)
    if name != "settings" and not _PLAIN.fullmatch(value):
        raise UsageError(
            f"{{{name}}} = {value!r}",
            "it is not plain text and is inside quotes of the template, where it cannot be quoted safely",
            f"leave {{{name}}} outside the quotes",
        )
    return value


def _open_quote(text: str, quote: str) -> str:
    """Returns the quote character that is open after ``text`` by POSIX rules. ``quote`` is the quote character that is
    open before ``text``."""
    escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
    return quote


class CommandResult(NamedTuple):
    """The result of a command: its exit code, and whether it timed out. A negative exit code is the number of the
    signal that killed the command."""

    exit_code: int
    timed_out: bool = False

    @property
    def status(self) -> str:
        """``ok``, or the reason for the failure."""
        if self.timed_out:
            return "failed (timeout)"
        return f"failed (exit code {self.exit_code})" if self.exit_code else "ok"


def run_in_shell(
    command: str, log: Path, timeout_s: float, started: Callable[[int], None] = lambda _pid: None
) -> CommandResult:
    """Runs the command with ``/bin/sh`` and appends its output to the log file. ``started`` receives the process id of
    the command.

    The command runs in its own session, so that Ctrl-C at the terminal does not reach it. After the timeout, the
    command and every process of its session are killed.
    """
    with log.open("ab") as out:
        out.write(f"--- {datetime.now(tz=UTC).isoformat(timespec='seconds')} $ {command}\n".encode())
        out.flush()
        child = subprocess.Popen(  # the operator's own command: a shell is intended
            command,
            shell=True,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started(child.pid)
        try:
            result = CommandResult(child.wait(timeout_s))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            result = CommandResult(child.wait(), timed_out=True)
        out.write(f"--- exit code {result.exit_code}{' (timeout)' if result.timed_out else ''}\n".encode())
    return result


def still_running(pid: int) -> bool:
    """Returns whether a command that `run_in_shell` started in an earlier process is still running.

    The command is the leader of its own session, so the function returns True only if the process with this id is a
    session leader. Therefore the function is very unlikely to mistake an unrelated process with the same id for the
    command.
    """
    try:
        leads = os.getsid(pid) == pid
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
    except (ProcessLookupError, PermissionError):
        return False
    except FileNotFoundError:  # the process has ended meanwhile, or the system has no /proc
        return leads and not Path("/proc/self/stat").exists()
    return leads and state not in "ZX"


# The `kubectl` commands that restart the members of a group in a Kubernetes Deployment or StatefulSet.

_WORKLOAD: Final = re.compile(r"(deployment|statefulset)/[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
KILL_AFTER_S: Final = 30
"""`kubectl rollout status` ends after its own timeout. If it does not, offsetmgr kills it this much later."""


class InvalidWorkload(UsageError):
    """Kubernetes allows no workload of this name."""


class Restart(NamedTuple):
    """How members are restarted: one at a time by ``command``, or all at once by a rollout of the workload
    ``kubernetes`` with other settings. ``test_command`` tests the restart of a member and changes nothing. ``hosts``
    has the hosts of members with a configured id, and ``timeout_s`` limits the run time of a command, in seconds.

    Without ``configure``, the settings are environment variables of the workload (``OFFSETS_STORAGE``,
    ``DUAL_COMMIT_ENABLED``), and setting them starts the rollout. ``configure`` is the template of a command that
    changes the settings elsewhere, such as in a ConfigMap; the rollout is then started by itself.
    """

    command: str | None = None
    test_command: str | None = None
    kubernetes: str | None = None
    namespace: str | None = None
    kube_context: str | None = None
    configure: str | None = None
    hosts: Mapping[str, str] = {}
    timeout_s: float = 600

    @property
    def limit_s(self) -> float:
        """The seconds after which offsetmgr kills a command."""
        return self.timeout_s + (KILL_AFTER_S if self.kubernetes else 0)

    def question(self, groups: Sequence[str], to: CommitMode) -> str:
        """Returns the question before the restarts."""
        which = f"group {groups[0]}" if len(groups) == 1 else f"{len(groups)} groups"
        how = f"by a rollout of {self.kubernetes}" if self.kubernetes else "one at a time"
        return f"restart each member of {which} into phase {to.value}, {how}?"

    def check(self, groups: Sequence[str] = (), *, is_bounce: bool = False) -> None:
        """Raises `UsageError` if the values contradict each other, if one workload is named for several groups, or if
        there is no way to restart the members of a bounce."""
        if self.command and self.kubernetes:
            why = Advice("{kubernetes} restarts all members at once, and {command} one member")
            raise UsageError(Advice("{command} and {kubernetes}"), why, "leave out one of both")
        if self.kubernetes is None and (self.configure or self.namespace or self.kube_context):
            what = Advice("{namespace}, {kube_context} and {configure} belong to {kubernetes}")
            raise UsageError("no workload", what, Advice("add {kubernetes=deployment/NAME}"))
        if self.kubernetes is not None and len(groups) > 1 and "{group}" not in self.kubernetes:
            several = f"it names one workload for {len(groups)} groups"
            hint = Advice("use {} in its name, or name one group", "{group}")
            raise UsageError(Advice("{kubernetes} {}", self.kubernetes), several, hint)
        if is_bounce and not (self.command or self.kubernetes):
            hint = Advice("add {command} TEMPLATE, or {kubernetes} WORKLOAD")
            raise UsageError("bounce", "no restart command is given", hint)

    def of_group(self, group: str) -> Restart:
        """Returns the restart with the name of a group's workload. Raises `InvalidWorkload` if the name is not one of a
        Deployment or StatefulSet, and `UsageError` if ``configure`` names a member."""
        if self.kubernetes is None:
            return self
        workload = self.kubernetes.replace("{group}", group)
        if not _WORKLOAD.fullmatch(workload):
            raise InvalidWorkload(
                Advice("{kubernetes} {}", workload),
                "it is neither deployment/NAME nor statefulset/NAME with a NAME of a-z, 0-9, '-' and '.'",
                Advice("as in {kubernetes=deployment/shop}"),
            )
        if {"host", "member"} & placeholders(self.configure or ""):
            why = "it contains {host} or {member}, but it is run once for all members"
            raise UsageError(Advice("{configure}"), why, "use {settings}, {phase} and {group}")
        return self._replace(kubernetes=workload)

    def rollout(self, group: str, phase: CommitMode) -> str:
        """Returns the shell command that changes the settings and waits for the end of the rollout."""
        workload = self.kubernetes or ""
        if self.configure is None:
            pairs = [f"{key.upper().replace('.', '_')}={value}" for key, value in SETTINGS[phase].properties]
            begin = self.kubectl("set", "env", workload, *pairs)
        else:
            own = fill_template(self.configure, group=group, member=workload, host=None, phase=phase)
            begin = f"{own} && {self.kubectl('rollout', 'restart', workload)}"
        return f"{begin} && {self._status}"

    def undo(self, group: str, start: CommitMode) -> str:
        """Returns the shell command of the way back, to the settings of the phase ``start``."""
        if self.configure is not None:
            return self.rollout(group, start)
        return f"{self.kubectl('rollout', 'undo', self.kubernetes or '')} && {self._status}"

    def kubectl(self, *words: str) -> str:
        """Returns a `kubectl` command line."""
        where = [("--context", self.kube_context), ("--namespace", self.namespace)]
        options = [word for option, value in where if value is not None for word in (option, value)]
        return shlex.join(["kubectl", *options, *words])

    @property
    def _status(self) -> str:
        return self.kubectl("rollout", "status", self.kubernetes or "", f"--timeout={self.timeout_s:g}s")

    def options(self, group: str) -> tuple[str, str]:
        """Returns the options as text for the commands of a runbook: of the restart, and of its test."""
        if (workload := self.of_group(group).kubernetes) is None:
            hosts = tuple(f"{member}={host}" for member, host in self.hosts.items())
            test = options_text(test_command=self.test_command, host=hosts)
            return options_text(command=self.command, host=hosts), test
        named = {"namespace": self.namespace, "kube_context": self.kube_context, "configure": self.configure}
        test = self.test_command or self.kubectl("auth", "can-i", "patch", workload)
        return options_text(kubernetes=workload, **named), options_text(test_command=test)


NO_RESTART: Final = Restart()


def options_text(**named: Argument) -> str:
    """Returns options as text; an empty text if the first one has no value."""
    return Invocation("", (), named).options()[1:] if next(iter(named.values())) else ""
