"""The steps of a cutover, which moves groups and then the producers of their topics to another cluster, and the gates
between the steps. Pure: a gate decides from what was observed.

The consumers move first. While the producers write only at the source, all records of the target are copies, and every
step can be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.cutover_options import ReverseReplicator
from offsetmgr.core.document import DocumentPart, Items, Paragraph, SectionTitle, Table
from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.core.model import GroupDescription, GroupMember, LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.translation.translator import TranslatedOffset

_SHOWN: Final = 3


class CutoverStep(IntEnum):
    """A step of a cutover. The first six are those of a group, the others those of a topic."""

    READY = 1
    STOPPED = 2
    TRANSLATED = 3
    WRITTEN = 4
    STARTED = 5
    MOVING = 6
    PRODUCERS_STOPPED = 7
    COPIED = 8
    REPLICATOR = 9
    PRODUCING = 10

    @property
    def text(self) -> str:
        return f"{self.value} {_TITLES[self]}"


_TITLES: Final = {
    CutoverStep.READY: "ready",
    CutoverStep.STOPPED: "stopped at the source",
    CutoverStep.TRANSLATED: "translated",
    CutoverStep.WRITTEN: "written",
    CutoverStep.STARTED: "started at the target",
    CutoverStep.MOVING: "moving",
    CutoverStep.PRODUCERS_STOPPED: "producers stopped",
    CutoverStep.COPIED: "copied to the end",
    CutoverStep.REPLICATOR: "replicator stopped",
    CutoverStep.PRODUCING: "producers at the target",
}
LAST_OF_GROUP: Final = CutoverStep.MOVING
LAST_OF_TOPIC: Final = CutoverStep.PRODUCING


class ClosedGate(NamedTuple):
    """A closed gate. ``why`` names who or what holds it up, and ``next`` is what to do next."""

    step: CutoverStep
    why: str
    next: str


class CutoverStatus(NamedTuple):
    """The progress of a group or a topic. ``gate`` is the closed gate; None if it is through. ``note`` is a fact that
    does not hold it up, and ``done`` the word for a step without a closed gate."""

    kind: str
    name: str
    gate: ClosedGate | None
    note: str = ""
    done: str = "through"

    @property
    def step(self) -> str:
        return self.done if self.gate is None else self.gate.step.text

    @property
    def held_up_by(self) -> str:
        return "" if self.gate is None else self.gate.why

    @property
    def next(self) -> str:
        return "" if self.gate is None else self.gate.next


Positions: TypeAlias = Mapping[TopicPartition, int]
LogRanges: TypeAlias = Mapping[TopicPartition, LogRange | OffsetMgrError]
MemberAnswer: TypeAlias = GroupDescription | OffsetMgrError


class Reads(NamedTuple):
    """The offsets of a group in one cluster, which were read twice, with an interval between."""

    before: GroupOffsets
    now: GroupOffsets

    def changed(self) -> TopicPartition | None:
        """Returns a partition whose commit changed within the interval, or was deleted in it."""
        gone = next((tp for tp in self.before.offsets if tp not in self.now.offsets), None)
        return self.now.first_change(self.before) or gone

    def offset(self, tp: TopicPartition) -> int | None:
        found = self.now.offsets.get(tp)
        return None if found is None else found.offset

    @property
    def positions(self) -> dict[TopicPartition, int]:
        return {tp: found.offset for tp, found in self.now.offsets.items()}


@dataclass(frozen=True, slots=True)
class GroupObservation:
    """An observation of a group. ``topics`` maps its topics in the source to their names in the target, and ``counts``
    has the partitions of both. ``lacking`` are the numbers of records that the target lacks, by partition of the
    source. ``translated`` are the answers for its positions. ``outputs`` are the topics to which it writes exactly
    once."""

    name: str
    target_name: str
    topics: Mapping[str, str]
    counts: tuple[Mapping[str, int], Mapping[str, int]]
    source: Reads
    target: Reads
    members: tuple[MemberAnswer, MemberAnswer]
    lacking: Mapping[TopicPartition, int | OffsetMgrError | None]
    translated: Mapping[TopicPartition, TranslatedOffset | OffsetMgrError]
    outputs: Sequence[TopicObservation] = ()
    session_s: int = 0
    """The longest session of a static member that the source's brokers allow."""


