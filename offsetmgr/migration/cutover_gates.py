"""The steps of a cutover, which moves groups and then the producers of their topics to another cluster, and the gates
between the steps. Pure: a gate decides from what was observed.

The consumers move first. While the producers write only at the source, all records of the target are copies, and every
step can be taken back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice, Invocation, for_command_line
from offsetmgr.core.batches import by_key
from offsetmgr.core.cutover_options import ReverseReplicator
from offsetmgr.core.document import DocumentPart, Items, Paragraph, SectionTitle, Table
from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.core.model import GroupDescription, GroupMember, LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.migration.plan import Action, GroupPlan, PlanStep
from offsetmgr.migration.translated_groups import client_state_error
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import TranslatedOffset

_SHOWN: Final = 3
_SHOWN_OPTIONS: Final = 20
READ_MORE: Final = Advice("a larger {max_read} reads further back")
QUIET_INTERVALS: Final = 15
"""After the commit of another program at the target, a group waits until nothing is committed there for so many
intervals: with the default, 75 seconds. MirrorMaker 2 writes offsets every 60 seconds."""


class Gate(IntEnum):
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
        return f"{self.value} {_STEPS[self.value - 1][0]}"


class ClosedGate(NamedTuple):
    """A closed gate. ``why`` names who or what holds it up, and ``next`` is what to do next. ``may_open`` tells whether
    it may open while the command waits: a wait does not replace the operator's word."""

    step: Gate
    why: str
    next: str
    may_open: bool = True


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


Positions: TypeAlias = Mapping[str, int]
"""Offsets by partition as text."""
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

    @property
    def positions(self) -> dict[str, int]:
        return {str(tp): found.offset for tp, found in self.now.offsets.items()}


MissingRecords: TypeAlias = Callable[[TopicPartition], int | OffsetMgrError | None]
"""Returns how many records of a partition the target lacks; None if unknown."""
Answers: TypeAlias = Callable[[TopicPartition, int], TranslatedOffset | OffsetMgrError]
"""Returns the place of a position in the target."""


class TopicObservation(NamedTuple):
    """An observation of a topic, whose name in the other cluster is ``target``. ``counts`` are the numbers of
    partitions in the source and in the target. The logs were read twice, with an interval between; the logs of both
    clusters are by partition of the source. ``open`` are the partitions of the source with an open transaction, with
    texts. ``holes`` tells whether the operator accepts that the target lacks records although it holds later ones.
    ``recreated`` is the cluster in which the topic was deleted and created again since the cutover began with it."""

    name: str
    target: str
    counts: tuple[int | None, int | None]
    source: tuple[LogRanges, LogRanges]
    target_logs: tuple[LogRanges, LogRanges]
    open: Mapping[TopicPartition, str]
    holes: bool
    lacking: MissingRecords
    answer: Answers
    recreated: str = ""


