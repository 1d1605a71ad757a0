"""The state of every group of a plan: in words, with the time of its last step, its obstacle, and the next
command. Pure.

The state comes from the plan and its journal. Evidence from the servers, if the caller has any, takes precedence
(`fleet_view`).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from offsetmgr.core.batches import by_key
from offsetmgr.core.document import moment
from offsetmgr.core.errors import GroupNotFound, UsageError
from offsetmgr.core.phase import Confidence, Phase
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import GroupSelection, group_words
from offsetmgr.migration.plan import GroupPlan, GroupScope
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.progress import GroupProgress, MigrationState, Stage

if TYPE_CHECKING:
    from offsetmgr.migration.fleet_bounce import OpenBounce

RESTART_VARIABLE: Final = "$RESTART"
"""The restart command of the members in a next command. The operator defines the variable, as in a runbook."""


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """Evidence about one group from the servers.

    ``phase`` is the phase of the members; `Phase.UNKNOWN` also if there are no members. ``members`` are the registered
    old consumers and the members in Kafka. ``obstacles`` are the reasons for which a verification of the
    group would fail now. ``verifies`` is whether its partitions would pass this verification. ``is_lost`` is whether
    the target has no offset for some of these partitions.
    """

    phase: Phase
    known: Confidence
    why: str
    members: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    verifies: bool = True
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The state of one group. ``since_ms`` is a time in milliseconds since 1970; None if no step is recorded.
    ``blocked_by`` is empty if no obstacle is known. ``expires_ms`` is the time at which the copied offsets expire if no
    consumer commits them again; None if it is unknown, or if the group has consumers in the target."""

    group: str
    target_group: str
    wave: int | None
    owner: str
    state: Stage | Phase
    since_ms: int | None
    known: Confidence
    evidence: str
    blocked_by: str
    next_command: str
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The connection options of the next commands, as text; each option starts with a space. ``plan`` are the options
    of commands that execute a plan, ``members`` those of commands about the members of a group."""

    plan: str = ""
    members: str = ""


def select_groups(plan: PlanFile, groups: GroupSelection, waves: Iterable[int] = ()) -> GroupScope | None:
    """Returns the selected groups of the plan, with ``waves`` only those that are in one of them; None if the selection
    has all groups.

    Raises `GroupNotFound` as `GroupSelection.within` or if none of the selected groups is in the waves, and
    `UsageError` if the plan does not have a wave.
    """
    waves = set(waves)
    if groups.patterns is None and not groups.excluded and not waves:
        return None
    known = {group.group: group.wave for group in plan.groups()}
    if missing := sorted(waves - set(known.values())):
        found = ", ".join(str(wave) for wave in sorted({wave for wave in known.values() if wave is not None}))
        why = f"the plan has no such wave (its waves: {found})" if found else "the plan has no waves"
        raise UsageError(f"--wave {missing[0]}", why, f"see: offsetmgr migrate status {shlex.quote(str(plan.path))}")
    hint = f"see: offsetmgr migrate status {shlex.quote(str(plan.path))}"
    chosen = frozenset(
        name for name in groups.within(known, f"plan {plan.path}", hint=hint) if not waves or known[name] in waves
    )
    if not chosen and groups.patterns is None:
        raise GroupNotFound("--wave", "every group of these waves is excluded")
    if not chosen:
        raise GroupNotFound("--group with --wave", "no group of this name is in this wave", "leave out one of them")
    return chosen


def group_statuses(
    plan: PlanFile,
    state: MigrationState,
    only: GroupScope | None = None,
    live: Mapping[str, LiveGroup] | None = None,
    options: CommandOptions | None = None,
    bounces: Mapping[str, OpenBounce] | None = None,
) -> list[GroupStatus]:
    """Returns the state of each group, by wave and name. ``live`` is the evidence from the servers, by group.
    ``options`` are the connection options of the next commands, and ``bounces`` the open bounces, by group."""
    statuses = _Statuses(plan, state, options or CommandOptions(), bounces or {})
    found = [statuses.status(group, (live or {}).get(group.group)) for group in plan.groups_of(only)]
    return sorted(found, key=lambda one: (one.wave is None, one.wave or 0, one.group))


def counts(found: Iterable[GroupStatus]) -> Iterator[tuple[int | None, Counter[Stage | Phase], int]]:
    """Yields, for each wave, the number of groups in each state and the number of blocked groups."""
    for wave, members in by_key((one.wave, one) for one in found).items():
        yield wave, Counter(one.state for one in members), sum(bool(one.blocked_by) for one in members)


_ROLLED_BACK = frozenset((Stage.ROLLED_BACK, Stage.ROLLED_BACK_IN_PART))
_CLOSED = frozenset((Stage.FINALIZED, Stage.NOT_PLANNED)) | _ROLLED_BACK


@dataclass(frozen=True)
class _Statuses:
    """The way of the plan's groups from the first state to the last. Between ZooKeeper and Kafka, members are restarted
    twice: from the phase ``start`` to dual, and from dual to the phase ``end``."""

    plan: PlanFile
    state: MigrationState
    options: CommandOptions
    bounces: Mapping[str, OpenBounce]

    @property
    def end(self) -> Phase:
        return Phase.of(self.plan.header.end)

    @property
    def start(self) -> Phase:
        return Phase.KAFKA if self.end is Phase.ZOOKEEPER else Phase.ZOOKEEPER

    def status(self, group: GroupPlan, live: LiveGroup | None) -> GroupStatus:
        word, since, evidence = self._recorded(group)
        known = Confidence.RECORDED
        left_end = word is Stage.FINALIZED and live is not None and _has_left(live, self.end)
        if live is not None and (word not in _CLOSED or left_end):
            evidence, known = live.why, live.known
            in_end = live.phase is Phase.UNKNOWN and left_end  # members are in different phases
            seen = self.end if in_end else self._visible(self.end if left_end else word, live.phase)
            since = since if seen is word else None  # the journal does not record the time of this change
            word = seen
        blocked = "; ".join(dict.fromkeys(self._obstacles(group, word, live)))
        command = self._next_command(group, word, live)
        names = group.group, group.target_group, group.wave, group.owner
        return GroupStatus(*names, word, since, known, evidence, blocked, command, self._expires(group, word, live))

    def _bounce(self, name: str) -> OpenBounce | None:
        """Returns the open bounce of a group; None if the journal has a later phase or the end of the group."""
        bounce, note = self.bounces.get(name), self.state.phases.get(name)
        later = (note and note.at, self.state.group_finalized_at(name))
        return None if bounce is None or any(at is not None and at > bounce.at_ms for at in later) else bounce

    def _expires(self, group: GroupPlan, word: Stage | Phase, live: LiveGroup | None) -> int | None:
        """Returns the time at which the copied offsets of a group without consumers expire."""
        has_consumers = bool(live.members) if live is not None else group.group in self.state.phases
        gone = live is not None and live.is_lost
        if has_consumers or gone or word in _ROLLED_BACK | {Stage.NOT_PLANNED}:
            return None
        return self.plan.header.expiry_of(self.state.copied_at(group))

    def _recorded(self, group: GroupPlan) -> tuple[Stage | Phase, int | None, str]:
        """Returns the state that the plan and the journal record, its time and its evidence."""
        name, state = group.group, self.state
        stage, note = state.stage_of(group), state.phases.get(name)
        if stage in _ROLLED_BACK:
            return stage, state.undo.at.get(name, state.last_at), ""
        if stage is Stage.FINALIZED:
            if (later := state.phase_after_end(name, self.plan.header.end)) is not None and later.phase is not None:
                return Phase.of(later.phase), later.at, later.text
            if (bounce := self._bounce(name)) is not None and bounce.state is not None:
                return Phase.of(bounce.state.change.start), bounce.at_ms, bounce.text
            removed = "the source's offsets were deleted" if name in state.delete.done else ""
            return stage, state.group_finalized_at(name), removed
        if stage is not Stage.NOT_PLANNED and note is not None and note.phase is not None:
            return Phase.of(note.phase), note.at, note.text
        was_applied = stage in (Stage.APPLIED, Stage.APPLIED_IN_PART)
        return stage, state.apply.at.get(name) if was_applied else self.plan.header.created_at, ""

    def _visible(self, recorded: Stage | Phase, phase: Phase) -> Stage | Phase:
        """Returns the state for the phase in which the members were observed. Members in the first phase, which have
        not been restarted yet, do not change the states before it."""
        is_before = phase is self.start and isinstance(recorded, Stage)
        return recorded if phase is Phase.UNKNOWN or is_before else phase

    def _obstacles(self, group: GroupPlan, word: Stage | Phase, live: LiveGroup | None) -> Iterator[str]:
        if word is Stage.NOT_PLANNED:
            yield group.error
        if self._was_undo_last(group.group) and (
            failures := self._failures(self.state.undo, group.group, "not rolled back")
        ):
            yield failures
        bounce = self._bounce(group.group)
        if bounce is not None and word not in _ROLLED_BACK:
            yield bounce.text
        if word is Stage.FINALIZED and live is not None:
            yield from live.obstacles
        if word in _CLOSED:
            return
        finalized = self.state.group_finalized_at(group.group)
        if bounce is None and finalized is not None and self._is_back(group, word):
            yield f"it was finalized {moment(finalized)}, but its members commit as phase {word} does"
        rejected = Counter(step.action for step in group.steps if step.action.rejects)
        if rejected:
            kinds = ", ".join(f"{count} {action.value.removeprefix('refuse-')}" for action, count in rejected.items())
            first = next(step for step in group.steps if step.action.rejects)
            yield f"the plan refused {count_of(rejected.total(), 'partition')} ({kinds}): {first.tp}: {first.note}"
        if not self.state.is_applied(group):
            if failures := self._failures(self.state.apply, group.group, "not applied"):
                yield failures
            elif isinstance(word, Phase):
                yield "its offsets are not applied"
        if (note := self.state.blocked.get(group.group)) is not None and not _has_ended(note.text, live):
            yield note.text
        if live is not None:
            yield from live.obstacles

    def _is_back(self, group: GroupPlan, word: Stage | Phase) -> bool:
        """Whether a finalized group has left the last phase. A group in phase dual may have been finalized there."""
        note, end = self.state.phases.get(group.group), self.plan.header.end
        was_at_end = note is not None and note.phase is end
        is_later = self.state.phase_after_end(group.group, end) is not None
        return word is not self.end and (word is self.start or was_at_end or is_later)

    def _was_undo_last(self, name: str) -> bool:
        """Whether a rollback is the last step of the group. The failures of a rollback are over after a later step."""
        state, undone = self.state, self.state.undo.at.get(name)
        phase = state.phases.get(name)
        later = (state.apply.at.get(name), phase and phase.at, state.group_finalized_at(name))
        return undone is not None and undone >= max((at for at in later if at is not None), default=0)

    def _failures(self, work: GroupProgress, group: str, label: str) -> str:
        """Returns the failures of the last attempt to write the group; an empty string if there are none."""
        if group in work.done:
            return ""
        last = None
        for record in self.state.outcomes(work, group):
            last = record
        failed = last.get("failed", ()) if last is not None else ()
        if not failed:
            return f"{label}: an earlier run was interrupted" if group in work.unknown else ""
        topic, partition, _kind, why = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"{label}: {topic}-{partition}: {why}{more}"

    def _next_command(self, group: GroupPlan, word: Stage | Phase, live: LiveGroup | None) -> str:
        plan, name = shlex.quote(str(self.plan.path)), shlex.quote(group.group)
        options, of_members = self.options.plan, self.options.members
        if word is Stage.ROLLED_BACK_IN_PART:
            return f"offsetmgr migrate rollback {plan} --group {name}{options}"
        if word is Stage.FINALIZED and self._expires(group, word, live) is not None:
            return f"offsetmgr migrate apply {plan} --refresh{options}"
        if word in _CLOSED:
            return ""
        if (open_bounce := self._bounce(group.group)) is not None and open_bounce.state is not None:
            to, file = open_bounce.state.change.to.value, shlex.quote(open_bounce.path)
            bounce = f"offsetmgr runbook bounce --plan {plan} --group {name} --to-phase {to} --state {file}"
            return f'{bounce} --command "{RESTART_VARIABLE}"{of_members} --execute'
        if not self.state.is_applied(group):
            return f"offsetmgr migrate apply {plan} --group {name}{options}"
        if live is not None and live.is_lost and word is Stage.APPLIED:
            return f"offsetmgr migrate rollback {plan} --group {name}{options}"
        has_members = bool(group.old_members if live is None else live.members)
        phase = self.end if word is Phase.DUAL else Phase.DUAL
        if word is Phase.DUAL or (has_members and word is not self.end):
            bounce = f"offsetmgr runbook bounce --plan {plan} --group {name} --to-phase {phase.value}"
            return f'{bounce} --command "{RESTART_VARIABLE}"{of_members}'
        if live is not None and not live.verifies:  # finalize would refuse the group
            return f"offsetmgr migrate verify {plan} --group {name}{options}"
        if self.state.group_finalized_at(group.group) is not None:
            return ""
        return f"offsetmgr migrate finalize {plan} {shlex.join(group_words(group.group))}{options}"


def _has_left(live: LiveGroup, end: Phase) -> bool:
    """Whether members of a finalized group were seen in another phase than the last one."""
    if live.phase is Phase.UNKNOWN:
        return live.known is Confidence.SEEN and bool(live.members)
    return live.phase is not end


def expiry_texts(dates: Iterable[int | None], now_ms: int, refresh: str, *, watched: bool) -> Iterator[str]:
    """Yields the sentences about copied offsets that expire at these times, with the command that renews them. Offsets
    that have expired are left out if the servers were asked (``watched``), because then the obstacles name them."""
    known = sorted(at for at in dates if at is not None)
    coming, over = [at for at in known if at > now_ms], [at for at in known if at <= now_ms]
    if coming:
        begin = f"the copied offsets of {count_of(len(coming), 'group')} expire from {moment(coming[0])} UTC on"
        yield f"{begin}, unless a consumer commits them again; to renew them: {refresh}"
    if over and not watched:
        begin = f"the copied offsets of {count_of(len(over), 'group')} expired by {moment(over[-1])} UTC"
        yield f"{begin} if no consumer has committed them again: migrate status --window asks the servers"


def _has_ended(blocked: str, live: LiveGroup | None) -> bool:
    """Whether the members were seen in the phase to which a bounce was blocked. ``blocked`` begins with the step, as in
    ``bounce zookeeper -> dual: ...``."""
    if live is None or live.phase is Phase.UNKNOWN or live.known is not Confidence.SEEN:
        return False
    step = blocked.partition(":")[0]
    return step.startswith("bounce ") and step.endswith(f"-> {live.phase.value}")
