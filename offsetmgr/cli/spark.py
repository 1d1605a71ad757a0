"""``offsetmgr spark``: audits, compares and copies offsets with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, NamedTuple

from offsetmgr.app import spark as jobs
from offsetmgr.cli.connect_flags import ChangeFlags, ConnectFlags, command
from offsetmgr.cli.options import FormatOption, GroupFlags, SideConfigs, TopicFlags, TranslateOption, command_group, opt
from offsetmgr.cli.render import Column, OutputFormat, fail_if, note, rows_of, write_rows
from offsetmgr.core.errors import UsageError
from offsetmgr.core.plurals import count_of

app = command_group()

OneStore = Annotated[str, opt("--from", "URI", "One store.")]
OtherStore = Annotated[str, opt("--to", "URI", "The other store.")]


class SparkFlags(NamedTuple):
    """The options of a Spark job."""

    master: Annotated[str | None, opt("--master", "URL", "Spark's master (default: the cores of this machine).")] = None
    conf: Annotated[list[str] | None, opt("--conf", "KEY=VALUE", "A Spark setting; repeatable.")] = None

    def settings(self) -> jobs.SparkSettings:
        """Returns the values of the options. Raises `UsageError`."""
        pairs = [one.partition("=") for one in self.conf or ()]
        for name, equals, _ in pairs:
            if not equals:
                raise UsageError(f"--conf {name}", "is not KEY=VALUE", "as in --conf spark.executor.memory=4g")
        return jobs.SparkSettings(self.master, {name: value for name, _, value in pairs})


_PARTITION: Final = (Column("group"), Column("topic"), Column("partition", right=True))
_OFFSET: Final = Column("offset", right=True)
_BEFORE: Final = Column("before", right=True)
_OUTCOME: Final = Column("outcome", get="status")
_ERROR: Final = Column("error", optional=True)
_TABLES: Final = (Column("table"), Column("rows", right=True), Column("path"), Column("what"))
_DIFFERENCES: Final = (
    *_PARTITION,
    Column("difference", get="kind"),
    Column("from_offset", right=True, get="left_offset"),
    Column("to_offset", right=True, get="right_offset"),
    Column("from_metadata", optional=True, get="left_metadata"),
    Column("to_metadata", optional=True, get="right_metadata"),
    _ERROR,
)
_OUTCOMES: Final = (*_PARTITION, _OFFSET, _OUTCOME, _BEFORE, _ERROR)
_PLANNED: Final = (*_PARTITION, _OFFSET, _BEFORE, _OUTCOME, _ERROR)


@command(app, "audit", one="Spark runs one job for one pair of stores")
def audit(
    connect: ConnectFlags,
    directory: Annotated[Path, opt("--output -o", "DIR", "A new directory for the results.")],
    offsets_topic: Annotated[
        str, opt("--offsets-topic", "NAME", "Kafka's own, or an offset manager's.")
    ] = "__consumer_offsets",
    silent_days: Annotated[float, opt("--silent-days", None, "Days without a commit.", min=0)] = 7.0,
    gap_minutes: Annotated[int, opt("--gap", "MINUTES", "Minimum length of a gap.", min=1)] = 60,
    compare: Annotated[str | None, opt("--compare", "URI", "A store to compare the topic with.")] = None,
    compare_config: Annotated[
        str | None,
        opt("--compare-command-config", "FILE", "Like --command-config, but only for the compared store."),
    ] = None,
    *,
    job: SparkFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Read the offsets topic itself: latest offsets, commit history, silent groups, tombstones, expiry and lag as
    Parquet tables, and a page (index.html) that can be read without Spark.

    The exit code is 1 if records of the topic could not be read (they are in the table "unreadable"), or if the store
    of --compare differs (the table "differences").
    """
    config = None if compare_config is None else connect.connection(compare_config)
    options = jobs.AuditOptions(offsets_topic, silent_days, gap_minutes, compare, config)
    report = jobs.audit(connect, directory, options, spark=job.settings())
    write_rows(_TABLES, report.tables, output)
    note(f"report: {report.page}")
    if report.unreadable:
        note(f"{count_of(report.unreadable, 'record')} could not be read")
    if report.differences is not None:
        note(f"{count_of(report.differences, 'difference') if report.differences else 'no difference'} from {compare}")
    fail_if(report.unreadable or report.differences)


@command(app, "diff", one="Spark runs one job for one pair of stores")
def diff(
    connect: ConnectFlags,
    source: OneStore,
    target: OtherStore,
    groups: GroupFlags,
    topics: TopicFlags,
    *,
    configs: SideConfigs,
    job: SparkFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the differences between two stores, computed by Spark's executors; the exit code is 1 on any difference."""
    sides, chosen = jobs.Sides(source, target, *connect.of_sides(*configs)), topics.selection()
    found = jobs.diff(connect, sides, groups.selection(), chosen, spark=job.settings())
    count = write_rows(_DIFFERENCES, rows_of(_DIFFERENCES, found), output)
    note(count_of(count, "difference") if count else "no difference")
    fail_if(count)


@command(app, "copy")
def copy(
    connect: ConnectFlags,
    source: OneStore,
    target: OtherStore,
    groups: GroupFlags,
    topics: TopicFlags,
    translate: TranslateOption = None,
    *,
    flags: ChangeFlags,
    configs: SideConfigs,
    job: SparkFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Copy committed offsets from one store to another with Spark's executors: forward only, each write conditional.

    The command shows the outcome for each offset: write, unchanged, refuse-rewind (the target's offset is larger), or
    refuse-recreated (the topic was recreated after the commit). With --execute it lists the offsets that were not
    copied, and the exit code is 1 if there are any. For a migration that can be undone, use migrate.
    """
    sides, chosen = jobs.Sides(source, target, *connect.of_sides(*configs)), topics.selection()
    execute, reason, spark = flags.execute, flags.reason or "", job.settings()
    with jobs.copy(
        connect, sides, groups.selection(), chosen, translate=translate, execute=execute, reason=reason, spark=spark
    ) as found:
        counts, gone, columns = found.counts, found.recreated, _OUTCOMES if execute else _PLANNED
        write_rows(columns, rows_of(columns, found.rows()), output)
        if execute:
            summary = ", ".join(f"{counts.get(name, 0):,} {name}" for name in ("written", "unchanged", "failed"))
            summary += f", {gone:,} refuse-recreated" if gone else ""
            note(f"{summary}{f'; not atomic: {found.not_atomic:,}' if found.not_atomic else ''}")
        else:
            text = f"{counts.get('write', 0):,} would be written, {counts.get('unchanged', 0):,} are equal already"
            if rejected := counts.get("refuse-rewind"):
                text += f", {rejected:,} would be refused (the target's offset is larger)"
            text += f", {gone:,} are refused (the topic was recreated after the commit)" if gone else ""
            note(f"{text}; nothing was written, --execute does it")
    fail_if(counts.get("failed") or gone)
