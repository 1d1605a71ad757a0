"""The steps of a runbook, from the checks before the first step to the cleaning up. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import group_words
from offsetmgr.migration.runbook_commands import (
    EXAMPLE_RESTART,
    EXAMPLE_TEST,
    GATE_WINDOW_S,
    RunbookArguments,
    RunbookCommands,
    RunbookStep,
    RunbookSubject,
    duration,
    start_closed,
)


def runbook_steps(subject: RunbookSubject, arguments: RunbookArguments) -> tuple[RunbookStep, ...]:
    """Returns the steps in their order; no step if the group is in the phase already."""
    return tuple(_Steps(subject, arguments).all()) if subject.changes else ()


def abort_criteria(subject: RunbookSubject) -> tuple[str, ...]:
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


class _Steps(RunbookCommands):
    """Builds the steps of one runbook."""

    def all(self) -> Iterator[RunbookStep]:
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
            commands=(f"offsetmgr doctor --group {self.group}{self.servers}",),
            prints="RESULT ... CHECK ... ENDPOINT ... DETAIL...\nok ...\n...\n... ok...",
            takes="less than 1 min",
            closed=(("a check that failed, with its reason", "Fix the cause first. Nothing has changed yet."),),
        )
        yield from self._before_restarts(section)

    def _before_restarts(self, section: str) -> Iterator[RunbookStep]:
        members = sorted(self.subject.baseline.members)
        first = self.subject.changes[0]
        yield RunbookStep(
            section,
            "Test the restart command",
            ("The command runs your test command for every member and restarts none.",),
            commands=(
                f"offsetmgr runbook bounce --group {self.group} --to-phase {first.to.value}"
                f" {self.test_options}{self.options}",
            ),
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
                ("{host} of member M: it is unknown", "Give the host with --host MEMBER=HOST to every bounce."),
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
        section, arguments = "Copy the offsets", self.arguments
        if arguments.plan is None:
            yield RunbookStep(
                section,
                "Plan",
                (
                    "The plan copies the offsets that no dual member commits: of partitions without an owner, and of"
                    " topics to which no live member subscribes. It changes nothing.",
                ),
                commands=(
                    f"offsetmgr migrate plan --from {shlex.quote(arguments.zookeeper)} --to"
                    f" {shlex.quote(arguments.kafka)} --group {self.group} -o {self.plan}{arguments.followups}",
                ),
                prints=f"...\nplan written to {self.plan} (sha256 ...); nothing was changed\n"
                f"next: offsetmgr migrate apply {self.plan}...",
                takes="less than 1 min",
                closed=(
                    ("refused: ...", "The NOTE column names the cause. Fix it, and write the plan under another name."),
                ),
                way_back="Nothing has changed. Delete the plan.",
                back=(f"rm {self.plan}",),
            )
        yield RunbookStep(
            section,
            "Apply",
            ("The command writes the offsets of the plan to Kafka. The consumers do not notice it.",),
            commands=(f"offsetmgr migrate apply {self.plan}{self.of_group} --yes{arguments.followups}",),
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
            back=(f"offsetmgr migrate rollback {self.plan}{self.of_group} --yes{arguments.followups}",),
        )

    def _verify(self) -> RunbookStep:
        return RunbookStep(
            "Verify the offsets",
            "Verify",
            ("The command reads both stores again and compares each offset with the plan.",),
            commands=(f"offsetmgr migrate verify {self.plan}{self.of_group}{self.arguments.followups}",),
            prints="...\nverified: ... of 1 group, read afresh on both sides",
            takes="less than 1 min",
            closed=(
                ("a row that is neither equal nor progress", "Its DETAIL names the remedy, often a new plan."),
                ("the plan refused ...", "Exclude the partitions with --topic in a new plan."),
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
        arguments = self.arguments
        named = f" {shlex.join(group_words(self.subject.group))}" if arguments.plan else ""
        finalize = f"offsetmgr migrate finalize {self.plan}{named}"
        yield RunbookStep(
            "Finalize",
            "Finalize",
            ("The command verifies again, requires evidence about every member, and records the end in the journal.",),
            commands=(f"{finalize} --yes{arguments.followups}",),
            prints="...\nfinalized: ... verified...",
            takes="at most 60 s for the evidence (--window)",
            closed=(
                (
                    "no commit of phase P was seen on N partitions without traffic: ...",
                    "Send a message to each named partition, or add --accept-idle.",
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
                f"{finalize} --delete-source --yes{arguments.followups}",
                "rm " + " ".join(self.state_file(c) for c in self.subject.changes),
            ),
            prints="...\n... removed from the source in 1 group",
            takes="at most 60 s for the evidence (--window)",
            closed=(("kept in the source: ...", "Kafka is behind there. Find the reason before you delete it."),),
            way_back="As from the cut-over.",
        )

    def _cut_over(self) -> Iterator[RunbookStep]:
        arguments, group, reverse = self.arguments, self.group, self.reverse_plan
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
            commands=(
                f"offsetmgr groups describe --group {group} --members --store {shlex.quote(arguments.zookeeper)}"
                f"{arguments.followups}",
                f"offsetmgr groups describe --group {group} --members --store {shlex.quote(arguments.kafka)}"
                f"{arguments.followups}",
                f"offsetmgr offsets lag --group {group} --store {shlex.quote(arguments.kafka)}{arguments.followups}",
            ),
            takes="the time that the consumers need to stop and to start",
            closed=(
                ("an old member is still listed", "Its process runs, or its session has not expired: wait, then look."),
                ("the new consumers report a missing offset", "Stop them and run migrate verify."),
            ),
            way_back="Stop the new consumers, copy their offsets back, and start the old consumers as before the first"
            " bounce (offsets.storage=zookeeper):",
            back=(
                f"offsetmgr migrate rollback {self.plan}{self.of_group} --reverse-plan {reverse}{arguments.followups}",
                f"offsetmgr migrate apply {reverse}{self.of_group} --yes{arguments.followups}",
                f"offsetmgr migrate verify {reverse}{self.of_group}{arguments.followups}",
            ),
        )
