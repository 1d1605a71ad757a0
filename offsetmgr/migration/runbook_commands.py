"""The values of a runbook's steps, and the step of one rolling bounce. Pure.

Each step has its commands, a sample of the output on success, the time that it takes, the reasons for which it may
stop, and the way back. In a sample, ``...`` stands for text that varies. A test runs the commands of a runbook and
compares their output with the samples.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.commit_mode import SAFE_CHANGES, SETTINGS, CommitMode, CommitModeChange
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.observation import Observation
from offsetmgr.migration.precheck import used_and_other_store
from offsetmgr.migration.rollout import Rollout

EXAMPLE_RESTART: Final = "ssh {host} sudo restart-consumer {member} {settings}"
EXAMPLE_TEST: Final = "ssh {host} true"
GATE_WINDOW_S: Final = 180
RESTART_TIMEOUT_S: Final = 120
ROLLOUT_TIMEOUT_S: Final = 600
"""The defaults of ``runbook bounce`` for ``--window``, ``--restart-timeout`` and ``--command-timeout``."""


@dataclass(frozen=True, slots=True)
class RunbookStep:
    """One step. ``closed`` has what a command prints if it stops, and what the operator does then. ``back`` are the
    commands of the way back."""

    section: str
    title: str
    text: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    ticks: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    prints: str = ""
    takes: str = ""
    closed: tuple[tuple[str, str], ...] = ()
    way_back: str = ""
    back: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunbookArguments:
    """The arguments that the commands of a runbook share.

    ``options`` are the connection options of the commands about consumers, ``servers`` those of any command, and
    ``followups`` those of commands that name their stores otherwise. ``restart`` and ``test`` are options of ``runbook
    bounce``; if they are empty, the operator defines the commands in the first step. ``rollout`` is the
    restart of the members if they are in Kubernetes. ``plan`` is an existing plan. ``retention_ms`` is the time for
    which Kafka keeps an offset after its last commit; None if it is unknown.
    """

    options: str = ""
    servers: str = ""
    followups: str = ""
    zookeeper: str = "zookeeper://HOST:2181"
    kafka: str = "kafka://HOST:9092"
    restart: str = ""
    test: str = ""
    rollout: Rollout | None = None
    baseline: str = "runbook.json"
    plan: str | None = None
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RunbookSubject:
    """The group of a runbook: its observation, the changes that lead to the phase ``to``, and the partitions whose
    offset must be copied to ZooKeeper. ``commits_after_s`` is the time after which commits of every member were seen;
    None if the group was not watched."""

    group: str
    to: CommitMode
    changes: tuple[CommitModeChange, ...]
    baseline: Observation
    copies: Mapping[CommitModeChange, Sequence[TopicPartition]] = field(default_factory=dict)
    commits_after_s: float | None = None


def duration(seconds: float) -> str:
    """Returns a duration as text: ``45 s``, ``6 min``, ``1 h 5 min``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def file_label(text: str) -> str:
    """Returns the text as a part of a file name."""
    return re.sub(r"^-|[^A-Za-z0-9._-]", "_", text)


