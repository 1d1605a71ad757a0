"""Options that the commands of ``offsetmgr runbook`` share."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from offsetmgr.cli.options import flag, opt
from offsetmgr.core.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.migration.evidence import EvidenceThresholds
    from offsetmgr.migration.group_observer import GroupView
    from offsetmgr.migration.observation import Observation
    from offsetmgr.migration.rollout import Rollout

Baseline = Annotated[
    Path | None,
    opt(
        "--baseline", "FILE", "The runbook JSON that was written before the bounce; it lists the members at that time."
    ),
]
Poll = Annotated[float, opt("--poll", "SECONDS", "Polling interval.", min=0.05)]
Quiet = Annotated[
    float,
    opt("--quiet", "SECONDS", "Time without a change after which a partition counts as idle.", min=0),
]
AcceptIdle = Annotated[
    bool,
    flag("--accept-idle", "Accept partitions without traffic if the offsets show that nothing is lost."),
]
AcceptSpare = Annotated[
    bool,
    flag(
        "--accept-spare",
        "Accept new members that own no partition, although there is no evidence of where they commit.",
    ),
]

Plan = Annotated[
    Path | None,
    opt(
        "--plan",
        "PLAN",
        "A migration plan: names the servers, selects groups, and its journal records each group's phase.",
    ),
]


Command = Annotated[
    str | None,
    opt(
        "--command",
        "TEMPLATE",
        "Shell command that restarts one member; {host} {member} {group} {phase} {settings} are replaced.",
    ),
]
TestCommand = Annotated[
    str | None,
    opt(
        "--test-command",
        "TEMPLATE",
        "Shell command that tests the restart command of a member and changes nothing, such as 'ssh {host} true'.",
    ),
]
Kubernetes = Annotated[
    str | None,
    opt(
        "--kubernetes",
        "WORKLOAD",
        "In place of --command: restart deployment/NAME or statefulset/NAME with kubectl; {group} is replaced.",
    ),
]
Namespace = Annotated[str | None, opt("--namespace", "NAME", "The namespace of the workload.")]
KubeContext = Annotated[str | None, opt("--kube-context", "NAME", "The context of kubectl.")]
Configure = Annotated[
    str | None,
    opt(
        "--configure",
        "TEMPLATE",
        "Command that changes the settings of the workload before its rollout; {settings} {phase} {group} are "
        "replaced. Default: kubectl set env, which sets OFFSETS_STORAGE and DUAL_COMMIT_ENABLED.",
    ),
]


Hosts = Annotated[
    list[str] | None,
    opt("--host", "MEMBER=HOST", "The host of a member with a configured id; repeatable."),
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
