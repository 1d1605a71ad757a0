"""Options that the commands of ``offsetmgr runbook`` share."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from offsetmgr.core.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.group_observer import GroupView
    from offsetmgr.migration.observation import Observation
    from offsetmgr.migration.rollout import Rollout

Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="The runbook JSON that was written before the bounce; it lists the members at that time.",
        show_default=False,
    ),
]
Poll = Annotated[float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Polling interval.")]
Quiet = Annotated[
    float,
    typer.Option(
        "--quiet", metavar="SECONDS", min=0, help="Time without a change after which a partition counts as idle."
    ),
]
AcceptIdle = Annotated[
    bool,
    typer.Option("--accept-idle", help="Accept partitions without traffic if the offsets show that nothing is lost."),
]
AcceptSpare = Annotated[
    bool,
    typer.Option(
        "--accept-spare",
        help="Accept new members that own no partition, although there is no evidence of where they commit.",
    ),
]

Plan = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="A migration plan: names the servers, selects groups, and its journal records each group's phase.",
        show_default=False,
    ),
]


Command = Annotated[
    str | None,
    typer.Option(
        "--command",
        metavar="TEMPLATE",
        help="Shell command that restarts one member; {host} {member} {group} {phase} {settings} are replaced.",
        show_default=False,
    ),
]
TestCommand = Annotated[
    str | None,
    typer.Option(
        "--test-command",
        metavar="TEMPLATE",
        help="Shell command that tests the restart command of a member and changes nothing, such as 'ssh {host} true'.",
        show_default=False,
    ),
]
Kubernetes = Annotated[
    str | None,
    typer.Option(
        "--kubernetes",
        metavar="WORKLOAD",
        help="In place of --command: restart deployment/NAME or statefulset/NAME with kubectl; {group} is replaced.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="The namespace of the workload.", show_default=False)
]
KubeContext = Annotated[
    str | None, typer.Option("--kube-context", metavar="NAME", help="The context of kubectl.", show_default=False)
]
Configure = Annotated[
    str | None,
    typer.Option(
        "--configure",
        metavar="TEMPLATE",
        help="Command that changes the settings of the workload before its rollout; {settings} {phase} {group} are "
        "replaced. Default: kubectl set env, which sets OFFSETS_STORAGE and DUAL_COMMIT_ENABLED.",
        show_default=False,
    ),
]


Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="MEMBER=HOST", help="The host of a member with a configured id; repeatable."),
]


class PhaseName(StrEnum):
    """The values of options that name a phase of a rolling bounce."""

    ZOOKEEPER = "zookeeper"
    DUAL = "dual"
    KAFKA = "kafka"


def baselines_of(view: GroupView, path: Path | None) -> Callable[[str], Observation | None]:
    """Reads a baseline file. Returns a function that returns the baseline of a group in it, or None if ``path`` is
    None. The function raises `OtherCluster` if the baseline belongs to other servers, and `NoBaseline`.

    Raises any error from `BaselineFile`."""
    from offsetmgr.migration.baseline_file import BaselineFile

    if path is None:
        return lambda _group: None
    file = BaselineFile(path)

    def baseline_of(group: str) -> Observation:
        found = file.of(group)
        view.require_stores(f"baseline {path}", found)
        return found

    return baseline_of


class Restart(NamedTuple):
    """The commands that restart members, and that test the restart."""

    command: str | None
    test_command: str | None
    rollout: Rollout | None
    timeout_s: float = 600
    hosts: str = ""
    """The options ``--host`` as text; each begins with a space."""

    @property
    def how(self) -> str:
        """The way of the restart, for the prompt."""
        return "one at a time" if self.rollout is None else f"by a rollout of {self.rollout.workload}"

    def options(self, group: str) -> tuple[str, str]:
        """Returns the options as text for the commands that are printed for the user: of the restart, of its test."""
        if (rollout := self.rollout) is None:
            restart, test = _option("--command", self.command), _option("--test-command", self.test_command)
            return restart + self.hosts * bool(restart), test + self.hosts * bool(test)
        rollout = rollout.of_group(group)
        named = (
            ("--kubernetes", rollout.workload),
            ("--namespace", rollout.namespace),
            ("--kube-context", rollout.context),
            ("--configure", rollout.configure),
        )
        restart = " ".join(_option(*one) for one in named if one[1])
        return restart, _option("--test-command", self.test_command or rollout.test())


def _option(name: str, value: str | None) -> str:
    return f"{name} {shlex.quote(value)}" if value else ""


class RestartFlags(NamedTuple):
    """The options that restart members, or test the restart."""

    command: Command = None
    test_command: TestCommand = None
    kubernetes: Kubernetes = None
    namespace: Namespace = None
    kube_context: KubeContext = None
    configure: Configure = None

    def restart(self, hosts: list[str] | None = None, timeout_s: float = 600) -> Restart:
        """Returns the commands. Raises `UsageError` if the options contradict each other.

        ``hosts`` are the values of ``--host``.
        """
        from offsetmgr.migration.rollout import Rollout

        if self.command and self.kubernetes:
            why = "--kubernetes restarts all members at once, and --command one member"
            raise UsageError("--command and --kubernetes", why, "leave out one of both")
        where = self.namespace, self.kube_context
        if self.kubernetes is None and (self.configure or any(where)):
            why = "--namespace, --kube-context and --configure belong to --kubernetes"
            raise UsageError("no workload", why, "add --kubernetes deployment/NAME")
        rollout = Rollout(self.kubernetes, *where, self.configure, timeout_s) if self.kubernetes else None
        named = "".join(f" {_option('--host', f'{member}={host}')}" for member, host in hosts_of(hosts).items())
        return Restart(self.command, self.test_command, rollout, timeout_s, named)


class EvidenceFlags(NamedTuple):
    """The options that decide which evidence passes a gate."""

    quiet: Quiet = 10
    accept_idle: AcceptIdle = False
    accept_spare: AcceptSpare = False

    def thresholds(self) -> EvidenceThresholds:
        from offsetmgr.migration.evidence import EvidenceThresholds

        return EvidenceThresholds(self.accept_idle, self.accept_spare, quiet_ms=int(self.quiet * 1000))


def hosts_of(pairs: list[str] | None) -> dict[str, str]:
    """Returns the hosts of ``--host`` by member."""
    hosts: dict[str, str] = {}
    for pair in pairs or []:
        member, equals, name = pair.partition("=")
        if not (equals and member and name):
            raise UsageError(f"--host {pair}", "is not MEMBER=HOST")
        hosts[member] = name
    return hosts