class RunbookCommands:
    """The commands of one runbook, with all arguments."""

    def __init__(self, subject: RunbookSubject, arguments: RunbookArguments) -> None:
        self.subject, self.arguments = subject, arguments
        self.group = shlex.quote(subject.group)
        self.label = file_label(subject.group)
        self.moves_to_kafka = subject.to is not CommitMode.ZOOKEEPER and any(
            change.start is not CommitMode.KAFKA for change in subject.changes
        )
        own = f"{self.label}.json"
        if arguments.baseline == own:  # the runbook's own file, which the plan must not replace
            own = f"{self.label}-plan.json"
        self.plan = shlex.quote(arguments.plan or own)
        self.reverse_plan = f"back-{self.label}.json"
        self.of_group = f" --group {self.group}" if arguments.plan else ""
        self.options = f" {arguments.options}" if arguments.options else ""
        self.servers = f" {arguments.servers}" if arguments.servers else ""
        self.refresh = f"offsetmgr migrate apply {self.plan} --refresh --yes{arguments.followups}"

    # --- the bounces ---------------------------------------------------------------------------------

    def bounce(self, number: int, change: CommitModeChange) -> RunbookStep:
        members = sorted(self.subject.baseline.members)
        is_first = number == 1
        said = {note for one in self.subject.changes[: number - 1] for note in SETTINGS[one.to].notes}
        baseline = shlex.quote(self.arguments.baseline) if is_first else self.state_file(change)
        check = (
            f"offsetmgr runbook check --group {self.group} --phase {change.to.value}"
            f" --baseline {baseline} --window {GATE_WINDOW_S}{self.options}"
        )
        rollout = self.arguments.rollout
        restarted = [rollout.workload] if rollout else members if is_first else []
        back, way_back = self.ways_back(change)
        return RunbookStep(
            f"Bounce {number} of {len(self.subject.changes)}: {change}",
            f"Restart the members into phase {change.to.value}",
            tuple(self._bounce_text(change, is_first=is_first)),
            tuple(SETTINGS[change.to].as_lines()),
            tuple(map(self._member, members))
            if is_first
            else tuple(f"member {n} of {len(members)}" for n in range(1, len(members) + 1)),
            (f"{self.bounce_command(change)} --execute --yes", check),
            self._bounce_prints(change, restarted or ["..."] * len(members)),
            self._bounce_takes(len(members)),
            self._bounce_closed(change, is_first=is_first),
            way_back,
            back,
            tuple(note for note in SETTINGS[change.to].notes if note not in said),
        )

    def _bounce_text(self, change: CommitModeChange, *, is_first: bool) -> list[str]:
        text = [f"Why this is safe: {SAFE_CHANGES[change]}"]
        if copies := self.subject.copies.get(change):
            named = ", ".join(map(str, copies))
            text.append(
                f"There is no traffic on {named}, and ZooKeeper is behind Kafka there. The command copies Kafka's"
                " offset to ZooKeeper when every member is dual, forward only and conditional on the version that it"
                " read."
            )
        if not is_first:
            text.append(
                "The commands do the same as in bounce 1, with the settings below. If another tool restarts the"
                f" members, write a new baseline before, with offsetmgr runbook write --group {self.group} --to"
                f" {change.to.value} --from {change.start.value} -o {self.label}-{change.to.value}.json{self.options},"
                " and give that file as --baseline of the second command."
            )
            return text
        if rollout := self.arguments.rollout:
            text.append(
                f"The command sets the settings below, waits for the rollout of {rollout.workload}, and checks"
                " the gate of all new members. The pods must stop cleanly (SIGTERM, never SIGKILL)."
            )
        else:
            text.append(
                "The command restarts one member at a time with the settings below, cleanly (SIGTERM, never SIGKILL),"
                " and checks a gate after each."
            )
        text.append(
            "If another tool restarts the members, run only the second command: it is the gate, and its exit code is 0"
            " if every member is in the phase."
        )
        return text

    def _bounce_closed(self, change: CommitModeChange, *, is_first: bool) -> tuple[tuple[str, str], ...]:
        if not is_first:
            return (*start_closed(change), ("another reason", "Do what bounce 1 says about it."))
        if (rollout := self.arguments.rollout) is None:  # the step before has the reasons not to begin
            return _BOUNCE_CLOSED
        stuck = (
            f"the command for {rollout.workload}: exit code N",
            "The rollout failed or is stuck. Read the log and the events of the pods, fix the cause, run the same"
            f" command line again. To take the rollout back: {rollout.undo(self.subject.group, change.start)}",
        )
        return (stuck, *_BOUNCE_CLOSED[1:])

    def _member(self, member: str) -> str:
        found = self.subject.baseline.members[member]
        owned = ", ".join(map(str, self.subject.baseline.owned_by(member))) or "no partition"
        return f"{member} on {found.host or 'unknown host'}: {owned}"

    def _bounce_prints(self, change: CommitModeChange, members: Sequence[str]) -> str:
        lines = [f"gate before the first step: may group {self.subject.group} go to {change.to.value}?", "..."]
        for number, member in enumerate(members, 1):
            lines += [
                f"step {number} of {len(members)}: {member}",
                "  $ ...",
                "  restarted as ...; watching its commits",
            ]
            lines.append("  gate passed: ...")
        lines += [f"gate of the whole group: are all members in phase {change.to.value}?", "..."]
        lines.append(f"bounce {change} of group {self.subject.group}: done")
        return "\n".join([*lines, f"phase {change.to.value} of group {self.subject.group}: PASSED ..."])

    def _bounce_takes(self, members: int) -> str:
        seen = self.subject.commits_after_s
        usual = (
            "three commits" if seen is None else f"three commits; the first were seen after {duration(max(1, seen))}"
        )
        if self.arguments.rollout:
            most = ROLLOUT_TIMEOUT_S + RESTART_TIMEOUT_S + 2 * GATE_WINDOW_S
            return (
                f"usually the rollout of {count_of(members, 'pod')} + {usual}. At most {ROLLOUT_TIMEOUT_S} s for the"
                f" rollout + {RESTART_TIMEOUT_S} s to register + 2 × {GATE_WINDOW_S} s for the gates = {duration(most)}"
            )
        most = members * (RESTART_TIMEOUT_S + GATE_WINDOW_S) + GATE_WINDOW_S
        return (
            f"usually {count_of(members, 'member')} × (restart + {usual}). At most {members} × ({RESTART_TIMEOUT_S} s"
            f" to register + {GATE_WINDOW_S} s for the gate) + {GATE_WINDOW_S} s = {duration(most)}, and the run time"
            " of the restart commands"
        )

    def state_file(self, change: CommitModeChange) -> str:
        return f"bounce-{self.label}-{change.start.value}-{change.to.value}.json"

    def bounce_command(self, change: CommitModeChange, *, back: bool = False) -> str:
        changes = self.subject.changes
        before = "" if back or change is changes[0] else f" --start-baseline {self.state_file(changes[0])}"
        baseline = f" --baseline {shlex.quote(self.arguments.baseline)}" if not back and change is changes[0] else ""
        state = "" if back else f" --state {self.state_file(change)}"
        return (
            f"offsetmgr runbook bounce --group {self.group} --to-phase {change.to.value} --from-phase"
            f" {change.start.value}{baseline}{before}{state} {self._restart}{self.options}"
        )

    @property
    def _restart(self) -> str:
        return self.arguments.restart or '--command "$RESTART"'

    @property
    def test_options(self) -> str:
        return self.arguments.test or '--test-command "$TEST"'

    def ways_back(self, change: CommitModeChange) -> tuple[tuple[str, ...], str]:
        """Returns the commands of the way back from a bounce, and the sentence that introduces them."""
        changes = self.subject.changes
        undone = [CommitModeChange(one.to, one.start) for one in reversed(changes[: changes.index(change) + 1])]
        commands = tuple(f"{self.bounce_command(one, back=True)} --execute --yes" for one in undone)
        return commands, f"At any point of the bounce and after it. {_WAYS_BACK[change]}"


