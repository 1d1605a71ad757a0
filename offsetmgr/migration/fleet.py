"""The groups of a plan: their selection, their number in each state, and the page that shows all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from offsetmgr.core.advice import Argument, for_command_line, option
from offsetmgr.core.batches import by_key
from offsetmgr.core.commit_mode import CommitMode, Confidence, Phase, PhaseEvidence
from offsetmgr.core.document import (
    Columns,
    DocumentPart,
    Facts,
    Paragraph,
    SectionTitle,
    Table,
    moment,
    time_text,
)
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import GroupDescription
from offsetmgr.core.plurals import count_of
from offsetmgr.migration.evidence import assess_phase, phase_of_group
from offsetmgr.migration.location import (
    EXAMPLE_RESTART,
    RESTART_VARIABLE,
    GroupStatus,
    LiveGroup,
    phase_of_members,
    unknown_phase,
)
from offsetmgr.migration.observation import GroupHistory, GroupView, ObservationWindow, watch_groups
from offsetmgr.migration.plan import GroupPlan, GroupScope, PlanFile
from offsetmgr.migration.progress import MigrationState, Stage, expiry_texts
from offsetmgr.migration.verify import MigrationVerifier, PartitionResult, Status


class WaveCounts(NamedTuple):
    """The number of groups of a wave in each state, and the number of blocked ones. ``wave`` is None for groups without
    a wave."""

    wave: int | None
    states: Counter[Stage | Phase]
    blocked: int

    @property
    def text(self) -> str:
        """The number of groups in each state, as text."""
        return ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))


_WAVES: Final[Columns] = {
    "wave": "name",
    "groups": "number",
    "finalized": "number",
    "blocked": "number",
    "states": "words",
}
_BLOCKED: Final[Columns] = {
    "group": "name",
    "wave": "number",
    "owner": "words",
    "state": "words",
    "blocked by": "words",
}
_GROUPS: Final[Columns] = {
    "group": "name",
    "owner": "words",
    "state": "words",
    "since": "time",
    "evidence": "words",
    "expires": "time",
    "next command": "code",
}
_COMMANDS: Final = (
    "Run the next commands in the directory of the plan. They contain no connection options, because this page is also"
    f" for other readers: add the options of your login, such as {option('command_config')}. In a restart,"
    f" {RESTART_VARIABLE} is the command that restarts one member, as in RESTART='{EXAMPLE_RESTART}'."
)


class FleetStatus(NamedTuple):
    """The state of every selected group of a plan. ``scope`` names the cluster, the stores, and the numbers of groups
    and partitions. ``watched`` is whether the servers were asked."""

    plan: PlanFile
    state: MigrationState
    scope: str
    groups: list[GroupStatus]
    watched: bool

    def waves(self) -> list[WaveCounts]:
        """Returns the number of groups in each state, by wave."""
        return [
            WaveCounts(wave, Counter(one.state for one in members), sum(bool(one.blocked_by) for one in members))
            for wave, members in by_key((one.wave, one) for one in self.groups).items()
        ]

    def lines(self) -> Iterator[str]:
        """Describes the waves, the variable in the next steps that restart members, and the last renewal."""
        for one in self.waves():
            label = "no wave" if one.wave is None else f"wave {one.wave}"
            blocked = f"; {one.blocked} blocked" if one.blocked else ""
            yield f"{label}: {count_of(one.states.total(), 'group')}: {one.text}{blocked}"
        yield from {one.next.note for one in self.groups} - {""}
        if self.state.refreshed_at is not None:
            yield f"the offsets in the target were renewed on {time_text(self.state.refreshed_at)}"

    def expiry_texts(self, now_ms: int, arguments: Mapping[str, Argument]) -> Iterator[str]:
        """Yields the sentences about copied offsets that expire. ``arguments`` are the connection arguments of the call
        that renews them."""
        dates = (one.expires_ms for one in self.groups)
        return expiry_texts(str(self.plan.path), dates, now_ms, arguments, watched=self.watched)

    def page(self, at_ms: int) -> tuple[str, list[DocumentPart]]:
        """Returns the title and the parts of a page, which is written at ``at_ms`` (milliseconds since 1970). Unless
        the servers were asked, the page shows what the plan and the journal record."""
        states, by_wave = Counter(one.state for one in self.groups), self.waves()
        finalized = states[Stage.FINALIZED]
        other_plan = states[Stage.NOT_PLANNED] + states[Stage.ROLLED_BACK] + states[Stage.ROLLED_BACK_IN_PART]
        blocked = [one for one in self.groups if one.blocked_by]
        header, expiring = self.plan.header, map(for_command_line, self.expiry_texts(at_ms, {}))
        origin = "from the servers, the plan and its journal" if self.watched else "from the plan and its journal"
        made = f"the plan was made at {moment(header.created_at)}"
        parts: list[DocumentPart] = [
            Paragraph(f"Written {moment(at_ms)} {origin}. All times are UTC."),
            Paragraph(f"From {header.source.uri} to {header.target.uri}; {made}."),
            Facts(
                [
                    ("groups", len(self.groups)),
                    ("finalized", finalized),
                    ("blocked", len(blocked)),
                    ("to do", len(self.groups) - finalized - other_plan),
                    ("not planned or rolled back", other_plan),
                ]
            ),
            *(Paragraph(f"{text[0].upper()}{text[1:]}.") for text in expiring),
            Paragraph(_COMMANDS),
            SectionTitle("Waves"),
            Table(_WAVES, [_wave_row(wave) for wave in by_wave]),
            SectionTitle("Blocked groups"),
            Table(
                _BLOCKED, [(one.name, one.wave or "", one.owner, one.state.value, one.blocked_by) for one in blocked]
            ),
        ]
        for wave, _, _ in by_wave:
            rows = [_group_row(one) for one in self.groups if one.wave == wave]
            parts += [SectionTitle("Groups without a wave" if wave is None else f"Wave {wave}"), Table(_GROUPS, rows)]
        return f"Migration {self.plan.path.stem}", parts


def _wave_row(one: WaveCounts) -> Sequence[Any]:
    label = "no wave" if one.wave is None else str(one.wave)
    return label, one.states.total(), one.states[Stage.FINALIZED], one.blocked, one.text


def _group_row(one: GroupStatus) -> Sequence[Any]:
    since = "" if one.since_ms is None else moment(one.since_ms)
    evidence = f"{one.evidence} ({one.known.value})" if one.evidence else ""
    name = one.name if one.name == one.target_group else f"{one.name} → {one.target_group}"
    expires = "" if one.expires_ms is None else moment(one.expires_ms)
    return name, one.owner, one.state.value, since, evidence, expires, one.next.command_line()


# Reads from the servers where the groups of a plan are now: their members, the phase of the members, and the
# partitions that do not verify. It only reads.

_BEFORE_APPLY = frozenset((Status.MISSING, Status.BEHIND, Status.NOT_REWOUND))
_WHILE_THE_SOURCE_IS_USED = frozenset((Status.SOURCE_AHEAD, Status.NOT_IN_PLAN))


@dataclass(frozen=True, slots=True)
class FleetView:
    """The servers of a plan. ``view`` is None if the plan is not between ZooKeeper and Kafka; then the groups have no
    phases."""

    verifier: MigrationVerifier
    view: GroupView | None
    window: ObservationWindow

    def observe(self, only: GroupScope | None) -> Mapping[str, LiveGroup]:
        """Returns the evidence about each group that is not rolled back, by its name in the plan. Of a finalized group,
        only offsets that are gone and a source that is ahead are obstacles."""
        state, every = self.verifier.state, self.verifier.plan.groups_of(only)
        groups = {one.name: one for one in every if not (one.error or state.is_group_rolled_back(one.name))}
        found = self._members(list(groups.values()))
        results = replace(self.verifier, only=frozenset(groups)).results() if groups else ()
        failed = by_key(
            (one.group, (one.status, f"{one.tp or ''} {text}".strip()))
            for one in results
            if (text := self._problem(groups[one.group], one, found[one.group]))
        )
        for name, problems in failed.items():  # the partitions that would not verify now
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            summary = f"{count_of(len(problems), 'partition')}: {problems[0][1]}{more}"
            is_lost = any(status is Status.MISSING for status, _ in problems)
            obstacles = (*found[name].obstacles, summary)
            found[name] = replace(found[name], obstacles=obstacles, verifies=False, is_lost=is_lost)
        return found

    def _members(self, groups: list[GroupPlan]) -> dict[str, LiveGroup]:
        if self.view is None:
            return {group.name: LiveGroup(unknown_phase("")) for group in groups}
        to_kafka = self.verifier.plan.header.end is CommitMode.KAFKA
        old = {group.name: group.name if to_kafka else group.target_group for group in groups}
        new = {group.name: group.target_group if to_kafka else group.name for group in groups}
        watched = watch_groups(self.view, old.values(), self.window, enough=_is_enough)
        described = self.view.cluster.describe_groups(list(new.values())) if groups else {}
        return {name: _live(watched[old[name]], described.get(new[name])) for name in old}

    def _problem(self, group: GroupPlan, result: PartitionResult, live: LiveGroup) -> str:
        """Returns the problem of a partition; an empty string if it verifies, or if a later step is expected to change
        it."""
        plan, state = self.verifier.plan, self.verifier.state
        uses_source = bool(live.members) and live.evidence.phase not in (Phase.of(plan.header.end), Phase.DUAL)
        if result.status.ok or result.status is Status.REFUSED:  # the plan lists the refused partitions
            return ""
        is_over = state.group_finalized_at(group.name) is not None
        if is_over and result.status not in (Status.MISSING, Status.SOURCE_AHEAD):
            return ""
        if not state.is_applied(group) and result.status in _BEFORE_APPLY:
            if uses_source or result.source is None or result.expected is None or plan.header.rules is not None:
                return ""
            moved = result.source + plan.header.options.shift > result.expected
            return "the source moved on after the plan: make a new plan for the group" if moved else ""
        if uses_source and result.status in _WHILE_THE_SOURCE_IS_USED:
            return ""
        return f"{result.status.value}: {for_command_line(result.detail)}"


def _is_enough(history: GroupHistory) -> bool:
    """Returns whether every member of the group is known to be in one phase, or the group has no member."""
    if not history.latest.members:
        return True
    return any(assess_phase(history, phase).passed for phase in CommitMode)


def _live(history: GroupHistory | OffsetMgrError, described: GroupDescription | OffsetMgrError | None) -> LiveGroup:
    if isinstance(history, OffsetMgrError):
        return LiveGroup(unknown_phase(f"it cannot be observed: {history}"))
    modern = described.members if isinstance(described, GroupDescription) and not described.idle else ()
    members = (*sorted(history.latest.members), *map(str, modern))
    if history.latest.members:
        found = phase_of_group(history)
        are_mixed = found.phase is Phase.UNKNOWN and found.confidence is Confidence.SEEN
        return LiveGroup(found, members, (found.why,) if are_mixed else ())
    if isinstance(described, OffsetMgrError):
        return LiveGroup(unknown_phase(f"Kafka's coordinator did not report the members: {described}"))
    if members:
        return LiveGroup(phase_of_members("kafka", len(members)), members)
    return LiveGroup(PhaseEvidence(Phase.UNKNOWN, Confidence.SEEN, "no member is registered"))
