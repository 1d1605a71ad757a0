"""``offsetmgr migrate readiness``: the consequences for groups if their cluster were lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from offsetmgr.cli.connect_flags import ConnectFlags, command
from offsetmgr.cli.options import (
    GroupFlags,
    MetricsOption,
    Rename,
    SideConfigs,
    SourceStore,
    TopicFlags,
    TranslationFlags,
    command_group,
    flag,
    opt,
    parse_renames,
)
from offsetmgr.cli.render import (
    PROMETHEUS,
    Column,
    MetricsFormat,
    OutputFormat,
    fail_if,
    note,
    report_and_exit_code,
    write_rows,
    write_samples,
)
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.clock import SystemClock

if TYPE_CHECKING:
    from offsetmgr.app.readiness import GroupReadiness, Readiness

app = command_group("The command that `offsetmgr.cli.migrate` adds to its own.")

READINESS: Final = (
    Column("group"),
    Column("partitions", right=True, rank=12, title="PARTS"),
    *(Column(name, right=True, attention=True) for name in ("repeats", "skips", "absent", "unknown")),
    Column("reasons", detail=True),
    *(Column(name, detail=True) for name in ("only_source", "unknown_partitions", "current", "checked_at", "age_ms")),
    Column("why", optional=True),
    Column("lives", detail=True),
)


@command(app, "readiness", one="it compares two clusters")
def readiness_command(
    connect: ConnectFlags,
    from_: SourceStore,
    to: Annotated[str, opt("--to", "URI", "The store to compare: a URI, or zookeeper, kafka or manager.")],
    *,
    groups: GroupFlags,
    topics: TopicFlags,
    translation: TranslationFlags,
    rename: Rename = None,
    max_repeats: Annotated[int, opt("--max-repeats", "N", "Records that each group may repeat.", min=0)] = 0,
    max_lost: Annotated[int, opt("--max-lost", "N", "Records that only the source may hold.", min=0)] = 0,
    all_rows: Annotated[bool, flag("--all", "List groups that are ready too.")] = False,
    configs: SideConfigs,
    format: MetricsOption = MetricsFormat(OutputFormat.TABLE),
) -> None:
    """Check what the groups would do at --to if the cluster of --from were lost now; nothing is changed.

    The command reads the offsets that the groups have in both clusters, and the logs of both. A group repeats records
    if its offset at --to is too small. It skips records that --to holds if the offset is too large, and without an
    offset there its consumers start by auto.offset.reset. Records that only --from holds would be lost.

    The exit code is 0 only if every position is known, no group skips records or has no offset, and the other numbers
    are within the given bounds. A group that has members only at --to is named, and counts as ready. If a cluster does
    not respond, the command shows the last complete check with the same options, and its age; the exit code is 1. In
    JSON and CSV, the last row has the sums, and no group.
    """
    from offsetmgr.app import migrate
    from offsetmgr.app.metrics import readiness_samples

    sides, renames = connect.sides(configs), parse_renames(rename)
    options: dict[str, Any] = {"rules": translation.rules(), "rename": renames, "sides": sides}
    read = partial(migrate.readiness, connect, from_, to, groups.selection(), topics.selection(), **options)
    if format == PROMETHEUS:
        checked, _ = write_samples("migrate readiness", read, readiness_samples)
    else:
        checked = read()
        everything = all_rows or not format.for_people
        shown = [(one.name, one) for one in checked.groups if everything or not one.is_ready(max_repeats)]
        if shown or not format.for_people:
            sums = [] if format.for_people else [(None, checked.sums)]
            write_rows(READINESS, _readiness_rows(checked, [*shown, *sums]), format)
    code = report_and_exit_code([checked.silent] if checked.silent else checked.errors)
    for line in checked.lines(SystemClock().now_ms()):
        note(line)
    ready = replace(checked, silent=None).is_ready(max_repeats, max_lost)
    then = " then" if checked.silent else ""
    note(f"ready{then}" if ready else f"not ready{then}, by --max-repeats {max_repeats} and --max-lost {max_lost}")
    ready = ready and not code
    if not ready and checked.silent is None:
        arguments = {"from": from_, "to": to, "translate": "auto", **checked.arguments, **sides.arguments}
        note(Advice("next: {}", Invocation("offsets diff", (), arguments)))
    fail_if(not ready)


def _readiness_rows(
    checked: Readiness, shown: Iterable[tuple[str | None, GroupReadiness]]
) -> Iterator[tuple[Any, ...]]:
    age_ms = max(SystemClock().now_ms() - checked.checked_at_ms, 0)
    state = (checked.silent is None, checked.checked_at_ms, age_ms)
    for name, one in shown:
        numbers = (one.partitions, *one.numbers.values(), one.reasons_text or None)
        lost = (checked.only_source, checked.unknown_partitions) if name is None else (None, None)
        yield (name, *numbers, *lost, *state, one.why or None, one.lives or None)