def start_closed(change: CommitModeChange) -> tuple[tuple[str, str], ...]:
    """Returns the reasons for which a bounce does not begin, with their remedies."""
    if change.to is not CommitMode.DUAL:
        remedy = (
            "A member is not dual yet: finish the bounce before, or send a message to each partition without traffic."
        )
        return (("the gate of phase dual is closed", remedy),)
    remedy = "The offset is stale or rewound. Lower or delete it with offsetmgr offsets, and run the command again."
    used, other = used_and_other_store(change)
    return ((f"{other} is ahead of {used}, which the group uses", remedy),)


_BOUNCE_CLOSED: Final = (
    ("the command for M: exit code N", "Read the log, fix the cause, run the same command line again."),
    (
        "M is still registered after its command",
        "The restart command did not stop it. Stop it cleanly, start it with the settings, run the command again.",
    ),
    ("no successor of M has registered", "Start it with the settings, run the command again."),
    (
        "the gate after M is closed: ... commits to ZooKeeper alone",
        "It came back with the old settings. Correct them, restart it, run the command again.",
    ),
    ("... no traffic ...", "Send a message to the partition, or run the command again with --accept-idle."),
    (
        "... messages are waiting and no commit was seen",
        "Add a longer --window. If the gate then stays closed, the member is stuck: look at its application.",
    ),
)

_WAYS_BACK: Final[Mapping[CommitModeChange, str]] = {
    CommitModeChange(CommitMode.ZOOKEEPER, CommitMode.DUAL): (
        "The command copies Kafka's offset to ZooKeeper where Kafka is ahead and there is no traffic, before its gate."
    ),
    CommitModeChange(CommitMode.DUAL, CommitMode.KAFKA): (
        "First back to dual: the command copies Kafka's offsets of partitions without traffic to ZooKeeper. Never from"
        " kafka to zookeeper directly: the group would consume again everything that it committed to Kafka alone."
    ),
    CommitModeChange(CommitMode.KAFKA, CommitMode.DUAL): "Kafka has had every commit all the time.",
    CommitModeChange(CommitMode.DUAL, CommitMode.ZOOKEEPER): (
        "Back to dual, whose members read the larger of both offsets, so nothing is consumed twice. Never from"
        " zookeeper to kafka directly: Kafka does not have what was committed to ZooKeeper alone."
    ),
}
