"""Runs cutovers: looks at the groups and the topics, passes the gates that are open, and writes the offsets.

The state file has the steps that were passed. The offsets of a group are in its plan, in the directory of the state
file. A run that was killed at any point continues with the next run: the journal of a plan tells what was written.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.cutover_options import CutoverOptions, ReverseReplicator
from offsetmgr.core.document import DocumentPart
from offsetmgr.core.errors import (
    GateRefused,
    JournalError,
    OffsetMgrError,
    OtherCluster,
    PlanError,
    UnknownVersion,
    UsageError,
)
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.topic_renames import TopicRenames
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.migration.cutover_gates import (
    ClosedGate,
    CutoverStatus,
    CutoverStep,
    GroupObservation,
    LogRanges,
    MemberAnswer,
    Reads,
    TopicObservation,
    copied,
    document_parts,
    left_source,
    members_text,
    moving,
    next_lines,
    producers_stopped,
    producing,
    ready,
    replicator_stopped,
    started,
    static_members,
    stopped,
    translated,
    waits_for_groups,
    without_offset,
)
from offsetmgr.migration.journaled_writer import open_plan
from offsetmgr.migration.plan import Action, GroupPlan
from offsetmgr.migration.progress import journal_path
from offsetmgr.segments.batch_reader import batches
from offsetmgr.translation.translator import TranslatedOffset, Translations

FORMAT: Final = "offsetmgr-cutover"
VERSION: Final = 1
_LOOK_BYTES: Final = 64 * 1024


# The state file.


@dataclass(slots=True)
class _Progress:
    """``step`` is the last step that was passed. ``times`` are in milliseconds since 1970, by step."""

    step: int = 0
    times: dict[str, int] = field(default_factory=dict)

    def pass_step(self, step: CutoverStep) -> None:
        self.step = step
        self.times[str(step.value)] = time.time_ns() // 1_000_000


@dataclass(slots=True)
class GroupState(_Progress):
    """The progress of a group: step 0 until its offsets are translated. ``source`` are the translated offsets,
    ``written`` those in the target, and ``seen`` those that the last look found there. ``plan`` is the path of the
    plan."""

    plan: str = ""
    source: dict[TopicPartition, int] = field(default_factory=dict)
    written: dict[TopicPartition, int] = field(default_factory=dict)
    seen: dict[TopicPartition, int] | None = None


@dataclass(slots=True)
class TopicState(_Progress):
    """The progress of a topic. ``ends`` are those of the target's logs when the replicator had stopped, by partition of
    the source."""

    target: str = ""
    ends: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class CutoverState:
    """Everything that the next run needs. ``clusters`` are the ids of the source's cluster and of the target's."""

    clusters: tuple[str, str]
    topic_rules: tuple[str, ...] = ()
    renames: dict[str, str] = field(default_factory=dict)
    back_of: str = ""
    way_back: ReverseReplicator = ReverseReplicator.NONE
    excused: list[str] = field(default_factory=list)
    groups: dict[str, GroupState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replaces the file atomically. Raises `FileFailure`."""
        content = {"format": FORMAT, "version": VERSION, **{name: getattr(self, name) for name in _PLAIN}}
        content["groups"] = {name: _encoded(one, _OF_GROUP) for name, one in self.groups.items()}
        content["topics"] = {name: _encoded(one, _OF_TOPIC) for name, one in self.topics.items()}
        text = json.dumps(content, indent=2) + "\n"
        replace_file(path, lambda out: out.write(text.encode()), overwrite=True)

    @classmethod
    def load(cls, path: Path) -> CutoverState | None:
        """Returns the saved state; None if there is no file. Raises `JournalError`, and `UnknownVersion` for a file of
        a later version."""
        what = f"cutover state {path}"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise JournalError(what, str(error)) from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise JournalError(what, "it is not the state of a cutover")
        if data.get("version") != VERSION:
            raise UnknownVersion(what, f"version {data.get('version')!r}, this program knows {VERSION}")
        try:
            first, second = data["clusters"]
            return cls(
                (first, second),
                tuple(data["topic_rules"]),
                data["renames"],
                data["back_of"],
                ReverseReplicator(data["way_back"]),
                data["excused"],
                {name: GroupState(**_decoded(one)) for name, one in data["groups"].items()},
                {name: TopicState(**_decoded(one)) for name, one in data["topics"].items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(what, f"damaged ({type(error).__name__}: {error})") from error


_PLAIN: Final = ("clusters", "topic_rules", "renames", "back_of", "way_back", "excused")
_OF_GROUP: Final = ("step", "plan", "times", "source", "written", "seen")
_OF_TOPIC: Final = ("target", "step", "times", "ends")
_POSITIONS: Final = ("source", "written", "seen", "ends")


def _encoded(one: object, names: Iterable[str]) -> dict[str, Any]:
    values = {name: getattr(one, name) for name in names}
    return {
        name: [[*tp, offset] for tp, offset in value.items()] if name in _POSITIONS and value is not None else value
        for name, value in values.items()
    }


def _decoded(saved: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {TopicPartition(topic, number): offset for topic, number, offset in value}
        if name in _POSITIONS and value is not None
        else value
        for name, value in saved.items()
    }


class Side(NamedTuple):
    """The source or the target."""

    store: OffsetStore
    cluster: KafkaCluster

    @property
    def id(self) -> str:
        return self.store.log_origin().name


class CutoverActions(NamedTuple):
    """The functions that a run calls. ``plan`` writes the plan of a group to a new file; its last two arguments are
    whether the source is the copy of the target, and whether an offset of the target may go backwards. ``apply`` and
    ``undo`` return why they did not write everything, or an empty text. ``translations`` takes whether the source is
    the copy.
    """

    plan: Callable[[str, Path, bool, bool], GroupPlan]
    apply: Callable[[Path], str]
    undo: Callable[[Path], str]
    translations: Callable[[bool], Translations]
    confirm: Callable[[str], None]
    note: Callable[[str], None]
    stop: Callable[[], bool]


class CutoverReport(NamedTuple):
    """The progress of the groups and topics of a cutover."""

    standings: list[CutoverStatus]
    way_back: ReverseReplicator
    commands: Mapping[str, Invocation]

    @property
    def ok(self) -> bool:
        """Whether all selected groups and their topics are through."""
        return all(one.gate is None for one in self.standings)

    def next_lines(self) -> list[str]:
        """Returns what to do next."""
        return next_lines(self.standings)

    def parts(self) -> list[DocumentPart]:
        """Returns the runbook as a document."""
        return document_parts(self.standings, self.way_back, self.commands)


class _Look(NamedTuple):
    """The offsets of the groups, and the logs of their topics by partition of the source, at one time."""

    source: Mapping[str, GroupOffsets]
    target: Mapping[str, GroupOffsets]
    source_logs: LogRanges
    target_logs: LogRanges


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
        """Raises `UsageError` and `OtherCluster` if the state file belongs to another cutover, `GateRefused` if there
        is no way back, and the errors of `CutoverState.load`."""
        self._source, self._target = sides
        self._path, self._actions, self._execute = path, actions, execute
        self.names: Sequence[str] = ()
        self._after: frozenset[str] = frozenset()
        """On the way back: the topics whose producers write at the source, from which the reverse replicator copies."""
        self._first: CutoverState | None = None
        """The state of the cutover whose way back this one is."""
        self._translations: dict[bool, Translations] = {}
        self._ends: dict[TopicPartition, tuple[object, object]] = {}
        """The ends of both logs when their translations were made."""
        saved = CutoverState.load(path)
        if options.undo and saved is None:
            raise UsageError(f"state file {path}", "does not exist, so no group can be taken back", "check its name")
        self.state = self._opened(saved, options)
        self._options = options = self._with_state(options)
        self._rename = TopicRenames(options.rules.topics)
        self._everybody: dict[str, GroupOffsets] | None = None

    def _opened(self, saved: CutoverState | None, options: CutoverOptions) -> CutoverState:
        ids = self._source.id, self._target.id
        if saved is not None and saved.clusters != ids:
            raise OtherCluster(
                f"state file {self._path}",
                f"it is of a cutover from cluster {saved.clusters[0]} to {saved.clusters[1]}, not {ids[0]} to {ids[1]}",
                Advice("name another {state} file"),
            )
        state = saved or CutoverState(ids)
        if back := options.back_of or (Path(state.back_of) if state.back_of else None):
            self._first = self._way_back(back)
            state.back_of = str(back.absolute())
        return state

    def _way_back(self, path: Path) -> CutoverState:
        """Returns the state of the first cutover. Raises `GateRefused` if records that were written after it are not at
        this cutover's target."""
        first = CutoverState.load(path)
        if first is None:
            raise UsageError(
                Advice("{back_of} {}", str(path)), "there is no such file", "name the first cutover's state"
            )
        if first.clusters != (self._target.id, self._source.id):
            why = f"belongs to a cutover from cluster {first.clusters[0]} to {first.clusters[1]}"
            raise OtherCluster(Advice("{back_of} {}", str(path)), why, "swap the source and the target")
        after = set()
        for name, topic in first.topics.items():
            ends = {TopicPartition(topic.target, tp.partition): end for tp, end in topic.ends.items()}
            logs = self._source.cluster.log_ranges(ends) if topic.step == CutoverStep.REPLICATOR else {}
            grown = any(isinstance(log := logs.get(tp), LogRange) and log.end > end for tp, end in ends.items())
            if grown or topic.step >= CutoverStep.PRODUCING:
                after.add(topic.target)
                if first.way_back is not ReverseReplicator.RUNNING:
                    why = f"the producers of {name} write at {self._source.store.uri}, and no reverse replicator runs"
                    hint = "a group that went back would miss these records; keep it where it is"
                    raise GateRefused(f"the way back to {self._target.store.uri}", why, hint)
        self._after = frozenset(after)
        return first

    def _with_state(self, options: CutoverOptions) -> CutoverOptions:
        """Returns the options, completed from the state, and records the new ones. Raises `UsageError` if names of
        topics or groups differ from those of an earlier run."""
        state, rules = self.state, options.rules
        if self._first is not None and not state.groups:
            if not rules.topics:
                state.topic_rules = tuple(f"{re.escape(one.target)}={name}" for name, one in self._first.topics.items())
            state.renames = {new: old for old, new in self._first.renames.items()}
        for name, given, known in (
            ("rename_topic", rules.topics, state.topic_rules),
            ("rename", options.renames, state.renames),
        ):
            if given and given != known and state.groups:
                raise UsageError(Advice(f"{{{name}}}"), f"differs from that of state file {self._path}", "leave it out")
        state.topic_rules = rules.topics or state.topic_rules
        state.renames = dict(options.renames) or state.renames
        state.way_back = options.way_back or state.way_back
        state.excused = sorted({*state.excused, *options.excused})
        return options._replace(rules=rules._replace(topics=state.topic_rules), renames=state.renames)

    @property
    def rules(self) -> TranslationRules:
        """The rules of this run, with the names of topics that the state has."""
        return self._options.rules

    @property
    def renames(self) -> Mapping[str, str]:
        """The names of groups in the target."""
        return self._options.renames

    # --- the run -----------------------------------------------------------------------------------

    def run(self) -> list[CutoverStatus]:
        """Passes all gates that are open, and waits at closed ones. Returns where everything stands."""
        deadline = time.monotonic() + self._options.wait_s
        while True:
            try:
                found = self._round()
            except OffsetMgrError as error:
                if not error.retriable or not self._execute or time.monotonic() >= deadline or self._actions.stop():
                    raise
                self._actions.note(f"waiting, and looking again: {error}")
                self._pause()
                continue
            left = deadline - time.monotonic()
            closed = [one for one in found if one.gate is not None]
            if not closed or not self._execute or left <= 0 or self._actions.stop():
                return found
            named = f"{closed[0].kind} {closed[0].name}: {closed[0].held_up_by}"
            self._actions.note(f"waiting up to {left:.0f} s at step {closed[0].step} of {named}")

    def undo(self) -> list[CutoverStatus]:
        """Takes back the groups that have not consumed at the target."""
        found = []
        for name in self.names:
            saved = self.state.groups.get(name, GroupState())
            gate, done = None, "not written"
            if saved.step >= CutoverStep.MOVING:
                hint = "go back by a cutover from the target to the source with {back_of} {}"
                gate = ClosedGate(CutoverStep.MOVING, "it has consumed at the target", Advice(hint, str(self._path)))
            elif saved.step:
                gate, done = self._take_back(saved), "taken back"
            found.append(CutoverStatus("group", name, gate, done=done))
        return found

    def _take_back(self, saved: GroupState) -> ClosedGate | None:
        if not self._execute:
            return ClosedGate(CutoverStep.WRITTEN, "nothing", Advice("add {execute=True} to take it back"))
        self._actions.confirm(f"restore what {self._target.store.uri} held before {saved.plan} was applied?")
        if problem := self._actions.undo(Path(saved.plan)) if _has_begun(Path(saved.plan)) else "":
            return ClosedGate(
                CutoverStep.WRITTEN, problem, "stop its consumers at the target, and run the same command again"
            )
        saved.step, saved.plan, saved.seen = 0, "", None
        self._save()
        return None

    def _save(self) -> None:
        if self._execute:
            self.state.save(self._path)

    def _round(self) -> list[CutoverStatus]:
        resumed = dict(filter(None, map(self._resume, self.names)))
        self._remove_static_members()
        first = self._look()
        self._pause()
        second = self._look()
        groups, observed = self._observe(first, second)
        found, writable = [], []
        for name in self.names:
            gate = resumed.get(name) or self._group(name, groups[name])
            if gate is not None and gate.step is CutoverStep.WRITTEN and name not in resumed:
                writable.append(name)
            found.append(CutoverStatus("group", name, gate, without_offset(groups[name]) if gate else ""))
        self._save()
        if writable and self._execute:
            self._actions.confirm(
                f"write the offsets of {count_of(len(writable), 'group')} at {self._target.store.uri}?"
            )
            wrote = {name: self._write(name, groups[name]) for name in writable}
            found = [one._replace(gate=wrote.get(one.name, one.gate)) for one in found]
        for topic in sorted(observed):
            if self._has_steps(topic):
                found.append(CutoverStatus("topic", topic, self._topic(topic, observed[topic], groups)))
        self._save()
        return found

    def _pause(self) -> None:
        end = time.monotonic() + self._options.interval_s
        while (left := end - time.monotonic()) > 0 and not self._actions.stop():
            time.sleep(min(left, 0.2))

    # --- observations ------------------------------------------------------------------------------

    def _target_name(self, group: str) -> str:
        return self._options.renames.get(group, group)

    def _is_back(self, topic: str) -> bool:
        """Whether the source's topic is the copy of the target's."""
        return self._first is not None and topic not in self._after

    def _has_steps(self, topic: str) -> bool:
        """Whether producers of the topic are moved: on the way back, they may not have left."""
        outputs = {one for topics in self._options.outputs.values() for one in topics}
        return not self._is_back(topic) and (topic not in outputs or topic in self._consumed)

    def _look(self) -> _Look:
        names = {self._target_name(name): name for name in self.names}
        source = {one.name: one for one in self._source.store.scan(list(self.names))}
        target = {names[one.name]: one for one in self._target.store.scan(list(names))}
        self._consumed = {tp.topic for one in source.values() for tp in (*one.offsets, *one.errors)}
        saved = filter(None, map(self.state.groups.get, self.names))
        self._consumed |= {tp.topic for one in saved for tp in one.source}  # the source's may have expired
        topics = self._consumed | {one for found in self._options.outputs.values() for one in found}
        renamed = {topic: self._rename(topic) for topic in topics}
        self._counts = self._source.cluster.topics(topics), self._target.cluster.topics(renamed.values())
        both = [topic for topic in topics if self._counts[0].get(topic) == self._counts[1].get(renamed[topic])]
        tps = [TopicPartition(topic, n) for topic in both for n in range(self._counts[0].get(topic, 0))]
        there = self._target.cluster.log_ranges([self._rename.partition(tp) for tp in tps])
        in_target = {tp: there[self._rename.partition(tp)] for tp in tps}
        return _Look(source, target, self._source.cluster.log_ranges(tps), in_target)

    def _observe(self, first: _Look, second: _Look) -> tuple[dict[str, GroupObservation], dict[str, TopicObservation]]:
        topics = {tp.topic for tp in second.source_logs}
        empty = GroupOffsets("", {})
        members = self._described(self.names)
        reads = {
            name: (
                Reads(first.source.get(name, empty), second.source.get(name, empty)),
                Reads(first.target.get(name, empty), second.target.get(name, empty)),
            )
            for name in self.names
        }
        wanted = self._positions(reads, members, second)
        self._load(wanted, second)
        open_ = self._open_transactions(second.source_logs)
        observed = {}
        for topic in topics:
            of_topic = [tp for tp in second.source_logs if tp.topic == topic]
            logs = [{tp: log[tp] for tp in of_topic if tp in log} for log in (*first[2:], *second[2:])]
            observed[topic] = TopicObservation(
                topic,
                (logs[0], logs[2]),
                (logs[1], logs[3]),
                {tp: why for tp, why in open_.items() if tp.topic == topic},
                {tp: self._lacking(tp) for tp in of_topic},
                {tp: self._answer(tp, log.end) if isinstance(log, LogRange) else log for tp, log in logs[2].items()},
            )
        session_s = self._session_s() if any(static_members(one) for pair in members.values() for one in pair) else 0
        groups = {}
        for name, (source, target) in reads.items():
            own = sorted({tp.topic for tp in (*source.now.offsets, *source.now.errors)})
            lacking = {
                tp: number for topic in own if topic in observed for tp, number in observed[topic].lacking.items()
            }
            answers = {tp: self._answer(tp, one.offset) for tp, one in source.now.offsets.items()}
            groups[name] = GroupObservation(
                name,
                self._target_name(name),
                {topic: self._rename(topic) for topic in own},
                self._counts,
                source,
                target,
                members[name],
                lacking,
                answers,
                [observed[topic] for topic in self._options.outputs.get(name, ()) if topic in observed],
                session_s,
            )
        return groups, observed

    def _described(self, names: Iterable[str]) -> dict[str, tuple[MemberAnswer, MemberAnswer]]:
        names = list(names)
        source = self._source.cluster.describe_groups(names)
        target = self._target.cluster.describe_groups([self._target_name(name) for name in names])
        return {name: (source[name], target[self._target_name(name)]) for name in names}

    def _session_s(self) -> int:
        """Returns the longest session that the source's brokers allow; 0 if they do not report it."""
        brokers = self._source.cluster.describe_brokers()
        found = brokers and self._source.cluster.broker_setting(brokers[0].id, "group.max.session.timeout.ms")
        return int(found) // 1000 if found else 0

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
        self,
        reads: Mapping[str, tuple[Reads, Reads]],
        members: Mapping[str, tuple[MemberAnswer, MemberAnswer]],
        look: _Look,
    ) -> set[tuple[TopicPartition, int]]:
        """Returns the positions of the source that this round translates: the ends of the logs of topics that some gate
        asks for, and the positions of groups that have stopped."""
        unwritten = [name for name in self.names if self._step_of(name) < CutoverStep.WRITTEN]
        held = {tp.topic for name in unwritten for tp in reads[name][0].now.offsets}
        topics = held | {one for name in unwritten for one in self._options.outputs.get(name, ())}
        topics |= {one for one in self._consumed - held if self._has_steps(one) and not self._is_copied(one)}
        ends = look.source_logs.items()
        wanted = {(tp, log.end) for tp, log in ends if tp.topic in topics and isinstance(log, LogRange)}
        for name in unwritten:
            if not members_text(members[name][0]) and reads[name][0].changed() is None:
                positions = reads[name][0].positions.items()
                wanted |= {(tp, offset) for tp, offset in positions if tp in look.source_logs}
        return wanted

    def _step_of(self, group: str) -> int:
        saved = self.state.groups.get(group)
        return 0 if saved is None else saved.step

    def _is_copied(self, topic: str) -> bool:
        saved = self.state.topics.get(topic)
        return saved is not None and saved.step >= CutoverStep.REPLICATOR

    def _translated_by(self, topic: str) -> Translations:
        back = self._is_back(topic)
        if back not in self._translations:
            self._translations[back] = self._actions.translations(back)
        return self._translations[back]

    def _load(self, wanted: Iterable[tuple[TopicPartition, int]], look: _Look) -> None:
        """Translates the positions. A translation is repeated if one of the two logs has changed."""
        by_rules: dict[bool, list[tuple[TopicPartition, int]]] = {}
        for tp, position in wanted:
            ends = look.source_logs[tp], look.target_logs[tp]
            if self._ends.get(tp) != ends:
                self._translated_by(tp.topic).partitions.pop(tp, None)
                self._ends[tp] = ends
            by_rules.setdefault(self._is_back(tp.topic), []).append((tp, position))
        for positions in by_rules.values():
            self._translated_by(positions[0][0].topic).load(positions)

    def _lacking(self, tp: TopicPartition) -> int | OffsetMgrError | None:
        found = self._translated_by(tp.topic).partitions.get(tp)
        return None if found is None else found.error or found.lacking

    def _answer(self, tp: TopicPartition, position: int) -> TranslatedOffset | OffsetMgrError:
        translations = self._translated_by(tp.topic)
        found = translations.partitions.get(tp)
        if found is None or (found.error is None and position not in found.translations):
            return PlanError(str(tp), "not compared yet", "run the same command again")
        return translations.get(tp, position)

    def _remove_static_members(self) -> None:
        """Removes the static members of groups that have no others. `_returned` has those that come back."""
        self._removed: dict[str, set[str]] = {}
        waiting = [name for name in self.names if self._step_of(name) < CutoverStep.WRITTEN]
        if not (self._execute and self._options.remove_static_members and waiting):
            return
        for name, described in self._source.cluster.describe_groups(waiting).items():
            if static := static_members(described):
                self._actions.confirm(f"remove static members {list_of(static, 3)} of group {name} at the source?")
                outcomes = self._source.cluster.remove_static_members(name, static)
                if error := next((one for one in outcomes.values() if one is not None), None):
                    raise error
                self._removed[name] = set(static)

    # --- the steps of a group ----------------------------------------------------------------------

    def _group(self, name: str, one: GroupObservation) -> ClosedGate | None:
        saved = self.state.groups.setdefault(name, GroupState())
        if saved.step >= CutoverStep.MOVING:
            return None
        if saved.step >= CutoverStep.WRITTEN:
            gate = left_source(one, saved.source)
            if gate is None and saved.step < CutoverStep.STARTED and (gate := started(one, saved.written)) is None:
                saved.pass_step(CutoverStep.STARTED)
            if gate is None and (gate := moving(one, saved.written, self._followed(saved.written))) is None:
                saved.pass_step(CutoverStep.MOVING)
            return gate
        if len({self._is_back(topic) for topic in one.topics}) > 1:
            later = list_of(sorted(self._after.intersection(one.topics)), 3)
            why = f"the producers of {later} write at the source, and those of its other topics do not"
            return ClosedGate(CutoverStep.READY, why, "move the producers of all topics of the group first")
        seen, saved.seen = saved.seen if saved.seen is not None else self._first_offsets(one), one.target.positions
        returned = self._removed.get(name, set()).intersection(static_members(one.members[0]))
        gate = ready(one, seen, self._options.max_behind) or stopped(one, returned) or translated(one)
        return gate or ClosedGate(CutoverStep.WRITTEN, "nothing", Advice("add {execute=True} to write its offsets"))

    def _first_offsets(self, one: GroupObservation) -> dict[TopicPartition, int] | None:
        """On the way back: the offsets that the first cutover left at its source."""
        saved = None if self._first is None else self._first.groups.get(one.target_name)
        return None if saved is None or saved.step < CutoverStep.WRITTEN else saved.source

    def _followed(self, written: Iterable[TopicPartition]) -> Callable[[TopicPartition, int], bool]:
        """Returns a function that tells whether a log of the target has a record at or after an offset. The markers of
        transactions are no records. A log that cannot be read counts as one with records."""
        cluster = self._target.cluster
        logs = cluster.log_ranges(written)

        def follow(tp: TopicPartition, offset: int) -> bool:
            log = logs[tp]
            if isinstance(log, OffsetMgrError):
                return True
            at = max(offset, log.start)
            while at < log.end:
                data = cluster.read_log(tp, at, _LOOK_BYTES)
                if isinstance(data, OffsetMgrError):
                    return True
                found = list(batches(data, at))
                if any(batch.records for batch in found):
                    return True
                if not found:
                    return False
                at = found[-1].last_offset + 1
            return False

        return follow

    def _write(self, name: str, one: GroupObservation) -> ClosedGate | None:
        """Plans the group and applies the plan, unless the group has moved in the source meanwhile."""
        saved, path = self.state.groups[name], self._plan_path(name)
        back = any(self._is_back(topic) for topic in one.topics)
        rewind = back and one.target.positions == self._first_offsets(one)
        plan = self._actions.plan(name, path, back, rewind)
        problems = [plan.error] if plan.error else []
        problems += [f"{step.tp}: {step.note}" for step in plan.steps if _is_left(step.action)]
        now = next(iter(self._source.store.scan([name])), GroupOffsets(name, {}))
        gate = ClosedGate(
            CutoverStep.TRANSLATED, "; ".join(problems[:3]), "see the offsets of both clusters: offsets diff"
        )
        if not problems:
            described = self._source.cluster.describe_groups([name])[name]
            text = members_text(described) or Reads(one.source.now, now).changed()
            gate = ClosedGate(
                CutoverStep.STOPPED, f"while it was translated: {text}", f"stop the consumers of group {name}"
            )
            problems = [f"{text}"] if text else []
        if problems:
            path.unlink(missing_ok=True)
            return gate
        saved.plan, saved.source = str(path), one.source.positions
        saved.written = {step.tp: step.after.offset for step in plan.steps if step.source and step.after}
        saved.pass_step(CutoverStep.TRANSLATED)
        self._save()
        return self._apply(name, saved)

    def _apply(self, name: str, saved: GroupState) -> ClosedGate:
        if problem := self._actions.apply(Path(saved.plan)):
            return ClosedGate(CutoverStep.WRITTEN, problem, "run the same command again")
        saved.pass_step(CutoverStep.WRITTEN)
        self._save()
        text = "no consumer at the target"
        return ClosedGate(
            CutoverStep.STARTED, text, f"start the consumers of group {self._target_name(name)} at the target"
        )

    def _plan_path(self, group: str) -> Path:
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", f"{self._path.stem}-{group}")[:180]
        paths = (self._path.with_name(f"{stem}-{number}.plan") for number in count(1))
        return next(path for path in paths if not path.exists() and not journal_path(path).exists())

    def _resume(self, name: str) -> tuple[str, ClosedGate] | None:
        """Ends the work of a run that was killed between the plan of a group and the end of the write. Returns the name
        with its closed gate; None if no run was killed there, or the group begins again."""
        saved = self.state.groups.get(name)
        if saved is None or saved.step != CutoverStep.TRANSLATED:
            return None
        if not self._execute:
            then = Advice("add {execute=True} to continue")
            return name, ClosedGate(CutoverStep.WRITTEN, "an earlier run was stopped before the end of the write", then)
        path, begun = Path(saved.plan), _has_begun(Path(saved.plan))
        now = next(iter(self._source.store.scan([name])), GroupOffsets(name, {}))
        described = self._source.cluster.describe_groups([name])[name]
        if begun and not members_text(described) and Reads(now, now).positions == saved.source:
            return name, self._apply(name, saved)
        if begun and (problem := self._actions.undo(path)):
            return name, ClosedGate(CutoverStep.WRITTEN, problem, "run the same command again")
        if not begun:
            path.unlink(missing_ok=True)
        saved.step, saved.plan, saved.seen = 0, "", None
        self._save()
        return None

    # --- the steps of a topic ----------------------------------------------------------------------

    def _topic(self, name: str, one: TopicObservation, groups: Mapping[str, GroupObservation]) -> ClosedGate | None:
        saved = self.state.topics.setdefault(name, TopicState(target=self._rename(name)))
        if saved.step >= CutoverStep.PRODUCING:
            return None
        if saved.step < CutoverStep.REPLICATOR:
            gate = waits_for_groups(self._users(name, groups), self._moved(), self.state.excused)
            for step, closed in (
                (CutoverStep.PRODUCERS_STOPPED, gate or producers_stopped(one)),
                (CutoverStep.COPIED, copied(one)),
                (CutoverStep.REPLICATOR, replicator_stopped(one, is_stopped=self._options.replicator_stopped)),
            ):
                if closed is not None:
                    return closed
                saved.pass_step(step)
            saved.ends = {tp: log.end for tp, log in one.target[1].items() if isinstance(log, LogRange)}
        if (gate := producing(one, saved.ends)) is None:
            saved.pass_step(CutoverStep.PRODUCING)
        return gate

    def _moved(self) -> set[str]:
        return {name for name, saved in self.state.groups.items() if saved.step >= CutoverStep.MOVING}

    def _users(self, topic: str, groups: Mapping[str, GroupObservation]) -> set[str]:
        """Returns the groups of the source with offsets in the topic, also those that are not selected. They are read
        once, and again for a topic that no selected group holds up."""
        users = {name for name, one in groups.items() if topic in one.topics}
        if self._everybody is None or users <= self._moved():
            names = list(self._source.store.groups())
            self._everybody = {one.name: one for one in self._source.store.scan(names)}
        others = self._everybody.items()
        return users | {name for name, one in others if any(tp.topic == topic for tp in (*one.offsets, *one.errors))}


def _is_left(action: Action) -> bool:
    """Whether a plan leaves a partition of the source as it is in the target although the offsets differ."""
    return action.rejects or action is Action.KEEP_NEWER


def _has_begun(plan: Path) -> bool:
    """Whether a run of apply may have written offsets of the plan."""
    return plan.exists() and bool(open_plan(plan)[1].apply.intents)