class GroupObservation(NamedTuple):
    """An observation of a group. ``topics`` are those with its offsets in the source, by name. ``outputs`` are the
    topics to which it writes exactly once."""

    name: str
    target_name: str
    topics: Mapping[str, TopicObservation]
    source: Reads
    target: Reads
    members: tuple[MemberAnswer, MemberAnswer]
    outputs: Sequence[TopicObservation]

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of its topics."""
        return [TopicPartition(name, n) for name, topic in self.topics.items() for n in range(topic.counts[0] or 0)]


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


def ready(one: GroupObservation, other_writer: str, max_behind: int, interval_s: float) -> ClosedGate | None:
    """Returns why the group must not be stopped yet. ``other_writer`` is an offset in the target that another program
    has written lately; see `QUIET_INTERVALS`."""

    closed = partial(ClosedGate, Gate.READY)
    if error := one.source.now.error or one.target.before.error or one.target.now.error:
        return closed(f"its offsets cannot be read: {error}", "run the same command again")
    if not one.topics:
        then = "wait for its first commit; if there will be none, leave the group out"
        return closed("no offset of it is committed at the source", then)
    for tp, held in one.source.now.offsets.items():
        if error := client_state_error(tp, held):
            return closed(str(error), "move this group by its own tool, or leave it out", may_open=False)
    for topic in (*one.topics.values(), *one.outputs):
        if gate := uneven(topic, Gate.READY):
            return gate
    if text := members_text(one.members[1]):
        return closed(f"at the target, {text}", f"stop the consumers of group {one.target_name} at the target")
    if other_writer:
        gate = _other_program(other_writer)
        opens = f"the gate opens {QUIET_INTERVALS * interval_s:g} s after its last commit"
        return gate._replace(next=f"{gate.next}; {opens}")
    return _behind(one, max_behind)


def _other_program(change: str) -> ClosedGate:
    then = "stop what commits there, such as MirrorMaker 2 with sync.group.offsets.enabled"
    return ClosedGate(Gate.READY, f"another program commits at the target: {change}", then)


def difference(earlier: Positions, now: Positions) -> str:
    """Names an offset that has changed; empty if there is none."""
    changed = (tp for tp in {**now, **earlier} if now.get(tp) != earlier.get(tp))
    moved = (f"{tp} went from {earlier.get(tp, 'no offset')} to {now.get(tp, 'no offset')}" for tp in changed)
    return next(moved, "")


def uneven(one: TopicObservation, step: Gate) -> ClosedGate | None:
    """Returns why the partitions of a topic cannot correspond to those of its copy."""
    if one.recreated:
        why = f"topic {one.name} was deleted and created again at {one.recreated}, so its offsets are of another log"
        undo = Advice(
            "take back with {undo=True} the groups that have not consumed there, and begin in a new directory"
        )
        return ClosedGate(step, why, undo, may_open=False)
    here, there = one.counts
    if here is None:
        then = "check its name; if it was deleted, delete the offsets that groups have in it"
        return ClosedGate(step, f"the source has no topic {one.name}", then)
    if there is None:
        return ClosedGate(step, f"the target has no topic {one.target}", f"let the replicator copy topic {one.name}")
    if here == there:
        return None
    text = f"{one.name} has {count_of(here, 'partition')} at the source, and {one.target} has {there} at the target"
    return ClosedGate(step, text, f"give {one.target} {here} partitions, and let the replicator copy the topic")


def _behind(one: GroupObservation, most: int) -> ClosedGate | None:
    behind = Counter[str]()
    for tp in one.partitions:
        number, held = one.topics[tp.topic].lacking(tp), one.source.now.offsets.get(tp)
        place = None if held is None else one.topics[tp.topic].answer(tp, held.offset)
        if number is None and (place is None or (isinstance(place, TranslatedOffset) and not place.problem)):
            continue
        if not isinstance(number, int):
            text = f"the number of records of {tp} that the target lacks is not known{f': {number}' if number else ''}"
            hint = number.hint if isinstance(number, OffsetMgrError) else ""
            then = "wait until the replicator has caught up; see offsets diff"
            if isinstance(place, TranslatedOffset) and place.answer.verdict is Verdict.BRACKETED:
                then = Advice("if producers write at the target, add {accept=bracketed}: the group repeats records")
            return ClosedGate(Gate.READY, text, hint or then)
        behind[tp.topic] += number
    for topic, number in behind.items():
        if number > most:
            text = f"the replicator is {count_of(number, 'record')} behind in {topic}, more than {most:,}"
            then = Advice("check that it runs, then wait for it; or allow more with {max_behind}")
            return ClosedGate(Gate.READY, text, then)
    return None


def stopped(one: GroupObservation, returned: Collection[str] = (), *, removes: bool = False) -> ClosedGate | None:
    """Returns who still consumes at the source. ``returned`` are static members that joined again after their removal,
    and ``removes`` tells whether static members are removed, which a dry run does not do."""
    closed = partial(ClosedGate, Gate.STOPPED)
    stop = f"stop the consumers of group {one.name} at the source"
    if alive := sorted(returned):
        stop = f"{stop}, and wait until its session ends"
        return closed(f"static member {_named(alive)} came back after it was removed", stop)
    if text := members_text(one.members[0]):
        if static := static_members(one.members[0]):
            text += "; static members stay until their sessions end"
            add = "{}add {execute=True}" if removes else "{}add {remove_static_members=True}"
            stop = Advice(add, f"{stop}; if {_named(static)} is stopped: ")
        return closed(text, stop)
    for pending, error in one.source.now.errors.items():
        if error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            then = f"let the producer of group {one.name} end its transaction, or abort it"
            return closed(f"an open transaction holds an offset of {pending}", then)
        return closed(f"the offset of {pending} cannot be read: {error}", "run the same command again")
    if (tp := one.source.changed()) is not None:
        return closed(f"it has just committed {tp} without a member", stop)
    return None


def translated(one: GroupObservation) -> ClosedGate | None:
    """Returns why an offset has no sure place in the target, or an output topic is not copied to its end."""
    for tp, held in one.source.now.offsets.items():
        found = one.topics[tp.topic].answer(tp, held.offset)
        hint = "wait for the replicator"
        if isinstance(found, OffsetMgrError):
            why, hint = str(found), found.hint or hint
        elif (why := found.problem) and (found.answer.earlier_a or found.answer.earlier_b):
            hint = READ_MORE
        elif why and found.answer.verdict is not Verdict.NOT_YET:
            hint = "see offsets diff; if no verdict helps, set or delete this offset at the source"
            if found.answer.verdict is Verdict.MISSING:
                hint = "have a replicator copy these records; without them, the group never gets them"
        if why:
            return ClosedGate(Gate.TRANSLATED, Advice("{}: {}", f"{tp} at {held.offset}", why), hint)
    for topic in one.outputs:
        if topic.open:
            text = f"a transaction is open in output topic {_named(topic.open.values())}"
            return ClosedGate(Gate.TRANSLATED, text, "let its producer end the transaction, or abort it")
        if closed := copied(topic, Gate.TRANSLATED):
            return closed._replace(why=f"output topic: {closed.why}")
    return None


def places_text(groups: Iterable[GroupObservation], left_out: Mapping[str, int | None]) -> str:
    """Counts the positions of groups by verdict, and the records that the groups repeat and skip at the target.
    ``left_out`` has, by group, the number of those that an earlier move left out; None if unknown."""
    groups = list(groups)
    numbers = [left_out.get(one.name, 0) for one in groups]
    held = ((one, tp, at.offset) for one in groups for tp, at in one.source.now.offsets.items())
    found = [one.topics[tp.topic].answer(tp, position) for one, tp, position in held]
    answers = [one.answer for one in found if isinstance(one, TranslatedOffset)]
    verdicts = Counter(one.verdict for one in answers)
    text = f"{count_of(len(answers), 'position')}: {', '.join(f'{n:,} {verdict}' for verdict, n in verdicts.items())}"
    repeats = count_of(sum(one.repeats for one in answers), "record")
    skips = count_of(sum(one.missing for one in answers) + sum(filter(None, numbers)), "record")
    repeats = f"repeats at most {repeats}, without those that the replicator wrote twice"
    return f"{text}; {repeats}; skips {'an unknown number of records' if None in numbers else skips}"


def ahead(one: GroupObservation) -> ClosedGate | None:
    """Returns the partitions in which the target holds an offset beyond the translated one."""
    found, there = [], one.target.positions
    for tp, held in one.source.now.offsets.items():
        place = one.topics[tp.topic].answer(tp, held.offset)
        if isinstance(place, OffsetMgrError) or place.answer.offset is None:
            continue
        if (at := there.get(str(place.target), 0)) > place.answer.offset:
            found.append(f"{place.target} ({at}, not {place.answer.offset})")
    text = f"the target holds larger offsets than the translated ones: {_named(found)}"
    then = "if group {} has consumed at the target, use its other {state} file, or leave it out with {excuse} {}; "
    then = Advice(f"{then}delete these offsets only if it has not", one.target_name, one.name)
    return ClosedGate(Gate.TRANSLATED, text, then, may_open=False) if found else None


def without_offset(one: GroupObservation) -> str:
    """Names the partitions for which the group has no offset at the source, and how it starts there."""
    here, there = one.source.now, one.target.now.offsets
    names, own = list[TopicPartition](), list[str]()
    for tp in (tp for tp in one.partitions if tp not in here.offsets and tp not in here.errors):
        copy = TopicPartition(one.topics[tp.topic].target, tp.partition)
        if (held := there.get(copy)) is None:
            names.append(tp)
        else:
            own.append(f"{copy} at {held.offset}")
    texts = [f"without an offset, starts by auto.offset.reset: {list_of(names, _SHOWN)}"] if names else []
    texts += [f"without an offset at the source, starts at that of the target: {list_of(own, _SHOWN)}"] if own else []
    return "; ".join(texts)


def left_source(one: GroupObservation, planned: Positions, written: Positions) -> ClosedGate | None:
    """Returns who uses a written group at the source. A commit there does not matter any more if the group has consumed
    at the target: it goes on there, and repeats records."""
    if text := members_text(one.members[0]):
        then = f"stop the consumers of group {one.name} at the source"
        return ClosedGate(Gate.STARTED, f"at the source, {text}", then)
    consumed = any(one.target.positions.get(tp, 0) > offset for tp, offset in written.items())
    if (text := _moved_on(one, planned)) and not consumed:
        again = "stop its consumers in both clusters, take it back with {undo=True}, and run the command again"
        return ClosedGate(Gate.STARTED, f"it committed after the write: {text}", Advice(again))
    return None


def _moved_on(one: GroupObservation, planned: Positions) -> str:
    """Names the offsets that the group committed at the source after it was translated."""
    moved = ((tp, at, planned.get(tp, "no offset")) for tp, at in one.source.positions.items())
    return _named(f"{tp} is at {at} at the source, and was translated at {was}" for tp, at, was in moved if at != was)


def repeats_text(one: GroupObservation, planned: Positions) -> str:
    """Counts the records that a group which consumes at the target repeats, because it went on at the source."""
    number = sum(max(0, at - planned.get(tp, 0)) for tp, at in one.source.positions.items())
    moved = _moved_on(one, planned)
    return f"repeats at most {count_of(number, 'more record')}: {moved}" if moved else ""


def started(one: GroupObservation, written: Positions) -> ClosedGate | None:
    """Returns why a written group has not started at the target."""
    if members_text(one.members[1]) and not isinstance(one.members[1], OffsetMgrError):
        return None
    if text := other_offset(one.target.positions, written):
        then = "start its consumers again if they have run there; if not, another program commits: set it back"
        return ClosedGate(Gate.STARTED, f"without a member at the target, {text}", then)
    return not_started(one.target_name, members_text(one.members[1]))


def not_started(group: str, members: str = "") -> ClosedGate:
    """Returns that a written ``group`` of the target has no known member."""
    then = f"start the consumers of group {group} at the target"
    return ClosedGate(Gate.STARTED, members or "no consumer at the target", then)


def other_offset(held: Positions, written: Positions) -> str:
    """Names an offset in the target that is not the written one."""
    others = ((tp, held.get(tp, "no offset"), at) for tp, at in written.items() if held.get(tp) != at)
    return next((f"{tp} is at {found} and not at {at} as written" for tp, found, at in others), "")


def moving(one: GroupObservation, written: Positions, follow: Callable[[str, int], bool]) -> ClosedGate | None:
    """Returns the partitions in which the group has not committed beyond the written offset although records follow.
    ``follow`` tells whether a log of the target has a record at or after an offset. A partition without an offset that
    no member has does not count."""
    held, there = one.target.positions, one.members[1]
    if (error := one.target.now.error) is not None or isinstance(there, OffsetMgrError):
        text = f"its offsets and members at the target are not known: {error or there}"
        return ClosedGate(Gate.MOVING, text, "run the same command again")
    used = {*held, *map(str, one.target.now.errors), *(str(tp) for member in there.members for tp in member.partitions)}
    if not (there.idle or there.state == "STABLE"):
        used |= written.keys()  # the members of a group in a rebalance have no partitions
    idle = [tp for tp, at in written.items() if held.get(tp, 0) <= at and tp in used and follow(tp, at)]
    if not idle:
        return None
    text = f"no commit at the target beyond the written one in {_named(idle)}"
    then = "wait until group {} commits there; if it does not read a topic any more, stop it, and delete the offset: {}"
    return ClosedGate(Gate.MOVING, text, Advice(then, one.target_name, Invocation("offsets delete")))


def planned(plan: GroupPlan, one: GroupObservation) -> ClosedGate | None:
    """Returns why the plan of a group must not be applied."""
    held = {str(step.tp): step.target.offset for step in plan.steps if step.target}
    steps = {str(step.tp) for step in plan.steps}
    if text := difference({tp: at for tp, at in one.target.positions.items() if tp in steps}, held):
        return _other_program(text)
    problems: list[str] = [plan.error] if plan.error else []
    kept = Action.KEEP_NEWER, Action.REFUSE_REWIND
    problems += [f"{step.tp}: {step.note}" for step in plan.steps if step.after is None or step.action in kept]
    worse = (step for step in plan.steps if _is_worse(step, one))
    problems += [f"{step.tp}: fewer records would follow than was shown; run the command again" for step in worse]
    then = "see the offsets of both clusters: offsets diff"
    return ClosedGate(Gate.TRANSLATED, Advice.joined(problems[:_SHOWN]), then) if problems else None


def changed(one: GroupObservation, now: GroupOffsets, described: MemberAnswer) -> ClosedGate | None:
    """Returns what a group has done at the source since it was observed."""
    moved = difference(one.source.positions, Reads(now, now).positions)
    if text := members_text(described) or error_of(now) or moved:
        then = f"stop what commits for group {one.name} at the source, and run the command again"
        return ClosedGate(Gate.STOPPED, f"while it was translated: {text}", then)
    return None


def _is_worse(step: PlanStep, one: GroupObservation) -> bool:
    """Whether a step of a plan skips more than the last look has shown."""
    held = one.source.now.offsets.get(step.source_tp)
    if step.source is None or step.origin is None or step.after is None:
        return False
    if held is None or held.offset != step.source.offset:  # the group has committed, which is a reason of its own
        return False
    shown = one.topics[step.source_tp.topic].answer(step.source_tp, step.source.offset)
    if isinstance(shown, OffsetMgrError):
        return True
    return step.after.offset > (shown.answer.offset or 0) or (step.origin.skips or 0) > shown.answer.missing


def error_of(found: GroupOffsets) -> OffsetMgrError | None:
    return found.error or next(iter(found.errors.values()), None)


def went_back(path: str) -> ClosedGate:
    then = Advice("to move it again, name a new {state} file, and add {back_of} {}", path)
    return ClosedGate(Gate.MOVING, f"it went back by the cutover with state file {path}", then, may_open=False)


# The gates of a topic.


def waits_for_groups(
    left: Collection[str],
    shares: Collection[str],
    unread: Mapping[str, OffsetMgrError],
    written: Mapping[str, int],
    selected: Collection[str],
) -> ClosedGate | None:
    """Returns the groups ``left`` that hold up the producers of a topic. ``shares`` are share groups, which cannot be
    moved, ``unread`` those that cannot be read and may use the topic, ``written`` has the last step of the groups whose
    offsets are at the target, and ``selected`` are those that the command moves."""
    moving = [
        f"{name} ({'members at the source' if step >= Gate.MOVING else f'at step {step + 1}'})"
        for name, step in written.items()
        if name in left
    ]
    texts, then = list[str](), list[str]()
    if moving:
        texts.append(f"{count_of(len(moving), 'group')} not through: {_named(moving)}")
        then.append("let the groups that are written pass their steps first")
    if still := sorted(set(left).difference(written)):
        kinds = dict.fromkeys(shares, " (a share group)")
        kinds |= {name: f" (it may use the topic: {error})" for name, error in unread.items()}
        texts.append(f"{count_of(len(still), 'group')} still at the source: ")
        texts[-1] += _named(f"{name}{kinds.get(name, '')}" for name in still)
        then += ["move these groups"] if set(still).difference(shares) else []
        if not set(still).isdisjoint(shares):
            then.append("let share groups acknowledge all records, and start them at the target before the producers")
        if others := [name for name in still if name not in selected][:_SHOWN_OPTIONS]:
            options = Advice.joined((Advice("{excuse} {}", name) for name in others), " ")
            then.append(Advice("for those that stay, or have moved without this state file, add {}", options))
    return ClosedGate(Gate.PRODUCERS_STOPPED, "; ".join(texts), Advice.joined(then)) if texts else None


def producers_stopped(one: TopicObservation) -> ClosedGate | None:
    stop = f"stop the producers of topic {one.name} at the source"
    if grown := _grown(one.source):
        return ClosedGate(Gate.PRODUCERS_STOPPED, f"the source's log still changes: {_named(grown)}", stop)
    if one.open:
        return ClosedGate(Gate.PRODUCERS_STOPPED, f"a transaction is open in {_named(one.open.values())}", stop)
    return None


def later_text(places: Mapping[TopicPartition, int], no_copies: Collection[TopicPartition]) -> str:
    """Names the records that were written to the source from these places on, in the partitions ``no_copies``."""
    text = _named(f"{tp} from {offset} on" for tp, offset in places.items() if tp in no_copies)
    note = Advice("records at the source that may be no copies of the target's: {}; {}", text, READ_MORE)
    return note if no_copies else ""


def copied(one: TopicObservation, step: Gate = Gate.COPIED) -> ClosedGate | None:
    """Returns which records the target lacks. A source that holds no record any more lacks none at the target."""
    closed = partial(ClosedGate, step)
    for tp, log in one.source[1].items():
        found = one.answer(tp, log.end) if isinstance(log, LogRange) else log
        number, wait = one.lacking(tp), "let the replicator run until it has copied the last record"
        if isinstance(number, OffsetMgrError):
            wait = number.hint or wait
        if isinstance(found, OffsetMgrError):
            return closed(f"the ends of {tp} cannot be compared: {found}", found.hint or wait)
        if isinstance(number, int) and number and (found.problem or not one.holes):
            holes = Advice("copy them again, or leave them behind with {accept=missing}: the target holds later ones")
            return closed(f"{count_of(number, 'record')} of {tp} not at the target", wait if found.problem else holes)
        if (found.problem and found.answer.verdict is not Verdict.INFERRED) or not isinstance(number, int):
            if found.answer.verdict is Verdict.BRACKETED:
                wait = f"if producers write at the target already, stop them; otherwise {wait}"
            return closed(Advice("the end of {}: {}", str(tp), found.problem or "not known"), wait)
    return None


def left_behind(one: TopicObservation) -> str:
    """Names the records that the target lacks with the operator's word."""
    numbers = {tp: one.lacking(tp) for tp in one.source[1]} if one.holes else {}
    texts = [
        f"{count_of(number, 'record')} of {tp}" for tp, number in numbers.items() if isinstance(number, int) and number
    ]
    return f"not at the target: {_named(texts)}" if texts else ""


