"""Finds the groups that live in the target already, for `offsetmgr.app.migrate.readiness`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.translation.comparison import PositionDifference
from offsetmgr.translation.readiness import GroupReadiness as GroupReadiness
from offsetmgr.translation.readiness import Readiness as Readiness


def living_in_target(
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
