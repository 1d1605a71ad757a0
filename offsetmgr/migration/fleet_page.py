"""The page of a fleet: where every group of a plan is, as HTML or Markdown. Pure."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from offsetmgr.core.document import DocumentColumn, DocumentPart, Facts, Paragraph, SectionTitle, Table, moment
from offsetmgr.migration.fleet import RESTART_VARIABLE, GroupStatus, counts, expiry_texts
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.progress import Stage
from offsetmgr.migration.runbook_commands import EXAMPLE_RESTART

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
    " for other readers: add the options of your login, such as --command-config. In a restart,"
    f" {RESTART_VARIABLE} is the command that restarts one member, as in RESTART='{EXAMPLE_RESTART}'."
)


def fleet_title(plan: PlanFile) -> str:
    return f"Migration {plan.path.stem}"


def fleet_parts(plan: PlanFile, found: Sequence[GroupStatus], made_at: int, *, watched: bool) -> list[DocumentPart]:
    """Returns the parts of the page. ``watched`` is True if the servers were asked; otherwise the page shows what the
    plan and the journal record."""
    states = Counter(one.state for one in found)
    finalized = states[Stage.FINALIZED]
    other_plan = states[Stage.NOT_PLANNED] + states[Stage.ROLLED_BACK] + states[Stage.ROLLED_BACK_IN_PART]
    refresh = f"offsetmgr migrate apply {shlex.quote(str(plan.path))} --refresh"
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
        *(Paragraph(f"{text[0].upper()}{text[1:]}.") for text in expiring),
        Paragraph(_COMMANDS),
        SectionTitle("Waves"),
        Table(_WAVES, [_wave_row(*row) for row in counts(found)]),
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
    for wave, _states, _blocked in counts(found):
        rows = [_group_row(one) for one in found if one.wave == wave]
        parts += [SectionTitle("Groups without a wave" if wave is None else f"Wave {wave}"), Table(_GROUPS, rows)]
    return parts


def _wave_row(wave: int | None, states: Any, blocked: int) -> Sequence[Any]:
    named = ", ".join(f"{count} {state.value}" for state, count in sorted(states.items()))
    label = "no wave" if wave is None else str(wave)
    return label, states.total(), states[Stage.FINALIZED], blocked, named


def _group_row(one: GroupStatus) -> Sequence[Any]:
    since = "" if one.since_ms is None else moment(one.since_ms)
    evidence = f"{one.evidence} ({one.known.value})" if one.evidence else ""
    name = one.group if one.group == one.target_group else f"{one.group} → {one.target_group}"
    expires = "" if one.expires_ms is None else moment(one.expires_ms)
    return name, one.owner, one.state.value, since, evidence, expires, one.next_command
