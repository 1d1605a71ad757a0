"""The steps of a runbook, from the checks before the first step to the cleaning up. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice, Argument, Invocation, option
from offsetmgr.core.commit_mode import SAFE_CHANGES, SETTINGS, CommitMode, CommitModeChange, PhaseEvidence
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import group_words
from offsetmgr.migration.evidence import used_and_other_store
from offsetmgr.migration.location import EXAMPLE_RESTART, file_label
from offsetmgr.migration.observation import Observation
from offsetmgr.migration.restart_command import Restart

# The values of a runbook's steps, and the step of one rolling bounce. Pure. Each step has its commands, a sample of
# the output on success, the time that it takes, the reasons for which it may stop, and the way back. In a sample,
# ``...`` stands for text that varies. A test runs the commands of a runbook and compares their output with the
# samples.

EXAMPLE_TEST: Final = "ssh {host} true"
GATE_WINDOW_S: Final = 180
RESTART_TIMEOUT_S: Final = 120
ROLLOUT_TIMEOUT_S: Final = 600
"""The defaults of ``runbook bounce`` for the options ``window``, ``restart_timeout`` and ``command_timeout``."""

_EXECUTE: Final = Invocation("", (), {"execute": True, "yes": True}).options()
_ACCEPT_IDLE: Final = option("accept_idle")
_WINDOW: Final = option("window")


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

    options: str
    servers: str
    followups: str
    zookeeper: str
    kafka: str
    restart: str
    test: str
    rollout: Restart | None
    baseline: str
    plan: str | None
    retention_ms: int | None


class Risk(NamedTuple):
    """A warning: the template of an `Advice`, and its values. A value may be a tuple of partitions."""

    template: str
    values: tuple[object, ...] = ()

    def advice(self, most: int | None = None) -> Advice:
        """Returns the warning with at most ``most`` partitions of each tuple."""

        def worded(value: object) -> object:
            if not isinstance(value, tuple):
                return value
            more = ", ..." if most is not None and len(value) > most else ""
            return ", ".join(map(str, sorted(value)[:most])) + more

        return Advice(self.template, *map(worded, self.values))


@dataclass(frozen=True, slots=True)
class Runbook:
    """The steps that lead one group to the phase ``to``, from its observed phase ``found``.

    ``copies`` are the partitions whose offset a change must copy to ZooKeeper. ``commits_after_s`` is the time after
    which commits of every member were seen; None if the group was not watched. ``abort`` are the conditions under which
    the operator goes back."""

    group: str
    to: CommitMode
    found: PhaseEvidence
    changes: tuple[CommitModeChange, ...]
    baseline: Observation
    copies: Mapping[CommitModeChange, Sequence[TopicPartition]]
    commits_after_s: float | None
    steps: tuple[RunbookStep, ...] = ()
    abort: tuple[str, ...] = ()
    warnings: tuple[Risk, ...] = ()


def duration(seconds: float) -> str:
    """Returns a duration as text: ``45 s``, ``6 min``, ``1 h 5 min``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


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
    ("... no traffic ...", f"Send a message to the partition, or run the command again with {_ACCEPT_IDLE}."),
    (
        "... messages are waiting and no commit was seen",
        f"Add a longer {_WINDOW}. If the gate then stays closed, the member is stuck: look at its application.",
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


def abort_criteria(subject: Runbook) -> tuple[str, ...]:
    """Returns the conditions under which the operator goes back."""
    lags = [subject.baseline.lag(tp) for tp in subject.baseline.partitions]
    total = sum(lag for lag in lags if lag is not None)
    return (
        f"A gate stays closed in two runs of its command, {duration(2 * GATE_WINDOW_S)} in total, although you did what"
        " the step says.",
        "A restarted member does not register again, and its old settings do not bring it back either.",
        f"The total lag of the group stays above {max(1000, 2 * total):,} messages for more than 5 min. It was"
        f" {total:,} when this runbook was written.",
        "A committed offset decreases, or an application reports messages that it processed before.",
        "The time of the change is over. Latest end: ____________",
    )


class RunbookSteps:
    """The steps of one runbook, with their commands."""

    def __init__(self, subject: Runbook, arguments: RunbookArguments) -> None:
        self.subject, self.arguments = subject, arguments
        self.label = file_label(subject.group)
        self.moves_to_kafka = subject.to is not CommitMode.ZOOKEEPER and any(
            change.start is not CommitMode.KAFKA for change in subject.changes
        )
        own = f"{self.label}.json"
        if arguments.baseline == own:  # the runbook's own file, which the plan must not replace
            own = f"{self.label}-plan.json"
        self.plan = arguments.plan or own
        self.reverse_plan = f"back-{self.label}.json"
        self.of_group = {"group": subject.group if arguments.plan else None}
        self.options = f" {arguments.options}" if arguments.options else ""
        self.servers = f" {arguments.servers}" if arguments.servers else ""
        self.refresh = self.of_plan("migrate apply", self.plan, refresh=True, yes=True)

    def of_plan(self, verb: str, *positional: str, **named: Argument) -> str:
        """Returns a command line that names its stores by a plan or in its arguments."""
        return Invocation(verb, positional, named).command_line() + self.arguments.followups

    # --- the bounces ---------------------------------------------------------------------------------

    def bounce(self, number: int, change: CommitModeChange) -> RunbookStep:
        members = sorted(self.subject.baseline.members)
        is_first = number == 1
        said = {note for one in self.subject.changes[: number - 1] for note in SETTINGS[one.to].notes}
        baseline = self.arguments.baseline if is_first else self.state_file(change)
        named = {"group": self.subject.group, "phase": change.to.value, "baseline": baseline, "window": GATE_WINDOW_S}
        check = Invocation("runbook check", (), named).command_line() + self.options
        rollout = self.arguments.rollout
        restarted = [rollout.kubernetes or ""] if rollout else members if is_first else []
        changes = self.subject.changes
        undone = [CommitModeChange(one.to, one.start) for one in reversed(changes[: changes.index(change) + 1])]
        back = tuple(f"{self.bounce_command(one, back=True)}{_EXECUTE}" for one in undone)
        way_back = f"At any point of the bounce and after it. {_WAYS_BACK[change]}"
        return RunbookStep(
            f"Bounce {number} of {len(self.subject.changes)}: {change}",
            f"Restart the members into phase {change.to.value}",
            tuple(self._bounce_text(change, is_first=is_first)),
            tuple(SETTINGS[change.to].as_lines()),
            tuple(map(self._member, members))
            if is_first
            else tuple(f"member {n} of {len(members)}" for n in range(1, len(members) + 1)),
            (f"{self.bounce_command(change)}{_EXECUTE}", check),
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
            file = f"{self.label}-{change.to.value}.json"
            phases = {"to": change.to.value, "from": change.start.value}
            write = Invocation("runbook write", (), {"group": self.subject.group, **phases, "output": file})
            text.append(
                "The commands do the same as in bounce 1, with the settings below. If another tool restarts the"
                f" members, write a new baseline before, with {write.command_line()}{self.options}, and give that file"
                f" as {option('baseline')} of the second command."
            )
            return text
        if rollout := self.arguments.rollout:
            text.append(
                f"The command sets the settings below, waits for the rollout of {rollout.kubernetes}, and checks"
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
            f"the command for {rollout.kubernetes}: exit code N",
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
                "  gate passed: ...",
            ]
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
        first = self.subject.changes[0]
        named = {"group": self.subject.group, "to_phase": change.to.value, "from_phase": change.start.value}
        if not back:
            previous = {"baseline": self.arguments.baseline}
            if change is not first:
                previous = {"start_baseline": self.state_file(first)}
            named |= {**previous, "state": self.state_file(change)}
        restart = self.arguments.restart or f'{option("command")} "$RESTART"'
        return f"{Invocation('runbook bounce', (), named).command_line()} {restart}{self.options}"

    def all(self) -> Iterator[RunbookStep]:
        """Yields the steps in their order; none if the group is in the phase already."""
        if not self.subject.changes:
            return
        yield from self._before()
        if self.moves_to_kafka:
            yield from self._copy()
        for number, change in enumerate(self.subject.changes, 1):
            yield self.bounce(number, change)
            if change.to is CommitMode.DUAL and self.moves_to_kafka:
                yield self._verify()
        if self.moves_to_kafka and self.subject.changes[-1].to is CommitMode.KAFKA:
            if self.subject.changes[0].start is CommitMode.DUAL:
                yield self._verify()
            yield from self._end()

    # --- before you begin ---------------------------------------------------------------------------

    def _before(self) -> Iterator[RunbookStep]:
        section = "Before you begin"
        arguments = self.arguments
        if not (arguments.restart and arguments.test):
            own = (
                *(() if arguments.restart else (f"RESTART={shlex.quote(EXAMPLE_RESTART)}",)),
                *(() if arguments.test else (f"TEST={shlex.quote(EXAMPLE_TEST)}",)),
            )
            yield RunbookStep(
                section,
                "Define the commands that reach the members",
                (
                    "Replace the commands by those of your hosts, and run these lines in the shell of all later steps. "
                    "The restart command stops one member with SIGTERM and starts it with the settings. The test"
                    " command reaches the host of a member and changes nothing.",
                ),
                commands=own,
            )
        yield RunbookStep(
            section,
            "Check the servers",
            (
                "The command checks for each server that it answers, its release, the permissions of your login, and"
                " the difference between its clock and yours. The exit code is 1 if a check failed. Read the warnings:"
                " they do not change the exit code.",
            ),
            commands=(Invocation("doctor", (), {"group": self.subject.group}).command_line() + self.servers,),
            prints="RESULT ... CHECK ... ENDPOINT ... DETAIL...\nok ...\n...\n... ok...",
            takes="less than 1 min",
            closed=(("a check that failed, with its reason", "Fix the cause first. Nothing has changed yet."),),
        )
        yield from self._before_restarts(section)

    def _before_restarts(self, section: str) -> Iterator[RunbookStep]:
        members = sorted(self.subject.baseline.members)
        first = self.subject.changes[0]
        bounce = Invocation("runbook bounce", (), {"group": self.subject.group, "to_phase": first.to.value})
        test = self.arguments.test or f'{option("test_command")} "$TEST"'
        yield RunbookStep(
            section,
            "Test the restart command",
            ("The command runs your test command for every member and restarts none.",),
            commands=(f"{bounce.command_line()} {test}{self.options}",),
            prints="\n".join(
                [
                    "GROUP ... MEMBER ... HOST ... STATUS ...",
                    *(f"{self.subject.group} ... {member} ... ok ..." for member in members),
                    f"{count_of(len(members), 'member')} tested, 0 failed; nothing was restarted",
                ]
            ),
            takes=f"{len(members)} times the run time of the test command",
            closed=(
                ("failed (exit code N)", "Read the output in the log file that the command names, and fix the access."),
                (
                    "{host} of member M: it is unknown",
                    f"Give the host with {option('host')} MEMBER=HOST to every bounce.",
                ),
            ),
        )
        yield RunbookStep(
            section,
            "Show the restarts",
            ("The command checks the gate before the first step, prints the restart commands, and executes none.",),
            commands=(self.bounce_command(first),),
            prints=f"...\nbounce {first} of group {self.subject.group}: planned\nnothing was executed; ...",
            takes=f"at most {duration(GATE_WINDOW_S)}",
            closed=start_closed(first),
        )

    # --- the offsets ---------------------------------------------------------------------------------

    def _copy(self) -> Iterator[RunbookStep]:
        section, arguments, plan = "Copy the offsets", self.arguments, shlex.quote(self.plan)
        sides = {"from": arguments.zookeeper, "to": arguments.kafka}
        if arguments.plan is None:
            yield RunbookStep(
                section,
                "Plan",
                (
                    "The plan copies the offsets that no dual member commits: of partitions without an owner, and of"
                    " topics to which no live member subscribes. It changes nothing.",
                ),
                commands=(self.of_plan("migrate plan", **sides, group=self.subject.group, output=self.plan),),
                prints=f"...\nplan written to {plan} (sha256 ...); nothing was changed\n"
                f"next: offsetmgr migrate apply {plan}...",
                takes="less than 1 min",
                closed=(
                    ("refused: ...", "The NOTE column names the cause. Fix it, and write the plan under another name."),
                ),
                way_back="Nothing has changed. Delete the plan.",
                back=(f"rm {plan}",),
            )
        yield RunbookStep(
            section,
            "Apply",
            ("The command writes the offsets of the plan to Kafka. The consumers do not notice it.",),
            commands=(self.of_plan("migrate apply", self.plan, **self.of_group, yes=True),),
            prints="...\n... written in 1 group\n...",
            takes="less than 1 min",
            closed=(
                ("the group has members", "Consumers use the group in Kafka already. Stop them, and run it again."),
                (
                    "a line with ! and the reason",
                    "All other offsets are written. Fix the cause and run it again; if another client has changed the"
                    " offset, write a plan under another name and apply that.",
                ),
            ),
            way_back="Before the first restart only, because the command restores the offsets of this moment:",
            back=(self.of_plan("migrate rollback", self.plan, **self.of_group, yes=True),),
        )

    def _verify(self) -> RunbookStep:
        return RunbookStep(
            "Verify the offsets",
            "Verify",
            ("The command reads both stores again and compares each offset with the plan.",),
            commands=(self.of_plan("migrate verify", self.plan, **self.of_group),),
            prints="...\nverified: ... of 1 group, read afresh on both sides",
            takes="less than 1 min",
            closed=(
                ("a row that is neither equal nor progress", "Its DETAIL names the remedy, often a new plan."),
                ("the plan refused ...", f"Exclude the partitions with {option('topic')} in a new plan."),
            ),
            way_back="The command changes nothing.",
        )

    # --- the end -------------------------------------------------------------------------------------

    def _when_to_clean_up(self) -> str:
        if (retention_ms := self.arguments.retention_ms) is None:
            return "Do this when no way back to ZooKeeper is needed any more, for example after a week."
        return (
            "Do this when no way back to ZooKeeper is needed any more. Kafka keeps an offset only for"
            f" {retention_ms / 3_600_000:g} h after its last commit (offsets.retention.minutes). Until new consumers"
            " run, commit the copied offsets again before that time is over. No old consumer may be registered then:"
            f" {self.refresh}"
        )

    def _end(self) -> Iterator[RunbookStep]:
        named = (self.plan, *(group_words(self.subject.group) if self.arguments.plan else ()))
        takes = f"at most 60 s for the evidence ({_WINDOW})"
        yield RunbookStep(
            "Finalize",
            "Finalize",
            ("The command verifies again, requires evidence about every member, and records the end in the journal.",),
            commands=(self.of_plan("migrate finalize", *named, yes=True),),
            prints="...\nfinalized: ... verified...",
            takes=takes,
            closed=(
                (
                    "no commit of phase P was seen on N partitions without traffic: ...",
                    f"Send a message to each named partition, or add {_ACCEPT_IDLE}.",
                ),
                ("not seen in phase P: member M: ...", "Restart the named member with the settings, and run it again."),
            ),
            way_back="As from the last bounce.",
        )
        yield from self._cut_over()
        yield RunbookStep(
            "Clean up",
            "Delete the old offsets",
            (
                self._when_to_clean_up(),
                "The command checks again and deletes the copied offsets from ZooKeeper. The journal keeps their"
                " before-images. Keep the plan, its journal and this runbook; delete the state files of the bounces.",
            ),
            commands=(
                self.of_plan("migrate finalize", *named, delete_source=True, yes=True),
                "rm " + " ".join(self.state_file(c) for c in self.subject.changes),
            ),
            prints="...\n... removed from the source in 1 group",
            takes=takes,
            closed=(("kept in the source: ...", "Kafka is behind there. Find the reason before you delete it."),),
            way_back="As from the cut-over.",
        )

    def _cut_over(self) -> Iterator[RunbookStep]:
        group, reverse, stores = self.subject.group, self.reverse_plan, (self.arguments.zookeeper, self.arguments.kafka)
        members = (self.of_plan("groups describe", group=group, members=True, store=store) for store in stores)
        yield RunbookStep(
            "Cut over",
            "Stop the old consumers and start the new ones",
            (
                "Skip this step if the old consumers stay. The messages wait from the stop of the last old consumer to"
                " the start of the first new one: old and new members do not share their partitions.",
                "Stop all old consumers cleanly. The first command shows the members that are left. When it shows none,"
                " start the new consumers in the same group, the first time with auto.offset.reset=none (librdkafka:"
                " error), so that a missing offset is an error and not a jump. The second command shows the new"
                " members, the third the lag.",
            ),
            commands=(*members, self.of_plan("offsets lag", group=group, store=stores[1])),
            takes="the time that the consumers need to stop and to start",
            closed=(
                ("an old member is still listed", "Its process runs, or its session has not expired: wait, then look."),
                ("the new consumers report a missing offset", "Stop them and run migrate verify."),
            ),
            way_back="Stop the new consumers, copy their offsets back, and start the old consumers as before the first"
            " bounce (offsets.storage=zookeeper):",
            back=(
                self.of_plan("migrate rollback", self.plan, **self.of_group, reverse_plan=reverse),
                self.of_plan("migrate apply", reverse, **self.of_group, yes=True),
                self.of_plan("migrate verify", reverse, **self.of_group),
            ),
        )
