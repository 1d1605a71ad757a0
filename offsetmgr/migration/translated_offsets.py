"""The offsets of a source's groups as offsets of a target with other logs, as a mirror reads them round after round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from offsetmgr.core.clock import Clock
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets
from offsetmgr.migration.plan import PlanOptions, PlanStep
from offsetmgr.migration.translated_groups import TranslatedGroups
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import Translations

_AGAIN_S: Final = 600.0
"""The time after which positions that have not moved are translated again. Until then, a stretch that the target holds
twice since may be repeated, and nothing is skipped."""


class OffsetTranslator:
    """Translates the groups of each round with one read of each log. Answers stay while their positions do."""

    def __init__(self, translations: Translations, options: PlanOptions, clock: Clock) -> None:
        self.translations, self.options, self.clock = translations, options, clock
        self._groups = TranslatedGroups(translations, options.selects)
        self._again_at = 0.0

    def load(self, groups: Iterable[GroupOffsets]) -> list[GroupOffsets]:
        """Reads the groups of a round, then the logs from the positions that have moved on. Returns the groups."""
        found, now = list(groups), self.clock.monotonic()
        if now >= self._again_at:
            self._again_at = now + _AGAIN_S
            self.translations.clear()
        self.translations.keep(one for group in found for one in self._groups.positions(group))
        self._groups.load_all(found)
        return found

    def of(self, found: GroupOffsets) -> tuple[dict[TopicPartition, Committed], dict[TopicPartition, PlanStep]]:
        """Returns the offsets of a loaded group by the target's partition, and the refusals of the others."""
        absent = GroupOffsets(found.name, {})
        steps = self._groups.steps(found, absent, lambda _: None, self.options, Capabilities(True, True, True, "lock"))
        offsets = {one.tp: Committed(*one.after[:2]) for one in steps if one.after is not None}
        return offsets, {one.tp: one for one in steps if one.after is None}


def waits(refusals: Mapping[TopicPartition, PlanStep]) -> set[TopicPartition]:
    """Returns the partitions whose records the target does not hold yet."""
    return {tp for tp, one in refusals.items() if one.origin is not None and one.origin.verdict == Verdict.NOT_YET}
