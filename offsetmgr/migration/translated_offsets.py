"""The offsets of a source's groups as offsets of a target with other logs, as a mirror reads them round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import Committed, TopicPartition, state_in
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import TranslatedOffset, Translations

_AGAIN_S: Final = 600.0
"""The time after which positions that have not moved are translated again. Until then, a stretch that the target holds
twice since may be repeated, and nothing is skipped."""


class MissingTranslation(NamedTuple):
    """Why an offset of the source has no offset in the target. ``waits`` tells whether the target is expected to hold
    the records soon."""

    why: str
    waits: bool = False


class TranslatedGroup(NamedTuple):
    """The offsets of a group by the target's partition. ``upper`` has the largest offset that may be right where the
    user accepts an answer that is not exact. ``untranslated`` has partitions of the source."""

    offsets: Mapping[TopicPartition, Committed]
    upper: Mapping[TopicPartition, int]
    untranslated: Mapping[TopicPartition, MissingTranslation]


@dataclass(slots=True)
class OffsetTranslator:
    """Translates the groups of each round with one read of each log. Answers stay while their positions do."""

    translations: Translations
    clock: Clock
    _again_at: float | None = None

    def load(self, groups: Iterable[GroupOffsets], selects: Callable[[TopicPartition], bool]) -> list[GroupOffsets]:
        """Reads the groups of a round, then the logs from the positions that have moved on. Returns the groups."""
        found, now = list(groups), self.clock.monotonic()
        of_selected = ((tp, c) for one in found for tp, c in one.offsets.items() if selects(tp))
        positions = {(tp, c.offset) for tp, c in of_selected if self._refusal(tp, c) is None}
        if self._again_at is None and (rename := self.translations.rename):
            topics = {tp.topic for tp, _ in positions}
            rename.require_matches({*self.translations.source_topics(), *topics}, topics)
        if self._again_at is None or now >= self._again_at:
            self._again_at = now + _AGAIN_S
            self.translations.clear()
        self.translations.keep(positions)
        self.translations.load(positions)
        return found

    def of(self, offsets: Mapping[TopicPartition, Committed]) -> TranslatedGroup:
        """Returns the translation of offsets of a group that was loaded."""
        found: dict[TopicPartition, Committed] = {}
        upper: dict[TopicPartition, int] = {}
        untranslated: dict[TopicPartition, MissingTranslation] = {}
        sources: dict[TopicPartition, TopicPartition] = {}
        for tp, committed in offsets.items():
            answer = self._refusal(tp, committed) or self._answer(tp, committed.offset)
            if isinstance(answer, MissingTranslation):
                untranslated[tp] = answer
                continue
            right, target = answer.answer, answer.target
            if (other := sources.setdefault(target, tp)) != tp:
                untranslated |= {
                    one: MissingTranslation(f"{other} and {tp} have the same copy {target}") for one in (other, tp)
                }
                found.pop(target, None)
                continue
            assert right.offset is not None  # an answer without a problem has an offset
            found[target] = Committed(right.offset, committed.metadata)
            if right.upper is not None:
                upper[target] = right.upper
        return TranslatedGroup(found, upper, untranslated)

    def _refusal(self, tp: TopicPartition, committed: Committed) -> MissingTranslation | None:
        if (form := state_in(committed.metadata)) is not None:
            return MissingTranslation(f"its commit metadata is {form}, which is valid for this offset and log alone")
        try:
            self.translations.rename(tp.topic)
        except UsageError as error:
            return MissingTranslation(error.text)
        return None

    def _answer(self, tp: TopicPartition, position: int) -> TranslatedOffset | MissingTranslation:
        found = self.translations.get(tp, position) if tp in self.translations.partitions else None
        if found is None:
            return MissingTranslation("the mirror was stopped before it read the logs", waits=True)
        if isinstance(found, OffsetMgrError):
            return MissingTranslation(Advice.joined(filter(None, (found.why, found.hint))), waits=found.retriable)
        if found.problem:
            return MissingTranslation(found.problem, waits=found.answer.verdict is Verdict.NOT_YET)
        return found
