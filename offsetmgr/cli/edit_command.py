"""The steps of every editing command: show the plan, ask the user, write the offsets, and report the results and the
command lines that undo them. Also the edits of running groups, and the deletion of whole groups."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from offsetmgr.app.ui import Interrupted
from offsetmgr.cli.errors import FAILED, exit_with
from offsetmgr.cli.read_error_report import note_unrecognised
from offsetmgr.cli.render import PLANNED_WRITE, Column, OutputFormat, note, progress, write_plain_csv, write_rows
from offsetmgr.cli.stop_signals import ignore_first_signal
from offsetmgr.cli.terminal import EditFlags, confirm
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.commit_metadata import dropped_text
from offsetmgr.core.errors import Conflict, GateRefused, GroupActive, OffsetMgrError
from offsetmgr.core.group_tree import GroupTreeStore
from offsetmgr.core.log_origin import Relation
from offsetmgr.core.model import DELETES_OFFSETS, Committed, Weakness
from offsetmgr.core.offset_store import ChangeOutcome, EditStatus, GroupEditResult, OffsetStore
from offsetmgr.core.plurals import count_of
from offsetmgr.core.running_store import RunningGroup
from offsetmgr.groups.before_images import default_image_path, image_file
from offsetmgr.groups.describe import reject_active
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan
from offsetmgr.groups.edits import tree_store, with_trees
from offsetmgr.groups.execute import may_have_written
from offsetmgr.groups.running_groups import UNDO_OPTIONS, RunningChecks, RunningEdit, check_running, execute_running
from offsetmgr.groups.saved_edit import EditOrigin, SavedEdit, record_operation, start_edit, undo_command
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.stores.cross_cluster_check import OriginStore


FailedWrite: TypeAlias = "tuple[str, TopicPartition | None, OffsetMgrError]"
"""A group, the partition or None, and the error."""
OUTCOME: Final = (*PLANNED_WRITE[:-1], Column("outcome"), Column("note", optional=True))
MAX_FAILURES_SHOWN: Final = 200
_Outcomes: TypeAlias = "dict[str, dict[TopicPartition, ChangeOutcome]]"
_WRITTEN: Final = ChangeOutcome(EditStatus.WRITTEN)


def cross_cluster_check(
    what: str, source: OriginStore, target: OffsetStore, translate: OffsetTranslation | None
) -> CrossClusterCheck:
    """Compares the Kafka cluster of the source with the Kafka cluster of the target, and prints the result unless both
    are known to be the same cluster.

    Raises `OtherCluster` if the source's offsets must not be written to the target.
    """
    crossing = CrossClusterCheck(source, target, translate)
    crossing.check(what)
    if crossing.comparison.relation is not Relation.SAME:
        note(f"cluster {for_command_line(crossing.text())}")
    return crossing


_WAITING_OPERATIONS: Final = frozenset({"offsets reset", "offsets set", "offsets import", "offsets delete"})
"""The operations that have the options --wait-empty and --running."""
_WHOLE_GROUPS: Final = frozenset({"groups delete", "groups rename"})
"""The operations without the option --topic."""


class Edit:
    """One editing command: its name, its plan, and its options."""

    can_wait: ClassVar[bool] = True
    """Whether the command accepts ``--wait-empty``, if its operation does."""
    tree_verb: ClassVar[str] = "restore"

    def __init__(
        self,
        operation: str,
        store: OffsetStore,
        describer: DescribeGroups,
        flags: EditFlags,
        *,
        undo_options: Sequence[str] = (),
        print_undo: bool = True,
        as_csv: bool = False,
    ) -> None:
        self.operation = operation
        self.store = store
        self.describer = describer
        self.execute, self.yes, self.image, self.output, self.reason = flags
        self.confirmed = False
        """Whether this edit was confirmed, by the user or by --yes."""
        self.as_csv = as_csv
        """Whether the command prints only the new offsets on stdout, in the CSV format of kafka-consumer-groups
        --export."""
        self.print_undo = print_undo
        """Whether the command lines in ``undo`` are printed when the edit ends."""
        self.undo: list[str] = []
        """Command lines that undo the changes. The list is empty if nothing was changed."""
        self.undo_options = undo_options
        self._weaknesses: tuple[Weakness, ...] = ()
        self.more_warnings: Callable[[], Iterable[str]] = lambda: ()
        """Returns warnings about the plan, which are printed before the prompt."""
        self.failed: set[str] = set()
        """Groups in which a change was rejected or failed."""

    def run(self, groups: Iterable[GroupEditPlan]) -> int:
        """Shows the plan, asks the user, writes the offsets, and reports the results. Returns 1 if a change was
        rejected or failed, else 0."""
        try:
            proposal = EditPlan.of(self.check(progress(groups, "reading")))
        except KeyboardInterrupt as error:
            raise Interrupted("nothing was changed") from error
        with proposal:
            self._show(proposal)
            problems = self._list_problems(proposal)
            counts = proposal.counts
            if counts.dropped:
                note(f"warning: the edit drops {dropped_text(counts.dropped)}")
            trees = f" and {self.tree_verb} the znodes of {count_of(counts.trees, 'group')}" if counts.trees else ""
            if not self.execute:
                amount = _size(counts.writes, counts.groups)
                self._note_weaknesses()
                note(f"dry run: would change {amount}{trees} in {self.store.uri}; nothing was changed")
                if counts.writes or counts.trees:
                    note("hint: add --execute to do it")
            elif not (counts.writes or counts.trees):
                note(f"nothing to change in {self.store.uri}")
            else:
                self._note_weaknesses()
                self.announce(proposal)
                confirm(f"{self.operation}: change {_size(counts.writes, counts.groups)}{trees}?", yes=self.yes)
                self.confirmed = True
                return self._write(proposal) or (FAILED if problems else 0)
            return FAILED if problems else 0

    def check(self, groups: Iterable[GroupEditPlan]) -> Iterable[GroupEditPlan]:
        """Yields the plans, with a problem for each group that cannot be edited now. Prints a warning for data that
        offsetmgr does not understand."""
        for plan in reject_active(self.describer, groups):
            note_unrecognised(plan.unrecognised)
            yield plan

    def announce(self, proposal: EditPlan) -> None:
        """Prints the amount of the edit, before the prompt."""
        counts = proposal.counts
        note(f"about to change {_size(counts.writes, counts.groups)} in {self.store.uri}")

    def report(self, result: GroupEditResult) -> None:
        """Called with the result of each group."""

    def finish(self, proposal: EditPlan) -> Iterable[FailedWrite]:  # noqa: ARG002
        """Called after the last write. Returns the failures of this step."""
        return ()

    def _note_weaknesses(self) -> None:
        self._weaknesses = self.store.weaknesses()
        for text in (*(weakness.text for weakness in self._weaknesses), *self.more_warnings()):
            note(f"warning: {text}")

    def _show(self, proposal: EditPlan) -> None:
        """Prints the plan on stdout. With --execute, JSON and CSV output is printed after the writes, because it
        contains their outcomes."""
        if self.as_csv:
            write_plain_csv(_kafka_rows(proposal))
        elif self.output is OutputFormat.TABLE or not self.execute:
            if any(group.changes for group in proposal):
                write_rows(PLANNED_WRITE, _plan_rows(proposal), self.output)
            elif self.output is not OutputFormat.TABLE:
                write_rows(PLANNED_WRITE, (), self.output)
        elif not proposal.counts.writes:
            write_rows(OUTCOME, (), self.output)

    def _list_problems(self, proposal: EditPlan) -> int:
        if not proposal.counts.problems:
            return 0
        self.failed = {g.group for g in proposal if g.problem or any(c.problem for c in g.changes)}
        problems = ((g.group, c.partition, c.problem) for g in proposal for c in g.changes if c.problem is not None)
        whole = ((g.group, None, g.problem) for g in proposal if g.problem is not None)
        count = _list_failures((*whole,), problems)
        active = any(isinstance(g.problem, GroupActive) and not g.problem.lock_ends_s for g in proposal)
        if active and self.can_wait and self.operation in _WAITING_OPERATIONS:
            running = "; --running moves it without a stop" if self.store.uri.startswith("kafka:") else ""
            note(f"hint: --wait-empty SECONDS waits until the group has no members{running}")
        if any(g.problem and len({c.problem is None for c in g.changes}) == 2 for g in proposal):
            choice = "" if self.operation in _WHOLE_GROUPS else "; --topic NAME:0,1 selects the partitions of an edit"
            note(f"hint: a group is edited as a whole or not at all{choice}")
        return count

    def _write(self, proposal: EditPlan) -> int:
        failures: list[FailedWrite] = []
        counts = dict.fromkeys(EditStatus, 0)
        not_atomic: set[str] = set()
        # For each group, the partitions whose outcome is not "written". A group without a result is missing.
        other_outcomes: _Outcomes = {}
        undo, results = self._execute(proposal)
        try:
            for result in progress(results, self.operation, proposal.counts.groups):
                rest = {tp: outcome for tp, outcome in result.outcomes.items() if outcome[0] is not EditStatus.WRITTEN}
                counts[EditStatus.WRITTEN] += len(result.outcomes) - len(rest)
                for tp, outcome in rest.items():
                    counts[outcome.status] += 1
                    if outcome.error is not None:
                        failures.append((result.group, tp, outcome.error))
                        self.failed.add(result.group)
                self.report(result)
                if not result.atomic:
                    not_atomic.add(result.how)
                other_outcomes[result.group] = rest
            failures += self.finish(proposal)
        except KeyboardInterrupt as error:
            left = proposal.counts.writes - sum(counts.values())
            raise Interrupted(
                f"{count_of(counts[EditStatus.WRITTEN], 'offset')} changed, {left:,} not confirmed; "
                f"undo: {'; '.join(undo)}"
            ) from error
        try:
            if self.output is not OutputFormat.TABLE and not self.as_csv:
                write_rows(OUTCOME, _outcome_rows(proposal, other_outcomes), self.output)
        finally:  # report the results even if writing to stdout fails
            for how in sorted(not_atomic):
                note(f"not atomic: {how}")
            _list_failures(failures)
            done = f"done: {counts[EditStatus.WRITTEN]:,} changed"
            if counts[EditStatus.UNCHANGED]:
                done += f", {counts[EditStatus.UNCHANGED]:,} unchanged"
            note(f"{done}, {len(failures):,} failed" if failures else done)
            written = counts[EditStatus.WRITTEN] or proposal.counts.trees
            if written or any(may_have_written(type(error).__name__) for *_, error in failures):
                self.undo = undo
            self._note_late_deletions(proposal, other_outcomes)
            for line in self.undo if self.print_undo else ():
                note(f"undo: {line}")
        return FAILED if failures else 0

    def _note_late_deletions(self, proposal: EditPlan, other_outcomes: _Outcomes) -> None:
        """If the brokers cannot delete single offsets, prints how many of the deleted offsets the brokers keep for some
        time."""
        if all(weakness.subject != DELETES_OFFSETS for weakness in self._weaknesses):
            return
        deleted = sum(
            change.after is None and change.writes and change.partition not in other_outcomes.get(group.group, ())
            for group in proposal
            if group.group in other_outcomes
            for change in group.changes
        )
        if deleted:
            note(
                f"warning: the broker keeps {count_of(deleted, 'deleted offset')} until its next check for expired"
                " offsets or until the group is deleted; a consumer that starts before that begins at these offsets"
            )

    def _execute(self, proposal: EditPlan) -> tuple[list[str], Iterator[GroupEditResult]]:
        """Starts the edit. Returns the command lines that undo the edit, and an iterator over the results."""
        path = Path(self.image) if self.image else default_image_path(self.operation)
        origin = EditOrigin(self.operation, self.reason or "", self.undo_options)
        started = self.start(proposal, path, lambda path: note(f"before-images: {path}"))
        undo = [join((*undo_command(image, origin.undo_options), "--execute")) for image in started.images]
        return undo, record_operation(started, proposal, origin).results

    def start(self, proposal: EditPlan, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        """Starts the edit with its before-images at ``path``. See `start_edit`."""
        return start_edit(self.store, proposal, path, on_durable)


def _size(writes: int, groups: int) -> str:
    return f"{count_of(writes, 'offset')} in {count_of(groups, 'group')}"


def _kafka_rows(proposal: EditPlan) -> Iterator[tuple[str | int, ...]]:
    """Rows ``topic,partition,offset`` of all changes that are not rejected. If the plan has several groups, the group
    is the first column."""
    single = len({group.group for group in proposal}) == 1
    for group in proposal:
        for change in group.changes if group.problem is None else ():
            if change.problem is None and change.after is not None:
                row = (change.partition.topic, change.partition.partition, change.after.offset)
                yield row if single else (group.group, *row)


def _plan_rows(proposal: Iterable[GroupEditPlan]) -> Iterator[tuple[Any, ...]]:
    for group in proposal:
        name = group.group
        for tp, before, after, text, problem, _ in group.changes:
            rejected = problem or group.problem
            yield (
                name,
                tp[0],
                tp[1],
                before.offset if isinstance(before, Committed) else None,
                after.offset if after is not None and rejected is None else None,
                _rejection(rejected) if rejected is not None else text or None,
            )


def _rejection(error: OffsetMgrError) -> str:
    """Returns the note of a rejected row. The note of an active group does not name the members, and that of a group
    without sufficient evidence not the evidence, because the list of errors has them."""
    if isinstance(error, GroupActive | GateRefused):
        return "refused: active" if isinstance(error, GroupActive) else "refused: the error has the evidence"
    return f"refused: {error.why or error.what}"


def _outcome_rows(proposal: EditPlan, outcomes: _Outcomes) -> Iterator[tuple[Any, ...]]:
    for group in proposal:
        known = outcomes.get(group.group)
        for row, change in zip(_plan_rows([group]), group.changes, strict=True):
            if change.problem is not None or group.problem is not None:
                outcome, text = "refused", row[-1]
            elif not change.writes:
                outcome, text = "unchanged", row[-1]
            else:
                found = None if known is None else known.get(change.partition, _WRITTEN)
                outcome = "unknown" if found is None else found.status.value
                text = str(found.error) if found is not None and found.error is not None else row[-1]
            yield (*row[:-1], outcome, text)


def _list_failures(*failures: Iterable[FailedWrite]) -> int:
    """Prints one line on stderr for each of the first `MAX_FAILURES_SHOWN` failures. Returns the number of failures."""
    count = 0
    hints: dict[str, None] = {}
    for group, tp, error in (entry for some in failures for entry in some):
        count += 1
        if count <= MAX_FAILURES_SHOWN:
            place = f"group {group}" + (f", {tp}" if tp is not None else "")
            text = " ".join(str(error).split()).removeprefix(f"{tp}: ")
            quoted = f"group {group!r}" + (f", {tp}" if tp is not None else "")
            note(f"error: {text if text.startswith((place, quoted)) else f'{place}: {text}'}")
        if error.hint:
            hints[error.hint] = None
    if count > MAX_FAILURES_SHOWN:
        note(f"error: and {count - MAX_FAILURES_SHOWN} more")
    for hint in list(hints)[:3]:
        note(f"hint: {for_command_line(hint)}")
    return count


def exit_edit(code: int) -> None:
    """Ends a completed editing command with this exit code. The first Ctrl-C after this call has no effect."""
    ignore_first_signal()
    exit_with(code)


class RunningEditCommand(Edit):
    """An editing command with ``--running``."""

    can_wait: ClassVar[bool] = False

    def __init__(
        self,
        operation: str,
        store: OffsetStore,
        flags: EditFlags,
        checks: RunningChecks,
        options: RunningEdit,
        *,
        undo_options: Sequence[str] = (),
        as_csv: bool = False,
    ) -> None:
        undo_options = (*undo_options, *UNDO_OPTIONS)
        super().__init__(operation, store, checks.all_members, flags, undo_options=undo_options, as_csv=as_csv)
        self._checks = checks
        self._options = options._replace(on_step=note)

    def check(self, groups: Iterable[GroupEditPlan]) -> Iterable[GroupEditPlan]:
        return check_running(self._checks, groups)

    def announce(self, proposal: EditPlan) -> None:
        super().announce(proposal)
        if any(group.members for group in self._checks.found.values()):
            for line in notice(self._checks.found, self._options.wait_s):
                note(line)

    def report(self, result: GroupEditResult) -> None:
        if result.atomic and result.how:
            note(f"group {result.group}: {result.how}")

    def start(self, proposal: EditPlan, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        return execute_running(self.store, proposal, path, on_durable, self._options)


def notice(groups: Mapping[str, RunningGroup], wait_s: float) -> list[str]:
    """Returns the lines of the prompt that describe the effect on the applications of these groups. ``wait_s`` is the
    time in seconds for which an edit waits until the members of a group are back."""
    lines = [
        "the consumers keep running, and their applications notice this:",
        "  - one commit fails, and the rebalance listener receives onPartitionsLost",
    ]
    for consumer_protocol in (False, True):
        chosen = {
            name: group
            for name, group in groups.items()
            if group.members and group.consumer_protocol == consumer_protocol
        }
        if not chosen:
            continue
        heartbeat_s = max(group.heartbeat_s for group in chosen.values())
        first = next(iter(chosen))
        which = f"group {first}" if len(chosen) == 1 else f"{first} and {count_of(len(chosen) - 1, 'other group')}"
        lines.append(f"  - {which}: {_pause(heartbeat_s, consumer_protocol=consumer_protocol)}")
    return [
        *lines,
        f"  - while a consumer is processing records, the other consumers wait for its next poll: up to {wait_s:g} s",
        "  - if a consumer overwrites the new offsets, the edit and its pause are repeated, at most twice",
        "  - the other partitions repeat the records that were processed but not committed",
        "  - transactions with the metadata of the group abort; transactions without it may overwrite the edit",
    ]


def _pause(heartbeat_s: float, *, consumer_protocol: bool) -> str:
    """Describes the pause. The consumers notice their removal with a heartbeat. In the consumer protocol they need up
    to two further heartbeats until they have the partitions."""
    if consumer_protocol:
        longest = f"up to {3 * heartbeat_s + 3:g} s"
        setting = f"the group's heartbeat interval is {heartbeat_s:g} s"
        return f"all partitions pause for about {heartbeat_s + 1:g} s, {longest} ({setting})"
    setting = f"with a heartbeat.interval.ms of {heartbeat_s:g} s, the default"
    return (
        f"the edited partitions pause for about {heartbeat_s + 2:g} s, the others for up to {heartbeat_s + 1:g} s"
        f" ({setting})"
    )


class GroupDeletion(Edit):
    """Deletes whole groups. A group in ZooKeeper is a tree of znodes, which the before-images contain."""

    tree_verb = "delete"

    def __init__(self, *arguments: Any, lose: Container[str] = (), **shown: Any) -> None:
        super().__init__(*arguments, **shown)
        self._lose = lose
        self._trees = tree_store(self.store)
        self._failures: list[FailedWrite] = []

    def check(self, groups: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        return with_trees(self.store, super().check(groups), self._lose)

    def start(self, proposal: EditPlan, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        """A group in ZooKeeper alone is deleted with its offsets in one transaction."""
        if not isinstance(self.store, GroupTreeStore):
            return super().start(proposal, path, on_durable)
        image = image_file(path, self.store, proposal, on_durable)

        def results() -> Generator[GroupEditResult, None, None]:
            image.intend(proposal)
            for plan in proposal:
                if plan.removes and plan.problem is None:
                    yield self._delete_tree(plan)

        return SavedEdit((image,), results())

    def finish(self, proposal: EditPlan) -> Iterable[FailedWrite]:
        if not isinstance(self.store, GroupTreeStore):
            for plan in proposal:
                if plan.removes and plan.problem is None and plan.group not in self.failed:
                    self._delete_tree(plan)
        return self._failures

    def _delete_tree(self, plan: GroupEditPlan) -> GroupEditResult:
        assert self._trees is not None  # only a tree store adds trees to plans
        try:
            self._trees.delete_group(plan.group, plan.removes)
        except OffsetMgrError as error:
            self.failed.add(plan.group)
            self._failures.append((plan.group, None, error))
            return GroupEditResult(plan.group, {})
        note(f"removed group {plan.group!r} with {count_of(len(plan.removes), 'znode')}")
        written = {one.partition: ChangeOutcome(EditStatus.WRITTEN, one.before) for one in plan.changes if one.writes}
        return GroupEditResult(plan.group, written)

    def require_complete(self, plan: GroupEditPlan) -> None:
        """Raises an error if a rename of the group would lose data. ``plan`` is the deletion of the original."""
        (checked,) = self.check([plan])
        if left := next((one.path for one in checked.unrecognised if one.path not in self._lose), None):
            why = f"the data in {left} would not be copied, because offsetmgr does not understand it"
            raise Conflict(f"group {plan.group!r}", why, f"if no client needs the data, add --lose {left}")
        if checked.problem is not None:
            raise checked.problem