def replicator_stopped(one: TopicObservation, way_back: ReverseReplicator, *, is_stopped: bool) -> ClosedGate | None:
    stop = f"stop the replication of topic {one.name} to the target"
    if not is_stopped:
        if way_back is ReverseReplicator.RUNNING:
            stop = f"{stop}; start the reverse one, and wait until it has begun at the end of {one.target}"
        then = Advice("{}; then add {replicator_stopped=True}", stop)
        return ClosedGate(Gate.REPLICATOR, "you have not said that the replicator is stopped", then, may_open=False)
    if grown := _grown(one.target_logs):
        return ClosedGate(Gate.REPLICATOR, f"the target's log still changes: {_named(grown)}", stop)
    return None


def ends_of(logs: LogRanges) -> dict[str, int]:
    """Returns the ends of logs."""
    return {str(tp): found.end for tp, found in logs.items() if isinstance(found, LogRange)}


def _grown(reads: tuple[LogRanges, LogRanges]) -> list[str]:
    """Names the partitions whose end changed, or is not known."""
    before, now = reads
    failed = [f"{tp} ({found})" for tp, found in now.items() if isinstance(found, OffsetMgrError)]
    ends = {tp: found.end for tp, found in before.items() if isinstance(found, LogRange)}
    return failed or [str(tp) for tp, one in now.items() if isinstance(one, LogRange) and one.end != ends.get(tp)]