@dataclass(frozen=True, slots=True)
class TopicObservation:
    """An observation of a topic. The logs were read twice, with an interval between; the logs of both clusters are by
    partition of the source. ``open`` are the partitions of the source with an open transaction. ``last`` are the
    answers for the ends of the source's logs."""

    name: str
    source: tuple[LogRanges, LogRanges]
    target: tuple[LogRanges, LogRanges]
    open: Mapping[TopicPartition, str]
    lacking: Mapping[TopicPartition, int | OffsetMgrError | None]
    last: Mapping[TopicPartition, TranslatedOffset | OffsetMgrError]


# The gates of a group.


def members_text(described: MemberAnswer) -> str:
    """Names the members of a group; empty if it has none."""
    if isinstance(described, OffsetMgrError):
        return f"the members are not known: {described}"
    if described.members:
        static = [f" (static: {one.instance_id})" if one.instance_id else "" for one in described.members]
        named = [f"{_member(one)}{kind}" for one, kind in zip(described.members, static, strict=True)]
        return f"{count_of(len(named), 'member')}: {list_of(named, _SHOWN)}"
    return "" if described.idle else f"the group is in state {described.state}"


def _member(one: GroupMember) -> str:
    return (one.client_id or one.member_id) + (f" at {one.host}" if one.host else "")


def static_members(described: MemberAnswer) -> list[str]:
    """Returns the instance ids of the members if all of them are static."""
    found = [] if isinstance(described, OffsetMgrError) else [one.instance_id or "" for one in described.members]
    return found if all(found) else []


def ready(one: GroupObservation, seen: Positions | None, max_behind: int) -> ClosedGate | None:
    """Returns why the group must not be stopped yet. ``seen`` are the offsets that an earlier look found in the
    target, and on the way back those of the first cutover; None if there was none."""

    def closed(why: str, then: str) -> ClosedGate:
        return ClosedGate(CutoverStep.READY, why, then)

    if error := one.source.now.error or one.target.now.error:
        return closed(f"its offsets cannot be read: {error}", "run the same command again")
    for topic, renamed in one.topics.items():
        here, there = one.counts[0].get(topic), one.counts[1].get(renamed)
        if here is None:
            gone = f"topic {topic} was deleted at the source"
            return closed(gone, f"delete the offsets of the group for {topic}")
        if there is None:
            return closed(f"the target has no topic {renamed}", f"let the replicator copy topic {topic}")
        if here != there:
            text = f"{topic} has {count_of(here, 'partition')} at the source, and {renamed} has {there} at the target"
            return closed(text, f"create {renamed} with {here} partitions, and copy the topic again")
    if text := members_text(one.members[1]):
        return closed(f"at the target, {text}", f"stop the consumers of group {one.target_name} at the target")
    if changed := _written_by_others(one, seen):
        return closed(changed, "stop what commits there: MirrorMaker 2 does with sync.group.offsets.enabled")
    return _behind(one, max_behind)


def _written_by_others(one: GroupObservation, seen: Positions | None) -> str:
    """Names an offset in the target that another program writes; empty if there is none."""
    now, before = one.target.positions, {tp: found.offset for tp, found in one.target.before.offsets.items()}
    for earlier in (before, now if seen is None else seen):
        for tp in {**now, **earlier}:
            if now.get(tp) != earlier.get(tp):
                moved = f"{tp} went from {earlier.get(tp, 'no offset')} to {now.get(tp, 'no offset')}"
                return f"another program commits at the target: {moved}"
    return ""


