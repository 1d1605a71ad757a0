"""The report on a migration: the locations, the risks and the next commands of groups. Pure.

The report decides nothing: phases, dates and next steps are those of the locator, and obstacles those of the journals.
A section shows at most `SHOWN` rows and the number of the other groups, so that the page of a large fleet stays short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.core import TITLES
from offsetmgr.core.advice import Advice, Argument, Invocation, for_command_line
from offsetmgr.core.batches import by_key
from offsetmgr.core.commit_mode import Phase
from offsetmgr.core.document import Columns, DocumentPart, Facts, Items, Paragraph, SectionTitle, Table, moment
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import SHOWN, count_of, list_of
from offsetmgr.core.selection import MAX_NAMED, literal_pattern
from offsetmgr.migration.location import GroupLocation, GroupStatus, may_be_dual
from offsetmgr.migration.progress import Stage


class GroupRisk(StrEnum):
    """A reason to look at a group, the most urgent first."""

    UNREAD = "Offsets or members were not read"
    OLD_SETTINGS = "Members may have old settings"
    BLOCKED = "Blocked"
    UNKNOWN = "Phase unknown"
    STALE = "Another store has different offsets"
    EXPIRY = "Copied offsets expire"
    UNFINALIZED = "Applied, and not finalized"


class ReportedGroup(NamedTuple):
    """A located group with the text of each of its risks. ``wave`` is its wave in the plan; None without one."""

    location: GroupLocation
    risks: Mapping[GroupRisk, str]
    wave: int | None

    @classmethod
    def of(cls, one: GroupLocation, recorded: GroupStatus | None) -> ReportedGroup:
        """Returns the group. ``recorded`` is what the plan and its journal record."""
        texts, wave = dict(_risks(one, recorded)), None if recorded is None else recorded.wave
        risks = {risk: for_command_line(texts[risk]) for risk in GroupRisk if texts.get(risk)}
        return cls(one, risks, wave)


def _risks(one: GroupLocation, recorded: GroupStatus | None) -> Iterator[tuple[GroupRisk, str]]:
    """Yields the text of each risk; an empty text if the group does not have it."""
    plan, phase, stage = one.sample.plan, one.phase, one.sample.plan and one.sample.plan.stage
    errors = ((store, store.problem or store.members_error) for store in one.sample.stores)
    unread = next((f"{store.title}: {error}" for store, error in errors if error is not None), "")
    yield GroupRisk.UNREAD, unread
    # If a store was not read, nothing shows that a consumer has committed the copied offsets again.
    expires_ms = recorded.expires_ms if unread and recorded is not None else one.expires_ms
    if plan is not None and expires_ms is not None:
        text = "expiry {} UTC, unless a consumer commits; migrate apply PLAN {refresh} renews"
        yield GroupRisk.EXPIRY, Advice(text, moment(expires_ms))
    if plan is not None and stage in (Stage.APPLIED, Stage.APPLIED_IN_PART, Stage.FINALIZED):
        source = one.sample.side(plan.source)
        members = 0 if source is None else len(source.members)
        is_unfinished = may_be_dual(one, plan) if phase is Phase.MOVED else phase != plan.target
        if phase is Phase.DUAL or (members and is_unfinished):
            registered = f"{count_of(members, 'member')} registered in {TITLES[plan.source or 'zookeeper']}"
            yield GroupRisk.OLD_SETTINGS, f"{registered}, and the phase is {one.evidence.known_phase}"
    bounce = "" if plan is None or plan.bounce is None else plan.bounce.text
    yield GroupRisk.BLOCKED, bounce or ("" if recorded is None else recorded.blocked_by)
    yield GroupRisk.STALE, _stale(one)
    if stage in (Stage.APPLIED, Stage.APPLIED_IN_PART, Stage.ROLLED_BACK_IN_PART):
        yield GroupRisk.UNFINALIZED, f"{stage}, and the journal records no end"
    yield GroupRisk.UNKNOWN, one.why if phase is Phase.UNKNOWN and not unread else ""


def _stale(one: GroupLocation) -> str:
    """Returns how the offsets of another store differ from those of the store that the group uses; an empty text if
    they do not, or if that store is unknown or was not read. After the migration was finalized, older offsets in the
    source are the way back."""
    plan, sample = one.sample.plan, one.sample
    used, has_ended = sample.side(one.phase), plan is not None and bool(plan.finalized_at) and plan.target == one.phase
    if used is None or used.error is not None:
        return ""
    for other in (sample.side(store.name) or store for store in sample.stores if store.name != one.phase):
        held, now = other.committed, used.committed
        older = {tp for tp, offset in held.items() if has_ended and offset < now.get(tp, -1)}
        if differing := sorted(tp for tp, offset in held.items() if now.get(tp) != offset and tp not in older):
            first = differing[0]
            example = f"{first}: {held[first]} in {other.title}, {now.get(first, 'no offset')} in {used.title}"
            return f"{other.title} differs on {len(differing)} of {count_of(len(held), 'partition')} ({example})"
    return ""


_PHASES: Final[Columns] = {
    "phase": "name",
    "groups": "number",
    "known lag": "number",
    "groups of unknown lag": "number",
}
_WAVES: Final[Columns] = {
    "plan": "name",
    "wave": "words",
    "groups": "number",
    "finalized": "number",
    "at risk": "number",
    "phases": "words",
}
_GROUPS: Final[Columns] = {"group": "name", "wave": "words", "phase": "words", "why": "words", "next": "code"}


PlannedWaves: TypeAlias = Mapping[str, Mapping[str, int | None]]


class MigrationReport(NamedTuple):
    """The locations and the risks of groups. ``stores`` maps the URI of each store to the id of its cluster, or to the
    reason for which it was not read. ``errors`` are those of stores, of groups that no store has, and of migrations
    that are no evidence. ``planned`` has the wave of each group of a plan, by the path of the plan. ``servers`` are the
    connection arguments that a plan gave. ``watched`` is whether commits were watched, and for how long."""

    began_ms: int
    ended_ms: int
    stores: Mapping[str, str]
    groups: Sequence[ReportedGroup]
    errors: Sequence[OffsetMgrError]
    planned: PlannedWaves
    servers: Mapping[str, Argument] = {}
    watched: str = "not watched"

    @property
    def counts(self) -> dict[str, int]:
        """The number of groups, of groups at risk, and of errors."""
        at_risk = sum(bool(one.risks) for one in self.groups)
        return {"groups": len(self.groups), "at risk": at_risk, "errors": len(self.errors)}

    @property
    def ok(self) -> bool:
        """Whether everything was read, and no group is at risk."""
        return not self.errors and not self.counts["at risk"]

    def page(self, options: str = "") -> tuple[str, list[DocumentPart]]:
        """Returns the title and the parts of a page. ``options`` are the connection options of the next commands; each
        begins with a space."""
        of_risk = by_key((next(iter(one.risks), None), one) for one in self.groups)
        counts = Counter(risk for one in self.groups for risk in one.risks)
        waves = [*_wave_rows(self.groups)]
        parts = [
            *self._scope(),
            SectionTitle("Phases"),
            Table(_PHASES, [*_phase_rows(one.location for one in self.groups)]),
        ]
        parts += [SectionTitle("Waves"), Table(_WAVES, waves)] if waves else []
        if unread := [for_command_line(error.text) for error in self.errors]:
            more = [f"and {len(unread) - SHOWN:,} more"] if len(unread) > SHOWN else []
            parts += [SectionTitle("Errors"), Items([*unread[:SHOWN], *more])]
        at_risk = [(risk.value, counts[risk]) for risk in GroupRisk if counts[risk]]
        parts += [SectionTitle("At risk"), Facts(at_risk or [("groups", 0)])]
        for risk in filter(of_risk.get, GroupRisk):
            parts += [SectionTitle(risk.value, 3), *_listed(of_risk[risk], self.planned, options)]
        others = _listed(of_risk.get(None, ()), self.planned, options)
        return "Migration report", [*parts, SectionTitle("Next steps of the other groups"), *others]

    def _scope(self) -> Iterator[DocumentPart]:
        """Yields the stores that were read, and the time."""
        began, ended = (moment(at, seconds=True) for at in (self.began_ms, self.ended_ms))
        yield Paragraph(f"Read from {began} to {ended} UTC, by a command that changes nothing.")
        yield Items([f"{uri}: {text}" for uri, text in self.stores.items()])
        yield Paragraph(f"Commits were {self.watched}. The offsets were not compared with the plans, as verify does.")
        yield Paragraph("Waves have only groups of this report: without a plan, those that the operation log has.")
        yield Paragraph(
            f"Run the next commands in the present directory. A command names at most {MAX_NAMED} groups of its row."
        )


def _phase_rows(groups: Iterable[GroupLocation]) -> Iterator[Sequence[Any]]:
    for phase, found in sorted(by_key((one.evidence.known_phase, one.lag) for one in groups).items()):
        known = [lag for lag in found if lag is not None]
        yield phase, len(found), sum(known) if known else None, len(found) - len(known)


def _wave_rows(groups: Iterable[ReportedGroup]) -> Iterator[Sequence[Any]]:
    of_plans = ((one, one.location.sample.plan) for one in groups)
    waves = by_key(((plan.path, one.wave or 0), (one, plan.stage)) for one, plan in of_plans if plan is not None)
    for (path, wave), found in sorted(waves.items()):
        finalized = sum(stage is Stage.FINALIZED for _, stage in found)
        at_risk = sum(bool(one.risks) for one, _ in found)
        phases = sorted(Counter(one.location.evidence.known_phase for one, _ in found).items())
        text = ", ".join(f"{count:,} {phase}" for phase, count in phases)
        yield path, str(wave or "none"), len(found), finalized, at_risk, text


def _listed(groups: Iterable[ReportedGroup], planned: PlannedWaves, options: str) -> Iterator[DocumentPart]:
    """Yields a table with a row for the groups that differ only in their names, and the number of the groups that it
    does not show. The offsets that expire first come first, and groups without a next command last."""
    ordered = sorted(groups, key=lambda one: ([*one.risks.values()], not one.location.next.call, one.location.name))
    rows = [*by_key((_cells(one), one) for one in ordered).items()]
    steps = [same[0].location.next._replace(call=_call_of_all(same, planned)) for _, same in rows[:SHOWN]]
    shown = ((list_of((one.location.name for one in same), 1), cells) for cells, same in rows[:SHOWN])
    texts = [(name, *cells[:3], step.text(options)) for (name, cells), step in zip(shown, steps, strict=True)]
    yield Table(_GROUPS, texts)
    if left := sum(len(same) for _, same in rows[SHOWN:]):
        yield Paragraph(f"and {count_of(left, 'more group')}")
    yield from map(Paragraph, filter(None, dict.fromkeys(for_command_line(step.note) for step in steps)))


def _cells(one: ReportedGroup) -> tuple[str, ...]:
    """Returns the cells of a group without its next command, and what the groups of a row also have in common."""
    step, plan = one.location.next, one.location.sample.plan
    why = "; ".join(one.risks.values()) or for_command_line(step.why)
    shared = step.text() if step.call is None else _shared(step.call).command_line()
    return str(one.wave or ""), one.location.evidence.known_phase, why, shared, plan.path if plan else ""


def _shared(call: Invocation) -> Invocation:
    """Returns the call without its group, and without files that are named after the group."""
    plan = call.positional[: call.verb.startswith("migrate ")]
    return call._replace(positional=plan, named={**call.named, "group": None, "output": None})


def _call_of_all(same: Sequence[ReportedGroup], planned: PlannedWaves) -> Invocation | None:
    """Returns the next call for the groups of a row. It has their wave, without the other groups of the wave. If these
    are more than the groups of the row, the call names the first `MAX_NAMED` groups of the row."""
    call, wave, plan = same[0].location.next.call, same[0].wave, same[0].location.sample.plan
    if call is None or not same[1:] or call.command_line() == _shared(call).command_line():
        return call
    if call.verb == "groups where":  # it changes nothing, so it may watch other groups too
        return Invocation("migrate report", (plan.path,) if plan else (), {"wave": wave, **call.named, "group": None})
    every = [own.group if (own := one.location.sample.plan) else one.location.name for one in same]
    selected: dict[str, Argument] = {"group": tuple(map(literal_pattern, every[:MAX_NAMED]))}
    if plan is not None and plan.path in (*call.positional, call.named.get("plan")):
        others = {name for name, of in planned[plan.path].items() if wave in (None, of)}.difference(every)
        if len(others) < min(len(every), MAX_NAMED):
            excluded = tuple(map(literal_pattern, sorted(others)))
            selected = {"group": None, "wave": wave, "exclude_group": excluded}
    return call._replace(positional=_shared(call).positional, named={**call.named, **selected})
