"""Checks whether groups could resume in another cluster now. Without a response, returns the last check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from offsetmgr.app.connections import Connections, SourceAndTarget
from offsetmgr.app.offsets import diff_translated
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.user_directories import state_directory
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import FileFailure, OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.selection import ALL_GROUPS, ALL_TOPICS, GroupSelection, TopicSelection
from offsetmgr.translation.comparison import PositionDifference
from offsetmgr.translation.readiness import GroupReadiness as GroupReadiness
from offsetmgr.translation.readiness import LastReadiness
from offsetmgr.translation.readiness import Readiness as Readiness


def check(
    connections: Connections,
    uris: tuple[str, str],
    groups: GroupSelection | None,
    topics: TopicSelection | None,
    *,
    rules: TranslationRules | None,
    rename: Mapping[str, str],
    sides: Sequence[ConnectionConfig] | None,
) -> Readiness:
    """Does what `offsetmgr.app.migrate.readiness` does, for the URIs of the source and the target."""
    groups, topics, began_ms = groups or ALL_GROUPS, topics or ALL_TOPICS, SystemClock().now_ms()
    rules = (rules or TranslationRules())._replace(lost=True)
    named = {"rename": tuple(f"{old}={new}" for old, new in rename.items()), "rename_topic": rules.topics}
    arguments = {**groups.arguments, "topic": tuple(topics.texts), **named, "accept": rules.accepts}
    last = LastReadiness(state_directory() / "readiness", uris, arguments)
    stores = SourceAndTarget(connections, *uris, sides)
    origins, silent = stores.origins()
    if silent is not None:
        return last.instead(silent, origins)
    clusters = {side: origin.name for side, origin in origins.items()}
    checked = Readiness(*uris, began_ms, clusters, arguments)
    failure: OffsetMgrError | None = None
    try:
        found = diff_translated(connections, *uris, groups, topics, rules=rules, rename=rename, sides=sides)
        living = _living_in_target(stores, rename, found)
        checked = checked.of(found.of_groups, found.lacking, found.errors, living)
    except (Unreachable, TimedOut) as error:
        failure = error
    if not checked.is_complete:
        origins, silent = stores.origins()
        if (lost := silent or failure) is not None:
            return last.instead(lost, origins)
        connections.warn("not saved as the last known state, because not everything could be read")
        return checked
    try:
        last.save(checked)
    except FileFailure as error:
        connections.warn(f"not saved as the last known state: {error}")
    return checked


def _living_in_target(
    stores: SourceAndTarget, rename: Mapping[str, str], found: Iterable[PositionDifference]
) -> dict[str, str]:
    """Returns the groups that consume in the target already, each with the evidence. Such a group is not known to be
    behind there, and has no members in the source. It has members in the target, or its offset there has moved on from
    the one that offsetmgr wrote, while the source's stood still."""
    from offsetmgr.migration.copied_offsets import CopiedOffsets, transferred_steps
    from offsetmgr.migration.cutover_gates import members_text

    copies = CopiedOffsets(stores.source, stores.target)
    copied = cache(lambda group: copies.of(group, rename.get(group, group), transferred_steps))
    ahead, moved_in_source = dict[str, str](), set[str]()
    for one in found:
        if one.target is None or one.from_offset is None or one.to_offset is None or one.skips == 0:
            continue
        evidence = ahead.setdefault(one.group, "")
        if (copy := copied(one.group).get(one.target)) is None:
            continue
        planned, written = copy.offsets
        if one.from_offset != planned:
            moved_in_source.add(one.group)
        elif one.to_offset > written and not evidence:
            wrote = f"offsetmgr wrote {written} to {one.target} there, which is at {one.to_offset} now"
            ahead[one.group] = f"{wrote}, and the source still holds {planned}"
    if not (ahead and all(store.uri.startswith("kafka:") for store in (stores.source, stores.target))):
        return {}
    source, target = stores.clusters()
    here, there = source.describe_groups(ahead), target.describe_groups(rename.get(name, name) for name in ahead)
    living = {}
    for name, evidence in ahead.items():
        in_source, in_target = here[name], there[rename.get(name, name)]
        if isinstance(in_source, OffsetMgrError) or isinstance(in_target, OffsetMgrError) or not in_source.idle:
            continue
        if text := members_text(in_target) or evidence * (name not in moved_in_source):
            living[name] = text
    return living