def _behind(one: GroupObservation, most: int) -> ClosedGate | None:
    for topic in one.topics:
        lacking = {tp: number for tp, number in one.lacking.items() if tp.topic == topic}
        for tp, number in lacking.items():
            if not isinstance(number, int):
                why = f": {number}" if number else ""
                text = f"how far the replicator is behind in {tp} is not known{why}"
                return ClosedGate(CutoverStep.READY, text, "wait until the replicator has caught up; see offsets diff")
        behind = sum(number for number in lacking.values() if isinstance(number, int))
        if behind > most:
            text = f"the replicator is {count_of(behind, 'record')} behind in {topic}, more than {most:,}"
            return ClosedGate(
                CutoverStep.READY, text, Advice("wait for the replicator, or allow more with {max_behind}")
            )
    return None


def stopped(one: GroupObservation, returned: Collection[str] = ()) -> ClosedGate | None:
    """Returns who still consumes at the source. ``returned`` are static members that joined again after their
    removal."""
    stop = f"stop the consumers of group {one.name} at the source"
    described = one.members[0]
    if alive := sorted(returned):
        text = f"static member {list_of(alive, _SHOWN)} came back after it was removed, so it is alive"
        return ClosedGate(CutoverStep.STOPPED, text, stop)
    if text := members_text(described):
        if static := static_members(described):
            stays = f"until their sessions end, after at most {one.session_s} s" if one.session_s else "for a session"
            text = f"{text}; static members stay {stays}"
            stop = f"{stop}; if {list_of(static, _SHOWN)} is stopped: "
            return ClosedGate(CutoverStep.STOPPED, text, Advice("{}add {remove_static_members=True}", stop))
        return ClosedGate(CutoverStep.STOPPED, text, stop)
    for pending, error in one.source.now.errors.items():
        if error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            text = f"an open transaction holds an offset of {pending}"
            return ClosedGate(
                CutoverStep.STOPPED, text, f"let the producer of group {one.name} end its transaction, or abort it"
            )
        return ClosedGate(
            CutoverStep.STOPPED, f"the offset of {pending} cannot be read: {error}", "run the same command again"
        )
    if (tp := one.source.changed()) is not None:
        return ClosedGate(
            CutoverStep.STOPPED, f"it has just committed {tp} at {one.source.offset(tp)} without a member", stop
        )
    return None


def translated(one: GroupObservation) -> ClosedGate | None:
    """Returns why an offset has no sure place in the target, or an output topic is not copied to its end."""
    for tp, found in one.translated.items():
        why = f"{found}" if isinstance(found, OffsetMgrError) else found.problem
        if why:
            hint = (found.hint if isinstance(found, OffsetMgrError) else "") or "wait for the replicator"
            return ClosedGate(CutoverStep.TRANSLATED, Advice("{}: {}", f"{tp} at {one.source.offset(tp)}", why), hint)
    for topic in one.outputs:
        if topic.open:
            text = f"a transaction is open in output topic {_named(topic.open.values())}"
            return ClosedGate(CutoverStep.TRANSLATED, text, "let its producer end the transaction, or abort it")
        if closed := _incomplete(topic, CutoverStep.TRANSLATED):
            return closed._replace(why=f"output topic: {closed.why}")
    return None


def without_offset(one: GroupObservation) -> str:
    """Names the partitions for which the group has no offset."""
    counts, held = one.counts[0], one.source.now.offsets
    found = (TopicPartition(topic, n) for topic in one.topics for n in range(counts.get(topic, 0)))
    names = [tp for tp in found if tp not in held]
    return f"without an offset, starts by auto.offset.reset: {list_of(names, _SHOWN)}" if names else ""


def moved_at_source(one: GroupObservation, planned: Positions) -> str:
    """Names an offset in the source that is not the one that was translated; empty if there is none. An offset may
    expire after its translation."""
    for tp, found in one.source.now.offsets.items():
        if planned.get(tp) != found.offset:
            return f"{tp} is at {found.offset} at the source, and was translated at {planned.get(tp, 'no offset')}"
    return ""


def left_source(one: GroupObservation, planned: Positions) -> ClosedGate | None:
    """Returns who uses a written group at the source."""
    again = Advice("stop its consumers in both clusters, take it back with {undo=True}, and run the command again")
    if text := moved_at_source(one, planned):
        return ClosedGate(CutoverStep.STARTED, f"it committed after the write: {text}", again)
    if text := members_text(one.members[0]):
        return ClosedGate(
            CutoverStep.STARTED, f"at the source, {text}", f"stop the consumers of group {one.name} at the source"
        )
    return None


