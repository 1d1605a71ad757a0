"""Checks whether groups could resume in another cluster now. Without a response, returns the last check."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from offsetmgr.app.connections import Connections, SourceAndTarget
from offsetmgr.app.offsets import diff_translated
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.user_directories import state_directory
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import FileFailure, OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.selection import ALL_GROUPS, ALL_TOPICS, GroupSelection, TopicSelection
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
        deque(found, maxlen=0)
        checked = checked.of(found.of_groups, found.lacking, found.errors)
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
