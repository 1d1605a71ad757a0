"""The choice of groups, and evidence about them in the target, for `offsetmgr.app.migrate.readiness`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.core.advice import Argument
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.translation.comparison import PositionDifference
from offsetmgr.translation.readiness import GroupReadiness as GroupReadiness
from offsetmgr.translation.readiness import Readiness as Readiness


def chosen_by(
    selection: GroupSelection, topics: TopicSelection, rules: TranslationRules, rename: Mapping[str, str]
) -> dict[str, Argument]:
    """Returns the arguments of a further call for the same check, whatever the order of the given names is."""
    renames = tuple(f"{old}={new}" for old, new in rename.items())
    named = {**selection.arguments, "topic": tuple(topics.texts), "rename": renames, "accept": rules.accepts}
    arguments = {name: tuple(sorted(one)) if isinstance(one, tuple) else one for name, one in named.items()}
    return {**arguments, "rename_topic": rules.topics}  # the first rule that matches counts


def found_in_target(
    stores: SourceAndTarget, rename: Mapping[str, str], found: Iterable[PositionDifference]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the groups that have members in the target, and none in the source, and are not known to be behind
    there, each with its members. Then the groups with an offset there other than a plan wrote, each with the first of
    these offsets. The source still holds the offset that was translated, so a mirror has no reason to write another."""
    from offsetmgr.migration.copied_offsets import CopiedOffsets, transferred_steps
    from offsetmgr.migration.cutover_gates import members_text

    copies = CopiedOffsets(stores.source, stores.target)
    copied = cache(lambda group: copies.of(group, rename.get(group, group), transferred_steps))
    ahead, living, foreign = dict[str, str](), dict[str, str](), dict[str, str]()
    for one in found:
        if one.target is None or one.from_offset is None or one.to_offset is None:
            continue
        if one.skips != 0:
            ahead[one.group] = rename.get(one.group, one.group)
        copy = copied(one.group).get(one.target)
        if copy is not None and one.from_offset == copy.offsets[0] and one.to_offset != copy.offsets[1]:
            wrote = f"a plan wrote {copy.offsets[1]} to {one.target} there, which is at {one.to_offset} now"
            foreign.setdefault(one.group, f"{wrote}: another command, or a consumer that ran there, wrote that")
    if ahead and all(store.uri.startswith("kafka:") for store in (stores.source, stores.target)):
        source, target = stores.clusters()
        here, there = source.describe_groups(ahead), target.describe_groups(ahead.values())
        for name, renamed in ahead.items():
            in_source, in_target = here[name], there[renamed]
            idle = not isinstance(in_source, OffsetMgrError) and in_source.idle
            if idle and not isinstance(in_target, OffsetMgrError) and in_target.members:
                living[name] = members_text(in_target)
    return living, foreign