def started(one: GroupObservation, written: Positions) -> ClosedGate | None:
    """Returns why a written group has not started at the target."""
    if members_text(one.members[1]) and not isinstance(one.members[1], OffsetMgrError):
        return None
    for tp, offset in written.items():
        if (now := one.target.offset(tp)) != offset:
            text = f"without a member at the target, {tp} is at {now} and not at {offset} as written"
            then = "start its consumers at the target; if they did not run there, find out who commits"
            return ClosedGate(CutoverStep.STARTED, text, then)
    text = members_text(one.members[1]) or "no consumer at the target"
    return ClosedGate(CutoverStep.STARTED, text, f"start the consumers of group {one.target_name} at the target")


def moving(
    one: GroupObservation, written: Positions, follow: Callable[[TopicPartition, int], bool]
) -> ClosedGate | None:
    """Returns the partitions in which the group has not committed beyond the written offset although records follow.
    ``follow`` tells whether a log of the target has a record at or after an offset."""
    idle = [tp for tp, offset in written.items() if (one.target.offset(tp) or 0) <= offset and follow(tp, offset)]
    if not idle:
        return None
    text = f"no commit at the target beyond the written one in {list_of(idle, _SHOWN)}"
    return ClosedGate(
        CutoverStep.MOVING, text, f"check that the consumers of group {one.target_name} consume at the target"
    )


# The gates of a topic.


def waits_for_groups(groups: Iterable[str], moved: Collection[str], excused: Collection[str]) -> ClosedGate | None:
    """Returns the groups of the source that hold up the producers of a topic."""
    left = sorted(set(groups).difference(moved, excused))
    if not left:
        return None
    text = f"{count_of(len(left), 'group')} still at the source: {list_of(left, _SHOWN)}"
    return ClosedGate(
        CutoverStep.PRODUCERS_STOPPED, text, Advice("move these groups first; {excuse} leaves one behind")
    )


def producers_stopped(one: TopicObservation) -> ClosedGate | None:
    stop = f"stop the producers of topic {one.name} at the source"
    if grown := _grown(one.source):
        return ClosedGate(CutoverStep.PRODUCERS_STOPPED, f"the source's log still changes: {_named(grown)}", stop)
    if one.open:
        return ClosedGate(CutoverStep.PRODUCERS_STOPPED, f"a transaction is open in {_named(one.open.values())}", stop)
    return None


def copied(one: TopicObservation) -> ClosedGate | None:
    return _incomplete(one, CutoverStep.COPIED)


def _incomplete(one: TopicObservation, step: CutoverStep) -> ClosedGate | None:
    wait = "wait until the replicator has copied the last record"
    for tp, found in one.last.items():
        number = one.lacking.get(tp)
        if isinstance(found, OffsetMgrError):
            return ClosedGate(step, f"the ends of {tp} cannot be compared: {found}", found.hint or wait)
        if isinstance(number, int) and number:
            return ClosedGate(step, f"{count_of(number, 'record')} of {tp} not at the target", wait)
        if found.problem or number is None:
            return ClosedGate(step, Advice("the end of {}: {}", str(tp), found.problem or "not known"), wait)
    return None


def replicator_stopped(one: TopicObservation, *, is_stopped: bool) -> ClosedGate | None:
    if not is_stopped:
        return ClosedGate(
            CutoverStep.REPLICATOR,
            "you have not said that the replicator is stopped",
            Advice(f"stop the replication of topic {one.name} to the target; then add {{replicator_stopped=True}}"),
        )
    if grown := _grown(one.target):
        text = f"the target's log still changes: {_named(grown)}"
        return ClosedGate(CutoverStep.REPLICATOR, text, f"stop the replication of topic {one.name} to the target")
    return None


