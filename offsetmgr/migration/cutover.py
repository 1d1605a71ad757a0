"""Runs cutovers: looks at the groups and the topics, passes the gates that are open, and writes the offsets.

The state file has the steps that were passed. Groups that are written together have one plan, next to the state file. A
run that was killed at any point continues with the next run: the journal of a plan tells what was written.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import by_key
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.cutover_options import CutoverOptions, ReverseReplicator
from offsetmgr.core.errors import (
    GateRefused,
    GroupActive,
    JournalError,
    OffsetMgrError,
    OtherCluster,
    PlanError,
    UnknownTopicOrPartition,
    UnknownVersion,
    UsageError,
)
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.topic_renames import TopicRenames
from offsetmgr.groups.describe import DescribeGroups
from offsetmgr.groups.operation_log import OperationLog, OperationStart
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.migration import cutover_gates as gates
from offsetmgr.migration.cutover_gates import (
    QUIET_INTERVALS,
    READ_MORE,
    ClosedGate,
    CutoverStatus,
    Gate,
    GroupObservation,
    LogRanges,
    MemberAnswer,
    Reads,
    TopicObservation,
)
from offsetmgr.migration.cutover_state import STATE_FILE, CutoverState, GroupState, TopicState, partition_of
from offsetmgr.migration.journaled_writer import open_plan
from offsetmgr.migration.plan import Action, GroupPlan, PlanFile, PlanStep
from offsetmgr.migration.progress import journal_path
from offsetmgr.migration.rollback import skipped_on_the_way_back
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.fingerprints import Equality, FingerprintRules, Piece
from offsetmgr.translation.translator import TranslatedOffset, Translations

OPERATION: Final = "migrate cutover"
_LOOK_BYTES: Final = 64 * 1024
_MAX_STATE_BYTES: Final = 64 * 1024 * 1024
_CONTINUED, _BEGUN_AGAIN = ClosedGate(Gate.WRITTEN, "applied again", ""), ClosedGate(Gate.WRITTEN, "planned again", "")
T = TypeVar("T")


def _groups_of(plan: Path) -> dict[str, GroupPlan]:
    """Returns the groups of a plan by name."""
    return {group.name: group for group in PlanFile(plan).groups()}


class Side(NamedTuple):
    """The source or the target. ``describe`` waits until the group locks of other runs have ended."""

    store: OffsetStore
    cluster: KafkaCluster
    describe: DescribeGroups


class CutoverActions(NamedTuple):
    """The functions that a run calls. ``plan`` writes the plan of groups to a new file; its last two arguments are
    whether the source is the copy of the target, and whether offsets of the target may go backwards. ``apply`` and
    ``undo`` execute a plan for some of its groups, and return why they did not write everything, by group.
    ``translations`` takes whether the source is the copy, and returns the same object every time.
    """

    plan: Callable[[Sequence[str], Path, bool, bool], list[GroupPlan]]
    apply: Callable[[Path, Sequence[str]], dict[str, str]]
    undo: Callable[[Path, Sequence[str]], dict[str, str]]
    translations: Callable[[bool], Translations]
    confirm: Callable[[str], None]
    note: Callable[[str], None]
    stop: Callable[[], bool]


class _Look(NamedTuple):
    """The offsets of the groups, the logs of their topics by partition of the source, and the numbers of partitions in
    both clusters by topic of the source, at one time."""

    source: Mapping[str, GroupOffsets]
    target: Mapping[str, GroupOffsets]
    source_logs: LogRanges
    target_logs: LogRanges
    counts: Mapping[str, tuple[int | None, int | None]]


class Cutover:
    """One run of a cutover of the groups `names`. Without ``execute``, nothing is changed."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        path: Path,
        actions: CutoverActions,
        options: CutoverOptions,
        *,
        execute: bool,
    ) -> None:
        """Raises `UsageError` and `OtherCluster` if the state file belongs to another cutover, and the errors of
        `CutoverState.load`."""
        self._source, self._target = sides
        self._path, self._actions, self._execute = path, actions, execute
        self.names: Sequence[str] = ()
        self._first: CutoverState | None = None
        """The state of the cutover whose way back this one is."""
        self._removed: dict[str, set[str]] = {}
        """The static members that this run has removed, by group."""
        self._left_out: dict[str, int | None] = {}
        """The numbers of records that the first cutover left out and that groups skip on the way back, or None."""
        self._since: dict[str, str] = {}
        """Offsets in the target that have changed since the last run with ``execute``, by group."""
        self._ends: dict[TopicPartition, tuple[object, object]] = {}
        """The ends of both logs when their translations were made."""
        self._later: dict[str, str] = {}
        """The notes about records that were written to the source after step 9, by topic."""
        self._open_plan, self._planned = cache(open_plan), cache(_groups_of)
        self.state = self._opened(CutoverState.load(path), options)
        self.options = options = self._with_state(options)
        self._rename = TopicRenames(options.rules.topics)

    def _opened(self, saved: CutoverState | None, options: CutoverOptions) -> CutoverState:
        ids = self._source.store.log_origin().name, self._target.store.log_origin().name
        if saved is not None and saved.clusters != ids:
            why = f"it is of a cutover from cluster {' to '.join(saved.clusters)}, not {' to '.join(ids)}"
            then = Advice("name another {state} file")
            if saved.clusters == ids[::-1]:
                then = Advice("to go back, name another {state} file, and add {back_of} {}", str(self._path))
            raise OtherCluster(f"state file {self._path}", why, then)
        state = saved or CutoverState(ids)
        if back := options.back_of or (Path(state.back_of) if state.back_of else None):
            self._first, named = CutoverState.load(back), Advice("{back_of} {}", str(back))
            if self._first is None:
                raise UsageError(named, "there is no such file", "name the first cutover's state")
            if self._first.clusters != ids[::-1]:
                why = f"belongs to a cutover from cluster {' to '.join(self._first.clusters)}"
                raise OtherCluster(named, why, "swap the source and the target")
            state.back_of = str(back.absolute())
        return state

    def _find_producers(self, first: CutoverState) -> None:
        """Finds which topics of the first cutover are copies: the producers of its others write at the source. If they
        came home by the first cutover, their replicator is the one of the first move. Raises `GateRefused` if records
        that were written after the first cutover are not at the target."""
        there = TopicRenames(first.topic_rules)
        after = {*map(there, first.copies)}
        has_replicator = first.way_back is ReverseReplicator.RUNNING or bool(first.back_of)
        for name, topic in first.topics.items():
            ends = {partition_of(tp): end for tp, end in topic.ends.items()}
            logs, is_read = self._source.cluster.log_ranges(ends), there(name) in self._consumed
            errors = (one for one in logs.values() if isinstance(one, OffsetMgrError))
            if is_read and (error := next(errors, None)) and not isinstance(error, UnknownTopicOrPartition):
                raise error
            grown = {tp: ends[tp] for tp, log in logs.items() if isinstance(log, LogRange) and log.end > ends[tp]}
            if is_read and not has_replicator and self._not_copied(grown.items()):
                why = f"the producers of {name} write at {self._source.store.uri}, without a reverse replicator"
                hint = "a group that went back would miss these records; keep it where it is. If one copies them:"
                hint = Advice("{} run the first cutover with {way_back=running}", hint)
                raise GateRefused(f"the way back to {self._target.store.uri}", why, hint)
            if topic.step >= Gate.PRODUCING or (has_replicator and grown):
                after.add(there(name))
        outputs = (topic for topics in first.outputs.values() for topic in topics)
        moved = (partition_of(tp).topic for one in first.groups.values() for tp in one.source)
        known = {*self.state.copies, *map(there, (*first.topics, *first.copies, *outputs, *moved))}
        # While no producer has moved, the topics that groups have begun to read are copies, too.
        self.state.copies = sorted((known if after else known | self._consumed) - after)

    def _not_copied(self, positions: Collection[tuple[TopicPartition, int]]) -> set[TopicPartition]:
        """Returns the partitions in which the target may lack a record of the source from the positions on."""
        found = self._actions.translations(True)
        for tp, _ in positions:
            found.partitions.pop(tp, None)
        found.load(positions)
        read = (found.partitions[tp] for tp, _ in positions)
        return {one.source for one in read if one.lacking != 0 or any(at.missing for at in one.translations.values())}

    def _with_state(self, options: CutoverOptions) -> CutoverOptions:
        """Returns the options, completed from the state, and records the new ones. Raises `UsageError` if names of
        topics or groups differ from those of an earlier run."""
        state, first = self.state, self._first
        if first is not None:  # it may have moved more groups since the last run
            there = TopicRenames(first.topic_rules)
            outputs = (one for found in first.outputs.values() for one in found)
            home = TopicRenames(state.topic_rules)
            names = dict.fromkeys((*first.topics, *first.copies, *outputs))
            rules = (f"{re.escape(there(name))}={name}" for name in names if home(there(name)) != name)
            state.topic_rules = (*state.topic_rules, *rules)
            state.renames = {new: old for old, new in first.renames.items()} | state.renames
            found = {first.renames.get(one, one): [*map(there, to)] for one, to in first.outputs.items()}
            state.outputs = found | state.outputs
        topics, renames = options.rules.topics or state.topic_rules, {**state.renames, **options.renames}
        begun = {name for name, one in state.groups.items() if one.step}
        others = any(renames.get(name, name) != state.renames.get(name, name) for name in begun)
        if others or (begun and topics != state.topic_rules):
            why = f"differ from those of state file {self._path}"
            raise UsageError(Advice("{rename_topic} and {rename}"), why, "leave them out: the state file has them")
        state.topic_rules, state.renames = topics, renames
        state.way_back = options.way_back or state.way_back
        state.outputs = {**state.outputs, **options.outputs}
        return options._replace(rules=options.rules._replace(topics=topics), renames=renames, outputs=state.outputs)

    def moved_before(self) -> set[str] | None:
        """Returns the groups that the first cutover has moved; None if this is no way back."""
        return None if self._first is None else set(self._first.moved().values())

    # --- the run -----------------------------------------------------------------------------------

    def run(self) -> list[CutoverStatus]:
        """Passes all gates that are open, and waits at closed ones. Returns where everything stands. Raises
        `GateRefused` if there is no way back."""
        deadline, noted = 0.0, ""
        if self._first is None:
            self._refuse_moved()
        self._groups = {name: self.state.groups.setdefault(name, GroupState()) for name in self.names}
        while True:
            try:
                found = self._round()
            except OffsetMgrError as error:
                deadline = deadline or time.monotonic() + self.options.wait_s
                if not error.retriable or not self._execute or time.monotonic() >= deadline or self._actions.stop():
                    raise
                self._actions.note(f"waiting, and looking again: {error}")
                self._pause()
                continue
            deadline = deadline or time.monotonic() + self.options.wait_s
            left = deadline - time.monotonic()
            waits = ((one, one.gate) for one in found if one.gate is not None and one.gate.may_open)
            closed = [f"{one.step} of {one.kind} {one.name}: {gate.why}" for one, gate in waits]
            if not closed or not self._execute or left <= 0 or self._actions.stop():
                return found
            if closed[0] != noted:
                self._actions.note(f"waiting up to {left:.0f} s at step {closed[0]}")
            noted = closed[0]

    def undo(self) -> list[CutoverStatus]:
        """Takes back the groups that have not consumed at the target."""
        found = dict[str, ClosedGate | None]()
        groups = {name: self.state.groups.get(name, GroupState()) for name in self.names}
        for name, saved in groups.items():
            if saved.back:
                found[name] = gates.went_back(saved.back)
            elif saved.step >= Gate.MOVING:
                hint = "go back by a cutover from the target to the source with {back_of} {}"
                found[name] = ClosedGate(Gate.MOVING, "it has consumed at the target", Advice(hint, str(self._path)))
        written = [name for name, saved in groups.items() if saved.step and name not in found]
        if written and self._execute:
            before = f"before the cutover of {count_of(len(written), 'group')}"
            self._actions.confirm(f"restore what {self._target.store.uri} held {before}?")
        found |= self._undo(written)
        words = dict.fromkeys(written, "taken back")
        return [CutoverStatus("group", one, found.get(one), done=words.get(one, "not written")) for one in groups]

    def _unless_damaged(self, step: Callable[[str], ClosedGate | None], name: str) -> ClosedGate | None:
        """Returns the gate of a step of a group, whose plan or journal may be damaged: other groups go on."""
        try:
            return step(name)
        except (JournalError, PlanError, UnknownVersion) as error:
            return ClosedGate(Gate.WRITTEN, str(error), "restore this file from a copy, and run the command again")

    def _undo(self, names: Sequence[str]) -> dict[str, ClosedGate | None]:
        """Takes groups back, so that they begin again. Returns why it did not. Until the last save, the journal of
        their plan tells that an undo has begun. A dry run only looks."""
        found = {name: self._unless_damaged(self._keeps, name) for name in names}
        taken = [name for name in names if not found[name]]
        begun = ((self._plan(saved), name) for name in taken if self._has_begun(name, saved := self.state.groups[name]))
        for path, planned in by_key(begun).items():
            problems = self._actions.undo(path, planned)
            self._open_plan.cache_clear()
            found |= {name: self._unless_damaged(partial(self._undone, problems), name) for name in planned}
        taken = [name for name in taken if not found[name]]
        if not self._execute:
            then = Advice("add {execute=True} to take it back")
            return found | dict.fromkeys(taken, ClosedGate(Gate.WRITTEN, "a dry run takes nothing back", then))
        if not taken:
            return found
        self._tell_first(taken, "")
        for saved in map(self.state.groups.__getitem__, taken):
            saved.step, saved.plan, saved.seen, saved.doubt = 0, "", None, ""
        left = {topic for one in self.state.moved() for topic in self.options.outputs.get(one, ())}
        for topic in {topic for name in taken for topic in self.options.outputs.get(name, ())} - left:
            self.state.topics.pop(topic, None)
        self._save()
        return found

    def _keeps(self, name: str) -> ClosedGate | None:
        """Returns why a group must keep its offsets at the target."""
        there, saved = self._target_name(name), self.state.groups[name]
        plan, journal = self._open_plan(self._plan(saved))
        if not self._has_begun(name, saved):
            if saved.step < Gate.WRITTEN:
                return None
            if not journal.is_applied(self._planned(plan.path)[name]):
                why = f"lacks the writes of group {name}, so what the target held before is not known"
                raise JournalError(str(journal_path(plan.path)), why)
        text = gates.members_text(self._target.describe([there])[there]) or self._changed_equal(name)
        return self._undone({name: f"at the target, {text}"}, name) if text else None

    def _undone(self, problems: Mapping[str, str], name: str) -> ClosedGate | None:
        """Returns why a group is not taken back after a run of undo, whose journal tells what was restored."""
        if (problem := problems.get(name)) is None:
            journal = self._open_plan(self._plan(self.state.groups[name]))[1]
            if not self._execute or name in journal.undo.done:
                return None
            return ClosedGate(
                Gate.WRITTEN, "the run was stopped before it was taken back", "run the same command again"
            )
        then = "stop its consumers, and run it again; if they have consumed at the target, swap both clusters, "
        then = Advice(f"{then}and add {{back_of}} {{}}; otherwise set this offset to the written one", str(self._path))
        if self._is_undone(name, self.state.groups[name]):
            then = "some offsets were taken back already: set this one back, and run it again"
        return ClosedGate(Gate.WRITTEN, problem, then)

    def _changed_equal(self, name: str) -> str:
        """Names an offset that the plan did not write, because the target held it already, and that has changed."""
        equal = (step for step in self._steps(name) if step.action in (Action.SKIP_EQUAL, Action.TARGET_ONLY))
        return gates.other_offset(self._held(name), {str(step.tp): step.after.offset for step in equal if step.after})

    def _tell_first(self, names: Iterable[str], back: str) -> None:
        """Records in the state of the first cutover that groups go back. Raises `JournalError` if it runs now."""
        if self._first is None:
            return
        path = Path(self.state.back_of)
        with STATE_FILE.exclusive(path):
            if (first := CutoverState.load(path)) is not None:
                for name in filter(first.groups.__contains__, map(self._target_name, names)):
                    first.groups[name].back = back
                first.save(path)

    def _save(self) -> None:
        if self._execute:
            self.state.save(self._path)

    def _round(self) -> list[CutoverStatus]:
        self._open_plan.cache_clear()
        resumed = {name: self._unless_damaged(self._resume, name) for name in self.names}
        resumed |= self._apply([name for name, gate in resumed.items() if gate is _CONTINUED])
        resumed |= self._undo([name for name, gate in resumed.items() if gate is _BEGUN_AGAIN])
        self._users = cache(self._read_users)
        first = self._look()
        if self._first is not None:
            self._first = CutoverState.load(Path(self.state.back_of)) or self._first  # it may have moved producers
            self._find_producers(self._first)
        self._pause()
        second = self._look()
        self._end_if_stopped()  # a shorter interval shows nothing
        groups, observed = self._observe(first, second)
        found, writable = [], []
        for name in self.names:
            gate = resumed.get(name) or self._group(name, groups[name])
            if gate is not None and gate.step is Gate.WRITTEN and not resumed[name]:
                writable.append(name)
            found.append(CutoverStatus("group", name, gate, self._note(name, groups[name], gate)))
        self._save()
        stopped = [one.name for one in found if one.gate is not None and one.gate.step is Gate.STOPPED]
        if self._remove_static_members({name: gates.static_members(groups[name].members[0]) for name in stopped}):
            return self._round()
        if writable and self._execute:
            self._end_if_stopped()
            written = f"{count_of(len(writable), 'group')} at {self._target.store.uri}"
            notes = [f"{name} {note}" for name in writable if (note := gates.without_offset(groups[name]))]
            places = gates.places_text((groups[name] for name in writable), self._left_out)
            self._actions.confirm(f"write the offsets of {written}: {'; '.join([places, *notes[:3]])}?")
            wrote = self._write({name: groups[name] for name in writable})
            found = [one._replace(gate=wrote.get(one.name, one.gate)) for one in found]
        for topic in sorted(filter(self._has_steps, observed)):
            gate = self._topic(topic, observed[topic])
            doubt = self._missing_way_back(observed[topic]) * (gate is None)
            texts = gates.left_behind(observed[topic]), doubt, self._later.get(topic, "")
            found.append(CutoverStatus("topic", topic, gate, Advice.joined(filter(None, texts))))
        self._save()
        return found

    def _end_if_stopped(self) -> None:
        if self._actions.stop():
            raise KeyboardInterrupt

    def _pause(self) -> None:
        end = time.monotonic() + self.options.interval_s
        while (left := end - time.monotonic()) > 0 and not self._actions.stop():
            time.sleep(min(left, 0.2))

    def _refuse_moved(self) -> None:
        """Raises `GateRefused` if another state file in the directory has moved a group that begins here, from the
        target or to it."""
        ids, groups = self.state.clusters, self.state.groups
        begin = {name for name in self.names if not groups.get(name, GroupState()).step}
        own = self._path.absolute()
        for path in sorted(own.parent.glob(f"*{own.suffix}")):
            try:
                other = CutoverState.load(path) if path.stat().st_size < _MAX_STATE_BYTES else None
            except (OffsetMgrError, OSError):  # another file
                continue
            if other is None or path == own:
                continue
            what, where = f"a second move to {self._target.store.uri}", self._target.store.uri
            moved, hint = set(other.moved()), "to continue, use {state} {}"
            if other.clusters != ids:
                what, where = f"the way back to {self._target.store.uri}", self._source.store.uri
                moved, hint = set(other.moved().values()), "to go back, add {back_of} {}"
            if other.clusters in (ids, ids[::-1]) and (both := sorted(begin & moved)):
                hint = Advice(f"{hint}; otherwise use a state file in another directory", str(path))
                raise GateRefused(what, f"{path} moved group {both[0]} to {where}", hint)

    # --- observations ------------------------------------------------------------------------------

    def _target_name(self, group: str) -> str:
        return self.options.renames.get(group, group)

    def _is_back(self, topic: str) -> bool:
        """Whether the source's topic is the copy of the target's."""
        return topic in self.state.copies

    def _has_steps(self, topic: str) -> bool:
        """Whether producers of the topic are moved: on the way back, they may not have left."""
        return not self._is_back(topic) and topic in self._consumed

    def _look(self) -> _Look:
        names = {self._target_name(name): name for name in self.names}
        source = {one.name: one for one in self._source.store.scan(list(self.names))}
        target = {names[one.name]: one for one in self._target.store.scan(list(names))}
        self._consumed = {tp.topic for one in source.values() for tp in (*one.offsets, *one.errors)}
        saved = self._groups.values()
        self._consumed |= {partition_of(tp).topic for one in saved for tp in one.source}  # they may have expired
        topics = self._consumed | {one for found in self.options.outputs.values() for one in found}
        renamed = {topic: self._rename(topic) for topic in topics}
        here, copies = self._source.cluster.topics(topics), self._target.cluster.topics(renamed.values())
        counts = {topic: (here.get(topic), copies.get(renamed[topic])) for topic in topics}
        even = {topic: one for topic, (one, other) in counts.items() if one == other}
        tps = [TopicPartition(topic, n) for topic, count_ in even.items() for n in range(count_ or 0)]
        there = self._target.cluster.log_ranges([self._rename.partition(tp) for tp in tps])
        in_target = {tp: there[self._rename.partition(tp)] for tp in tps}
        return _Look(source, target, self._source.cluster.log_ranges(tps), in_target, counts)

    def _observe(self, first: _Look, second: _Look) -> tuple[dict[str, GroupObservation], dict[str, TopicObservation]]:
        open_, recreated = self._open_transactions(second.source_logs), self._recreated(second.counts)

        def of_topic(topic: str, counts: tuple[int | None, int | None]) -> TopicObservation:
            tps = [TopicPartition(topic, n) for n in range(counts[0] or 0)]

            def of(found: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
                return {tp: found[tp] for tp in tps if tp in found}

            copy, gone = self._rename(topic), recreated.get(topic, "")
            logs = of(first.source_logs), of(second.source_logs)
            copies = of(first.target_logs), of(second.target_logs)
            facts = of(open_), Verdict.MISSING in self.options.rules.accepts, self._lacking, self._answer
            return TopicObservation(topic, copy, counts, logs, copies, *facts, gone)

        topics = {topic: of_topic(topic, counts) for topic, counts in second.counts.items()}
        here = self._source.describe(self.names)
        there = self._target.describe(map(self._target_name, self.names))
        groups = {
            name: GroupObservation(
                name,
                self._target_name(name),
                {tp.topic: topics[tp.topic] for tp in (*held.offsets, *held.errors)},
                Reads(first.source[name], held),
                Reads(first.target[name], second.target[name]),
                (here[name], there[self._target_name(name)]),
                [topics[topic] for topic in self.options.outputs.get(name, ())],
            )
            for name, held in second.source.items()
        }
        self._load(self._positions(groups, topics, second), second)
        return groups, topics

    def _recreated(self, topics: Iterable[str]) -> dict[str, str]:
        """Returns the topics of which numbers are saved and that are other logs now, with the cluster."""
        here = self._source.cluster.topic_ids(topics)
        there = self._target.cluster.topic_ids(map(self._rename, topics))
        begun = {partition_of(tp).topic for one in self.state.groups.values() if one.step for tp in one.source}
        begun |= {name for name, one in self.state.topics.items() if one.step >= Gate.REPLICATOR}
        found = {}
        for topic in topics:
            ids = [here.get(topic, ""), there.get(self._rename(topic), "")]
            known = self.state.topic_ids.setdefault(topic, ids) if topic in begun else ids
            self.state.topic_ids[topic] = known
            for side, old, new in zip((self._source, self._target), known, ids, strict=True):
                if old and new and old != new:
                    found[topic] = side.store.uri
        return found

    def _open_transactions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """Returns the partitions of the source with an open transaction, each with a text that names it."""
        found = {}
        for tp, one in self._source.cluster.open_transactions(partitions).items():
            if isinstance(one, OffsetMgrError):
                found[tp] = f"{tp} (not known: {one})"
            elif one.is_open:
                found[tp] = f"{tp} ({list_of(one.transactions, 1)})" if one.transactions else str(tp)
        return found

    def _positions(
        self, groups: Mapping[str, GroupObservation], topics: Mapping[str, TopicObservation], look: _Look
    ) -> set[tuple[TopicPartition, int]]:
        """Returns the positions of the source that this round translates: for topics that some gate asks for, the ends
        of their logs, and where groups resumed, because the target must hold all records from there on; and the
        positions of groups that are not written yet."""
        unwritten = [one for name, one in groups.items() if self._groups[name].step < Gate.WRITTEN]
        held = ((tp, at.offset) for one in unwritten for tp, at in one.source.now.offsets.items())
        wanted = {(tp, offset) for tp, offset in held if tp in look.source_logs}
        outputs = {topic.name for one in unwritten for topic in one.outputs}
        asked = outputs.union(*(one.topics for one in unwritten))
        self._ended = {name for name, one in topics.items() if self._has_ended(one)}
        asked |= {name for name in topics if self._has_steps(name) and name not in self._ended}
        saved = (item for one in self.state.groups.values() for item in one.source.items())
        resumed = by_key((partition_of(text), offset) for text, offset in saved)
        for tp, log in look.source_logs.items():
            if tp.topic in asked and isinstance(log, LogRange):
                whole = tp.topic in outputs and self._is_back(tp.topic)
                first = log.start if whole else max(log.start, min(resumed.get(tp, [log.end])))
                wanted |= {(tp, min(first, log.end)), (tp, log.end)}
        return wanted

    def _translated_by(self, topic: str) -> Translations:
        return self._actions.translations(self._is_back(topic))

    def _load(self, wanted: Collection[tuple[TopicPartition, int]], look: _Look) -> None:
        """Translates the positions. A translation is repeated if one of the two logs has changed."""
        for tp, _ in wanted:
            ends = look.source_logs[tp], look.target_logs[tp]
            if self._ends.get(tp) != ends:
                self._translated_by(tp.topic).partitions.pop(tp, None)
                self._ends[tp] = ends
        for back, positions in by_key((self._is_back(one[0].topic), one) for one in wanted).items():
            self._actions.translations(back).load(positions)

    def _lacking(self, tp: TopicPartition) -> int | OffsetMgrError | None:
        found = self._translated_by(tp.topic).partitions.get(tp)
        if found is None or found.error or found.lacking is not None:
            return found and (found.error or found.lacking)
        unread = any(one.earlier_a or one.earlier_b for one in found.translations.values())
        return PlanError(str(tp), "the logs were not read far enough", READ_MORE) if unread else None

    def _answer(self, tp: TopicPartition, position: int) -> TranslatedOffset | OffsetMgrError:
        translations = self._translated_by(tp.topic)
        found = translations.partitions.get(tp)
        if found is None or (found.error is None and position not in found.translations):
            return PlanError(str(tp), "not compared yet", "run the same command again")
        return translations.get(tp, position)

    def _remove_static_members(self, members: Mapping[str, Sequence[str]]) -> bool:
        """Removes static members, by group. Returns whether it removed any: it leaves those that have come back."""
        removed = False
        for name, found in members.items() if self._execute and self.options.remove_static_members else ():
            if static := sorted({*found}.difference(self._groups[name].alive)):
                self._actions.confirm(f"remove static members {list_of(static, 3)} of group {name} at the source?")
                uris, reason = (self._source.store.uri,), self.options.reason
                with OperationLog().recorded(OperationStart(OPERATION, uris, (name,), 1, len(static), reason=reason)):
                    outcomes = self._source.cluster.remove_static_members(name, static)
                    if error := next((one for one in outcomes.values() if one is not None), None):
                        raise error
                self._removed.setdefault(name, set()).update(static)
                removed = True
        return removed

    # --- the steps of a group ----------------------------------------------------------------------

    def _group(self, name: str, one: GroupObservation) -> ClosedGate | None:
        saved = self._groups[name]
        if saved.back:
            return gates.went_back(saved.back)
        if saved.step >= Gate.WRITTEN:
            recreated = (topic for topic in one.topics.values() if topic.recreated and saved.step < Gate.MOVING)
            closed = (gates.uneven(topic, Gate.STARTED) for topic in recreated)
            gate = next(closed, None) or gates.left_source(one, saved.source, saved.written)
            if gate is None and saved.step < Gate.STARTED and (gate := gates.started(one, saved.written)) is None:
                saved.step = Gate.STARTED
            if saved.step < Gate.STARTED and not (gates.members_text(one.members[1]) or gates.error_of(one.target.now)):
                saved.doubt = gates.other_offset(one.target.positions, saved.written)
            if (
                gate is None
                and saved.step < Gate.MOVING
                and (gate := gates.moving(one, saved.written, self._follow)) is None
            ):
                saved.step = Gate.MOVING
            return gate
        if len({self._is_back(topic) for topic in one.topics}) > 1:
            later = list_of(sorted(topic for topic in one.topics if not self._is_back(topic)), 3)
            why = f"the producers of {later} write at the source, and those of its other topics do not"
            return ClosedGate(Gate.READY, why, "move the producers of all topics of the group first")
        writer = self._other_writer(saved, one)
        removed = {*self._removed.get(name, ()), *saved.alive}
        saved.alive = sorted(removed.intersection(gates.static_members(one.members[0])))
        gate = gates.ready(one, writer, self.options.max_behind, self.options.interval_s) or self._output_readers(name)
        removes = self.options.remove_static_members
        gate = gate or gates.stopped(one, saved.alive, removes=removes) or gates.translated(one)
        gate = gate or (None if self._rewinds(one) else gates.ahead(one)) or self._skipped(one)
        saved.places = "" if gate else gates.places_text([one], self._left_out)
        return gate or ClosedGate(
            Gate.WRITTEN, "a dry run writes nothing", Advice("add {execute=True} to write its offsets")
        )

    def _output_readers(self, name: str) -> ClosedGate | None:
        """Returns the groups that read the output of a job at the source: the job is the producer of that topic."""
        topics = self.options.outputs.get(name, ())
        if not topics:
            return None
        by_topic = self._users()
        users = {*self._unread, *(user for topic in topics for user in by_topic.get(topic, ()))}
        if not (left := sorted(users.difference(self._moved(), self.options.excused, {name}))):
            return None
        excuse = Advice.joined((Advice("{excuse} {}", one) for one in left), " ")
        then = Advice("move these groups first; for those that stay, and get no new records of the job, add {}", excuse)
        return ClosedGate(Gate.READY, f"its output is read at the source by {list_of(left, 3)}", then)

    def _other_writer(self, saved: GroupState, one: GroupObservation) -> str:
        """Names an offset in the target that another program has written lately, or that the first run finds there. A
        dry run keeps no state, so a change since the last run with ``execute`` is only a note of it."""
        now_ms = SystemClock().now_ms()
        earlier = saved.seen if saved.seen is not None else self._first_offsets(one) or {}
        since = gates.difference(earlier, one.target.positions)
        if one.target.before.error or one.target.now.error:
            return saved.changed
        changed = gates.difference(Reads(one.target.before, one.target.before).positions, one.target.positions)
        self._since[one.name] = "" if self._execute or changed else since
        if changed := changed or since * self._execute:
            saved.changed, saved.changed_ms = changed, now_ms
        saved.seen = one.target.positions
        return saved.changed if now_ms - saved.changed_ms < QUIET_INTERVALS * self.options.interval_s * 1000 else ""

    def _note(self, name: str, one: GroupObservation, gate: ClosedGate | None) -> str:
        saved = self._groups[name]
        repeated = gates.repeats_text(one, saved.source) if saved.step >= Gate.WRITTEN and not saved.back else ""
        doubt = saved.doubt and f"records may have been skipped: before a member was seen, {saved.doubt}"
        since = (text := self._since.get(name)) and f"another program has committed at the target: {text}"
        starts = gates.without_offset(one) if gate and saved.step < Gate.STARTED else ""
        return "; ".join(filter(None, (saved.places, repeated, doubt, since, starts)))

    def _first_offsets(self, one: GroupObservation) -> dict[str, int] | None:
        """On the way back: the offsets that the first cutover left at its source."""
        saved = None if self._first is None else self._first.groups.get(one.target_name)
        return None if saved is None or saved.step < Gate.WRITTEN else saved.source

    def _rewinds(self, one: GroupObservation) -> bool:
        """Whether the target holds what the first cutover left there, which may go backwards."""
        return one.target.positions == self._first_offsets(one)

    def _follow(self, tp: str, offset: int) -> bool:
        """Returns whether a log of the target has a record at or after an offset that consumers get. Those of aborted
        transactions are none, nor are markers. A log that cannot be read counts as one with records."""
        cluster, partition = self._target.cluster, partition_of(tp)
        log = cluster.log_ranges([partition])[partition]
        if not isinstance(log, LogRange):
            return True
        piece = Piece(log, max(offset, log.start), log.end, FingerprintRules(Equality.ALL, timestamps=False))
        while piece.next_offset < piece.stop:
            data = cluster.read_log(partition, piece.next_offset, _LOOK_BYTES)
            if isinstance(data, OffsetMgrError) or not piece.add(data) or piece.committed().prints:
                return True
        return False

    def _write(self, groups: Mapping[str, GroupObservation]) -> dict[str, ClosedGate | None]:
        """Plans groups, and applies the plans to those that have not moved in the source meanwhile."""
        if self._first is None:
            self._refuse_moved()
        found = self._changed(groups.values())
        left = [one for name, one in groups.items() if name not in found]
        kinds = by_key(((any(map(self._is_back, one.topics)), self._rewinds(one)), one) for one in left)
        for (back, rewinds), planned in kinds.items():
            names, path = [one.name for one in planned], self._plan_path()
            plans = self._actions.plan(names, path, back, rewinds)
            found |= {plan.name: gate for plan in plans if (gate := gates.planned(plan, groups[plan.name]))}
            found |= self._changed(planned)
            for plan in plans:
                if plan.name not in found:
                    self._set_plan(groups[plan.name], plan, path.name)
            if found.keys() >= {*names}:
                path.unlink()
        if not (sure := [name for name in groups if name not in found]):
            return found
        self._save()
        self._tell_first(sure, str(self._path.absolute()))
        return found | self._apply(sure)

    def _changed(self, groups: Collection[GroupObservation]) -> dict[str, ClosedGate | None]:
        """Returns the gates of the groups that have changed at the source since they were observed."""
        names = [one.name for one in groups]
        now, described = {one.name: one for one in self._source.store.scan(names)}, self._source.describe(names)
        found = {one.name: gates.changed(one, now[one.name], described[one.name]) for one in groups}
        return {name: gate for name, gate in found.items() if gate}

    def _set_plan(self, one: GroupObservation, plan: GroupPlan, name: str) -> None:
        """Records the plan of a group, which is in the file ``name``."""
        saved = self._groups[one.name]
        saved.plan, saved.source, saved.step = name, one.source.positions, Gate.TRANSLATED
        saved.written = {str(step.tp): step.after.offset for step in plan.steps if step.source and step.after}
        for topic in one.outputs:  # the job is their producer: it starts at the target with the group
            ends = self._target_ends(topic), gates.ends_of(topic.source[1])
            if self._topic_state(topic.name).step < Gate.REPLICATOR:
                self.state.topics[topic.name] = TopicState(Gate.REPLICATOR, *ends)

    def _source_now(self, name: str) -> tuple[GroupOffsets, MemberAnswer]:
        """Returns the offsets of a group at the source, and its description, which is read after them."""
        found = next(self._source.store.scan([name]))
        return found, self._source.describe([name])[name]

    def _skipped(self, one: GroupObservation) -> ClosedGate | None:
        """Counts the records that a group never gets if it goes back, because the first cutover left them out. Returns
        a gate if there are any, and the operator does not accept it."""
        first = None if self._first is None else self._first.groups.get(one.target_name)
        if first is None or not first.plan:
            return None
        held, left_out, texts = one.source.now.offsets, 0, list[str]()
        try:
            planned = self._planned(Path(self.state.back_of).with_name(first.plan))[one.target_name]
            for step in (step for step in planned.steps if step.tp in held):
                place = one.topics[step.tp.topic].answer(step.tp, held[step.tp].offset)
                offset = None if isinstance(place, OffsetMgrError) else place.answer.offset
                number, text = skipped_on_the_way_back(step, offset)
                left_out += number
                texts += [f"{step.source_tp}: {text}"] if text else []
            self._left_out[one.name] = left_out
        except (PlanError, UnknownVersion) as error:
            texts = [f"the plan of the first cutover tells what its target lacked: {error}"]
            self._left_out[one.name] = None
        if not texts or Verdict.MISSING in self.options.rules.accepts:
            return None
        then = Advice("to skip these records, add {accept=missing}")
        if self._left_out[one.name] is None:
            then = Advice("restore this file from a copy; to go back without it, add {accept=missing}")
        return ClosedGate(Gate.TRANSLATED, Advice.joined(texts[:3]), then)

    def _apply(self, names: Sequence[str]) -> dict[str, ClosedGate | None]:
        """Writes the offsets of groups with a plan, or continues to write them."""
        problems: dict[str, str] = {}
        for path, planned in by_key((self._plan(self._groups[name]), name) for name in names).items():
            problems |= self._actions.apply(path, planned)
        self._open_plan.cache_clear()
        found = {name: self._unless_damaged(partial(self._applied, problems), name) for name in names}
        if found:
            self._save()
        return found

    def _applied(self, problems: Mapping[str, str], name: str) -> ClosedGate:
        """Returns the gate of a group after a run of apply, whose journal tells what was written."""
        saved = self._groups[name]
        plan, journal = self._open_plan(self._plan(saved))
        if journal.is_applied(self._planned(plan.path)[name]):
            saved.step = Gate.WRITTEN
            return gates.not_started(self._target_name(name))
        then = Advice("run the same command again; if that does not help, add {undo=True}, and begin again")
        return ClosedGate(Gate.WRITTEN, problems.get(name, "the run was stopped before it was written"), then)

    def _plan_path(self) -> Path:
        paths = (self._path.with_name(f"{self._path.stem[:180]}-groups-{number}.plan") for number in count(1))
        used = {one.plan for one in self.state.groups.values()}
        path = next(path for path in paths if path.name not in used and not journal_path(path).exists())
        path.unlink(missing_ok=True)  # a run was killed before it knew of the plan
        return path

    def _resume(self, name: str) -> ClosedGate | None:
        """Ends the work of a run that was killed between the plan of a group and the end of the write. Returns the
        closed gate; `_CONTINUED` if its plan is applied again, `_BEGUN_AGAIN` if it is planned again; None if no run
        was killed there."""
        saved = self._groups[name]
        if self._is_undone(name, saved):
            return ClosedGate(Gate.WRITTEN, "an undo or rollback of it has begun", Advice("add {undo=True}"), False)
        if saved.step != Gate.TRANSLATED:
            return None
        if not self._execute:
            then = Advice("add {execute=True} to continue")
            return ClosedGate(Gate.WRITTEN, "an earlier run was stopped before the end of the write", then)
        begun = self._has_begun(name, saved)
        if begun and self._has_consumed(name, saved):
            saved.step = Gate.WRITTEN
            self._save()
            return None
        now, described = self._source_now(name)
        if error := gates.error_of(now) or (described if isinstance(described, OffsetMgrError) else None):
            return ClosedGate(Gate.WRITTEN, f"the source cannot be read: {error}", "run the same command again")
        if begun and not gates.members_text(described) and Reads(now, now).positions == saved.source:
            return _CONTINUED
        return _BEGUN_AGAIN

    def _has_consumed(self, name: str, saved: GroupState) -> bool:
        """Whether no offset of the target is before the one that a group's plan has written, and not all of them are
        that one: consumers have started there. A partition with its before-image was not written."""
        held = self._held(name)
        before = {str(step.tp): step.target and step.target.offset for step in self._steps(name)}
        if not before or any(before.get(tp) == held.get(tp) != offset for tp, offset in saved.written.items()):
            return False
        beyond = [held.get(tp, -1) - offset for tp, offset in saved.written.items()]
        return min(beyond, default=0) >= 0 and any(beyond)

    def _held(self, name: str) -> dict[str, int]:
        """Returns the offsets of a group at the target."""
        (found,) = self._target.store.scan([self._target_name(name)])
        if error := gates.error_of(found):
            raise error
        return Reads(found, found).positions

    def _steps(self, name: str) -> Sequence[PlanStep]:
        """Returns the steps of a group's plan."""
        return self._planned(self._plan(self.state.groups[name]))[name].steps

    def _plan(self, saved: GroupState) -> Path:
        return self._path.parent / saved.plan

    def _has_begun(self, name: str, saved: GroupState) -> bool:
        """Whether a run of apply may have written offsets of the plan."""
        return name in self._open_plan(self._plan(saved))[1].apply.written

    def _is_undone(self, name: str, saved: GroupState) -> bool:
        """Whether an undo, or a rollback of the plan, has restored an offset."""
        plan = self._plan(saved)
        is_written = Gate.TRANSLATED <= saved.step < Gate.MOVING and plan.exists()
        return is_written and self._open_plan(plan)[1].is_group_rolled_back(name)

    # --- the steps of a topic ----------------------------------------------------------------------

    def _topic(self, name: str, one: TopicObservation) -> ClosedGate | None:
        saved = self.state.topics.setdefault(name, TopicState())
        if self._is_through(name):
            return None
        if gate := gates.uneven(one, Gate.PRODUCERS_STOPPED):
            return gate
        if name not in self._ended:
            users = {*self._users().get(name, ()), *self._unread}
            left = users.difference(self._moved(), self.options.excused)
            steps = {name: self.state.groups[name].step for name in self.state.moved()}
            gate = gates.waits_for_groups(left, self._shares, self._unread, steps, self.names)
            if gate is not None and all(one in self.state.groups and self.state.groups[one].back for one in left):
                gate = gate._replace(may_open=False)
            for step, closed in (
                (Gate.PRODUCERS_STOPPED, gate or gates.producers_stopped(one)),
                (Gate.COPIED, gates.copied(one)),
                (
                    Gate.REPLICATOR,
                    gates.replicator_stopped(one, self.state.way_back, is_stopped=self.options.replicator_stopped),
                ),
            ):
                if closed is not None:
                    return closed
                saved.step = max(saved.step, step)
            saved.source_ends, saved.ends = gates.ends_of(one.source[1]), self._target_ends(one)
        if self._has_new_records(one):
            saved.step = Gate.PRODUCING
            return None
        then = f"start the producers of topic {name} at the target"
        return ClosedGate(Gate.PRODUCING, "no new record at the target", then)

    def _has_ended(self, one: TopicObservation) -> bool:
        """Whether the replicator of a topic has stopped, and its source has no new record since, until the producers
        have started at the target. If a reverse replicator runs, the new records may be its copies: then the target has
        a new record that the source did not hold when the logs were read, those of the target first.

        After step 10, a run compares the new records once, for a note; the next run begins after the copies."""
        saved, grown, has_passed = self._topic_state(one.name), self._grown(one), self._is_through(one.name)
        if saved.step < Gate.REPLICATOR or (has_passed and one.name in self._later):
            return has_passed
        self._later[one.name] = ""
        if not grown or not (has_passed or self._has_way_back):
            return not grown
        ends = {tp: log.end for tp, log in one.source[1].items() if isinstance(log, LogRange) and tp in grown}
        no_copies = self._not_copied((*grown.items(), *ends.items()))
        self._later[one.name] = gates.later_text(grown, no_copies)
        if has_passed:
            saved.copied |= {str(tp): end for tp, end in ends.items() if tp not in no_copies}
        if has_passed or no_copies:
            return has_passed
        read = self._actions.translations(True).partitions
        places = {str(read[tp].target): read[tp].translations[end] for tp, end in ends.items()}
        held = {tp: (at.offset or 0) if at.verdict is Verdict.SEEN else sys.maxsize for tp, at in places.items()}
        return self._has_new_records(one, held)

    def _topic_state(self, topic: str) -> TopicState:
        return self.state.topics.get(topic, TopicState())

    def _is_through(self, topic: str) -> bool:
        return self._topic_state(topic).step >= Gate.PRODUCING

    @property
    def _has_way_back(self) -> bool:
        return self.state.way_back is ReverseReplicator.RUNNING

    def _grown(self, one: TopicObservation) -> dict[TopicPartition, int]:
        """Returns the partitions of the source with new records since the replicator had stopped, and from where:
        without those that are known as copies."""
        saved = self._topic_state(one.name)
        ends = {**saved.source_ends, **saved.copied}
        logs = {tp: log for tp, log in one.source[1].items() if isinstance(log, LogRange)}
        return {tp: max(log.start, at) for tp, log in logs.items() if log.end > (at := ends.get(str(tp), 0))}

    def _has_new_records(self, one: TopicObservation, held: Mapping[str, int] = MappingProxyType({})) -> bool:
        """Whether the target holds a record that was written since the replicator had stopped. ``held`` are the places
        up to which the source holds the target's records."""
        ends = self.state.topics[one.name].ends
        for tp, log in one.target_logs[1].items():
            there = str(self._rename.partition(tp))
            after = max(ends.get(there, 0), held.get(there, 0))
            if isinstance(log, OffsetMgrError) or log.end <= after or not self._follow(there, after):
                continue
            return True
        return False

    def _target_ends(self, one: TopicObservation) -> dict[str, int]:
        logs = one.target_logs[1].items()
        return {str(self._rename.partition(tp)): log.end for tp, log in logs if isinstance(log, LogRange)}

    def _missing_way_back(self, one: TopicObservation) -> str:
        """Returns the doubt about the operator's word that a reverse replicator runs."""
        if self._has_way_back and not self._grown(one) and not self.state.topics[one.name].copied:
            return "you said that a reverse replicator runs, but it has copied no record to the source yet"
        return ""

    def _moved(self) -> set[str]:
        done = {name for name, saved in self.state.groups.items() if saved.step >= Gate.MOVING and not saved.back}
        return done - self._alive - self._unread.keys()

    def _read_users(self) -> dict[str, list[str]]:
        """Returns the groups of the source with offsets or members in each topic, and finds the share groups among
        them, and the groups that cannot be read. Reads all groups, so a round calls it once, if at all."""
        store, cluster = self._source.store, self._source.cluster
        kinds = cluster.group_kinds()
        shares = [name for name, kind in kinds.items() if kind.type == "share"]
        names = {*store.groups(), *self._groups}
        scanned = list(store.scan(list(names)))
        used = [(tp.topic, one.name) for one in scanned for tp in (*one.offsets, *one.errors)]
        self._unread, self._alive = {one.name: one.error for one in scanned if one.error is not None}, set[str]()
        for name, held in cluster.share_offsets(shares).items() if shares else ():
            if isinstance(held, OffsetMgrError):
                self._unread[name] = held
            else:
                used += [(tp.topic, name) for tp in (*held.offsets, *held.errors)]
        for name, described in cluster.describe_groups([*names, *shares], every_kind=True).items():
            if isinstance(described, OffsetMgrError):
                self._unread[name] = described
                continue
            is_moving = described.protocol_type == "consumer" and described.state != "STABLE"
            if is_moving and any(member.topics is None for member in described.members):
                self._unread[name] = GroupActive(f"group {name}", "it is in a rebalance")
            for member in described.members:
                self._alive.add(name)
                used += [(topic, name) for topic in (*(member.topics or ()), *(tp.topic for tp in member.partitions))]
        for name, saved in self.state.groups.items():
            used += [(partition_of(tp).topic, name) for tp in saved.source]
        self._shares = frozenset(shares)
        return by_key(used)
