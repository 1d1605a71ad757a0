"""The groups of a plan: their selection, their number in each state, and the page that shows all of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from offsetmgr.core.advice import Invocation, for_command_line, option
from offsetmgr.core.batches import by_key
from offsetmgr.core.document import DocumentColumn, DocumentPart, Facts, Paragraph, SectionTitle, Table, moment
from offsetmgr.core.phase import Phase
from offsetmgr.migration.location import RESTART_VARIABLE, GroupStatus, expiry_texts
from offsetmgr.migration.plan_file import PlanFile, PlanSummary
from offsetmgr.migration.progress import MigrationState, Stage
from offsetmgr.migration.runbook_commands import EXAMPLE_RESTART


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


def waves(found: Iterable[GroupStatus]) -> list[WaveCounts]:
    """Returns the counts of each wave."""
    return [
        WaveCounts(wave, Counter(one.state for one in members), sum(bool(one.blocked_by) for one in members))
        for wave, members in by_key((one.wave, one) for one in found).items()
    ]


_GROUP: Final = DocumentColumn("group", "name")
_WAVES: Final = (
    DocumentColumn("wave", "name"),
    DocumentColumn("groups", "number"),
    DocumentColumn("finalized", "number"),
    DocumentColumn("blocked", "number"),
    DocumentColumn("states", "words"),
)
_BLOCKED: Final = (
    _GROUP,
    DocumentColumn("wave", "number"),
    DocumentColumn("owner", "words"),
    DocumentColumn("state", "words"),
    DocumentColumn("blocked by", "words"),
)
_GROUPS: Final = (
    _GROUP,
    DocumentColumn("owner", "words"),
    DocumentColumn("state", "words"),
    DocumentColumn("since", "time"),
    DocumentColumn("evidence", "words"),
    DocumentColumn("expires", "time"),
    DocumentColumn("next command", "code"),
)
_COMMANDS: Final = (
    "Run the next commands in the directory of the plan. They contain no connection options, because this page is also"
    f" for other readers: add the options of your login, such as {option('command_config')}. In a restart,"
    f" {RESTART_VARIABLE} is the command that restarts one member, as in RESTART='{EXAMPLE_RESTART}'."
)


class FleetStatus(NamedTuple):
    """The state of every selected group of a plan. ``watched`` is whether the servers were asked."""

    plan: PlanFile
    state: MigrationState
    summary: PlanSummary
    groups: list[GroupStatus]
    watched: bool

    def waves(self) -> list[WaveCounts]:
        """Returns the number of groups in each state, by wave."""
        return waves(self.groups)

    @property
    def restart_note(self) -> str:
        """The meaning of the variable in the next steps that restart members; empty if there are none."""
        if not any(RESTART_VARIABLE in one.next.command_line() for one in self.groups):
            return ""
        return f"{RESTART_VARIABLE} is the command that restarts one member, as in: RESTART='{EXAMPLE_RESTART}'"

    def page(self, at_ms: int) -> tuple[str, list[DocumentPart]]:
        """Returns the title and the parts of a page, which is written at ``at_ms`` (milliseconds since 1970)."""
        return f"Migration {self.plan.path.stem}", _parts(self.plan, self.groups, at_ms, watched=self.watched)


def _parts(plan: PlanFile, found: Sequence[GroupStatus], made_at: int, *, watched: bool) -> list[DocumentPart]:
    """Returns the parts of the page. ``watched`` is True if the servers were asked; otherwise the page shows what the
    plan and the journal record."""
    states, by_wave = Counter(one.state for one in found), waves(found)
    finalized = states[Stage.FINALIZED]
    other_plan = states[Stage.NOT_PLANNED] + states[Stage.ROLLED_BACK] + states[Stage.ROLLED_BACK_IN_PART]
    refresh = Invocation("migrate apply", (str(plan.path),), {"refresh": True}).command_line()
    expiring = expiry_texts((one.expires_ms for one in found), made_at, refresh, watched=watched)
    origin = "from the servers, the plan and its journal" if watched else "from the plan and its journal"
    parts: list[DocumentPart] = [
        Paragraph(f"Written {moment(made_at)} {origin}. All times are UTC."),
        Paragraph(
            f"From {plan.header.source.uri} to {plan.header.target.uri}; the plan was made at "
            f"{moment(plan.header.created_at)}."
        ),
        Facts(
            [
                ("groups", len(found)),
                ("finalized", finalized),
                ("blocked", sum(bool(one.blocked_by) for one in found)),
                ("to do", len(found) - finalized - other_plan),
                ("not planned or rolled back", other_plan),
            ]
        ),
        *(Paragraph(f"{text[0].upper()}{text[1:]}.") for text in map(for_command_line, expiring)),
        Paragraph(_COMMANDS),
        SectionTitle("Waves"),
        Table(_WAVES, [_wave_row(wave) for wave in by_wave]),
        SectionTitle("Blocked groups"),
        Table(
            _BLOCKED,
            [
                (one.group, one.wave or "", one.owner, one.state.value, one.blocked_by)
                for one in found
                if one.blocked_by
            ],
        ),
    ]
    for wave, _, _ in by_wave:
        rows = [_group_row(one) for one in found if one.wave == wave]
        parts += [SectionTitle("Groups without a wave" if wave is None else f"Wave {wave}"), Table(_GROUPS, rows)]
    return parts


def _wave_row(one: WaveCounts) -> Sequence[Any]:
    label = "no wave" if one.wave is None else str(one.wave)
    return label, one.states.total(), one.states[Stage.FINALIZED], one.blocked, one.text


def _group_row(one: GroupStatus) -> Sequence[Any]:
    since = "" if one.since_ms is None else moment(one.since_ms)
    evidence = f"{one.evidence} ({one.known.value})" if one.evidence else ""
    name = one.group if one.group == one.target_group else f"{one.group} → {one.target_group}"
    expires = "" if one.expires_ms is None else moment(one.expires_ms)
    return name, one.owner, one.state.value, since, evidence, expires, one.next.command_line()