def producing(one: TopicObservation, ends: Positions) -> ClosedGate | None:
    """``ends`` are those of the target's logs when the replicator had stopped, by partition of the source."""
    now = one.target[1]
    if any(isinstance(found := now.get(tp), LogRange) and found.end > end for tp, end in ends.items()):
        return None
    text = "no new record at the target"
    return ClosedGate(CutoverStep.PRODUCING, text, f"start the producers of topic {one.name} at the target")


def _grown(reads: tuple[LogRanges, LogRanges]) -> list[str]:
    """Names the partitions whose end changed, or is not known."""
    before, now = reads
    failed = [f"{tp} ({found})" for tp, found in now.items() if isinstance(found, OffsetMgrError)]
    ends = {tp: found.end for tp, found in before.items() if isinstance(found, LogRange)}
    return failed or [str(tp) for tp, one in now.items() if isinstance(one, LogRange) and one.end != ends.get(tp)]


def _named(partitions: Iterable[object]) -> str:
    return list_of(partitions, _SHOWN)


# The document.


def next_lines(standings: Sequence[CutoverStatus]) -> list[str]:
    """Returns what to do next, each with the groups and topics that wait for it."""
    found: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for one in standings:
        if one.gate is not None:
            found.setdefault(str(one.next), []).append(f"{one.kind} {one.name}")
            texts[str(one.next)] = one.next
    return [Advice("{}: {}", list_of(names, _SHOWN), texts[text]) for text, names in found.items()]


_STEPS: Final = (
    (
        CutoverStep.READY,
        "Waits until the topics of the group are copied, and nothing else uses it at the target.",
        "nobody",
    ),
    (CutoverStep.STOPPED, "Stops the consumers of the group at the source.", "operator"),
    (CutoverStep.TRANSLATED, "Finds the same records at the target.", "command"),
    (CutoverStep.WRITTEN, "Writes the offsets at the target, under the lock of the group.", "command"),
    (CutoverStep.STARTED, "Starts the consumers of the group at the target.", "operator"),
    (CutoverStep.MOVING, "Waits for commits beyond the written ones.", "nobody"),
    (CutoverStep.PRODUCERS_STOPPED, "When all groups have moved: stops the producers at the source.", "operator"),
    (CutoverStep.COPIED, "Waits until the last record of the source is the last one of the target.", "nobody"),
    (
        CutoverStep.REPLICATOR,
        "Stops the replicator; with a way back, starts the reverse one at the target's end.",
        "operator",
    ),
    (CutoverStep.PRODUCING, "Starts the producers at the target.", "operator"),
)


def document_parts(
    standings: Sequence[CutoverStatus], way_back: ReverseReplicator, commands: Mapping[str, Invocation]
) -> list[DocumentPart]:
    """Returns the runbook: where everything stands, all steps with who does them, and the ways back. ``commands`` are
    the invocations to ``continue``, to ``undo`` and to go ``back``."""
    states = [(one.kind, one.name, one.step, one.held_up_by, one.note) for one in standings]
    columns = {"kind": "words", "name": "name", "step": "words", "held up by": "words", "note": "words"}
    steps = [(step.text, what, who) for step, what, who in _STEPS]
    after = way_back_text(way_back)
    return [
        SectionTitle("Where everything stands"),
        Table(columns, states),
        SectionTitle("Next"),
        Items([f"{Advice('{}', line).command_line()}" for line in next_lines(standings)] or ["Everything is through."]),
        Paragraph(f"Then: {commands['continue'].command_line()}"),
        SectionTitle("Steps"),
        Table({"step": "words", "what happens": "words", "who": "words"}, steps),
        SectionTitle("Ways back"),
        Items(
            [
                f"Before step {CutoverStep.MOVING.text}: {commands['undo'].command_line()}",
                f"From then on: {commands['back'].command_line()}",
                f"After step {CutoverStep.PRODUCING.text}: {after}",
            ]
        ),
    ]


def way_back_text(way_back: ReverseReplicator) -> str:
    """Says whether there is a way back after the producers have started at the target."""
    if way_back is ReverseReplicator.RUNNING:
        return "the reverse replicator runs, so there is a way back after producers start at the target"
    return "no reverse replicator runs, so there is no way back after producers start at the target"