def _named(partitions: Iterable[object]) -> str:
    return list_of(partitions, _SHOWN)


# The document.


_STEPS: Final = (
    ("ready", "The replicator has copied the topics, and nothing else uses the group at the target.", "replicator"),
    ("stopped at the source", "The consumers of the group stop at the source.", "operator"),
    ("translated", "The same records are found at the target.", "command"),
    ("written", "The offsets are written at the target, under the lock of the group.", "command"),
    ("started at the target", "The consumers of the group start at the target.", "operator"),
    ("moving", "The group commits beyond the written offsets.", "consumers"),
    ("producers stopped", "All groups of the topic have moved: the producers stop at the source.", "operator"),
    (
        "copied to the end",
        "The target holds the source's records from the first position of the groups on, but maybe not earlier ones.",
        "replicator",
    ),
    ("replicator stopped", "With a way back, the reverse replicator starts at the target's end.", "operator"),
    ("producers at the target", "The producers start at the target.", "operator"),
)
"""The steps: their names, what happens, and who does it."""


class CutoverReport(NamedTuple):
    """The progress of the groups and topics of a cutover. ``commands`` are the invocations to ``continue``, to ``undo``
    and to go ``back``."""

    statuses: list[CutoverStatus]
    way_back: ReverseReplicator
    commands: Mapping[str, Invocation]

    @property
    def ok(self) -> bool:
        """Whether all selected groups and their topics are through."""
        return all(one.gate is None for one in self.statuses)

    def next_lines(self) -> list[str]:
        """Returns what to do next, each with the groups and topics that wait for it."""
        waiting = by_key((one.gate.next, f"{one.kind} {one.name}") for one in self.statuses if one.gate)
        return [Advice("{}: {}", _named(names), then) for then, names in waiting.items()]

    def parts(self) -> list[DocumentPart]:
        """Returns the runbook: how far everything is, all steps with who does them, and the ways back."""
        texts = ((one, for_command_line(one.held_up_by), for_command_line(one.note)) for one in self.statuses)
        states = [(one.kind, one.name, one.step, *shown) for one, *shown in texts]
        columns = {"kind": "words", "name": "name", "step": "words", "held up by": "words", "note": "words"}
        steps = [(step.text, *_STEPS[step.value - 1][1:]) for step in Gate]
        commands = {name: one.command_line() for name, one in self.commands.items()}
        ways_back = [f"Before step {Gate.MOVING.text}: {commands['undo']}", f"From then on: {commands['back']}"]
        if any(one.kind == "topic" for one in self.statuses):
            ways_back.append(f"After step {Gate.PRODUCING.text}: {for_command_line(way_back_text(self.way_back))}")
        return [
            SectionTitle("Progress"),
            Table(columns, states),
            SectionTitle("Next"),
            Items([for_command_line(line) for line in self.next_lines()] or ["Everything is through."]),
            Paragraph(f"Then: {commands['continue']}"),
            SectionTitle("Steps"),
            Table({"step": "words", "what happens": "words", "who": "words"}, steps),
            SectionTitle("Ways back"),
            Items(ways_back),
        ]


def way_back_text(way_back: ReverseReplicator) -> str:
    """Says whether the operator has promised a way back after the producers have started at the target."""
    if way_back is ReverseReplicator.RUNNING:
        return "you said that a reverse replicator runs: only with it, there is a way back after step 10"
    return Advice("without a reverse replicator and {way_back=running}, there is no way back after step 10")
