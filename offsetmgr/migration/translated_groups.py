"""`TranslatedGroups`: the positions of groups in another cluster, for plans and for their verification."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.commit_mode import Confidence
from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation
from offsetmgr.core.model import ABSENT, Committed, LogRange, Offset, OffsetAndMetadata, TopicPartition, state_in
from offsetmgr.core.offset_store import Capabilities, GroupOffsets
from offsetmgr.migration.plan import Action, MissingTopic, PlanOptions, PlanSource, PlanStep, decide
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import TranslatedOffset, Translations

FindLog: TypeAlias = Callable[[TopicPartition], LogRange | MissingTopic | OffsetMgrError | None]
_EVIDENCE = {Verdict.SEEN: Confidence.SEEN, Verdict.INFERRED: Confidence.INFERRED}


class TranslatedGroups:
    """The positions of groups of one cluster in another one. ``selects`` limits the partitions of the source."""

    def __init__(self, translations: Translations, selects: Callable[[TopicPartition], bool]) -> None:
        self.translations = translations
        self._selects = selects
        self._known: dict[tuple[TopicPartition, int], tuple[TranslatedOffset, PlanSource] | OffsetMgrError] = {}
        """The results of `_place` since the last `load`, because groups share positions."""

    def positions(self, found: GroupOffsets) -> Iterator[tuple[TopicPartition, int]]:
        """Yields the positions of a group that can be translated."""
        for tp, committed in found.offsets.items():
            if self._selects(tp) and state_in(committed.metadata) is None:
                yield tp, committed.offset

    def get(self, tp: TopicPartition, committed: Committed) -> TranslatedOffset | OffsetMgrError:
        """Returns the translation of a commit whose position is loaded, or the reason why there is none."""
        return client_state_error(tp, committed) or self.translations.get(tp, committed.offset)

    def load(self, groups: Iterable[GroupOffsets]) -> None:
        """Translates the positions of groups. Raises the errors of `Translations.load`."""
        self._known.clear()
        self.translations.load(one for found in groups for one in self.positions(found))

    def load_all(self, groups: Iterable[GroupOffsets]) -> None:
        """Like `load`, for all groups of the command. Raises `UsageError` if a rule of the names matches nothing."""
        self.load(groups)
        self.translations.require_matches({tp.topic for tp in self.translations.partitions})

    def places(self, found: GroupOffsets) -> Iterator[tuple[TopicPartition, int]]:
        """Yields the offsets in the target of a group whose positions are loaded."""
        for tp, position in self.positions(found):
            place = self._place(tp, position)
            if not isinstance(place, OffsetMgrError) and place[0].answer.offset is not None:
                yield place[0].target, place[0].answer.offset

    def _place(self, tp: TopicPartition, position: int) -> tuple[TranslatedOffset, PlanSource] | OffsetMgrError:
        """Returns the translation of a loaded position, with the origin of its offset."""
        if (known := self._known.get((tp, position))) is None:
            there = self.translations.get(tp, position)
            known = there if isinstance(there, OffsetMgrError) else (there, origin_of(tp, there))
            self._known[tp, position] = known
        return known

    def steps(
        self, source: GroupOffsets, target: GroupOffsets, log: FindLog, options: PlanOptions, capabilities: Capabilities
    ) -> list[PlanStep]:
        """Returns the steps of a group whose positions are loaded."""
        steps: dict[TopicPartition, PlanStep] = {}
        for tp in filter(self._selects, {*source.offsets, *source.errors}):
            copy = self.translations.target(tp)
            held: Offset | OffsetMgrError = target.errors.get(copy) or target.offsets.get(copy) or ABSENT
            steps[copy] = self._step(tp, source.errors.get(tp) or source.offsets[tp], held, log, options)
            if not capabilities.metadata:
                steps[copy] = _without_metadata(steps[copy])
        for copy in {*target.offsets, *target.errors}.difference(steps):
            if (old := self.translations.source(copy)) is not None and self._selects(old):
                steps[copy] = decide(copy, None, target.errors.get(copy) or target.offsets[copy], None, options)
        return [steps[tp] for tp in sorted(steps)]

    def _step(
        self,
        tp: TopicPartition,
        found: Committed | OffsetMgrError,
        held: Offset | OffsetMgrError,
        log: FindLog,
        options: PlanOptions,
    ) -> PlanStep:
        copy, origin = self.translations.target(tp), PlanSource(tp.partition, "", Confidence.UNKNOWN, tp.topic)
        if isinstance(found, OffsetMgrError):
            return decide(copy, found, held, None, options)._replace(origin=origin)
        position = OffsetAndMetadata(found.offset, found.metadata)
        current = held.value() if isinstance(held, Committed) else None
        refusal = PlanStep(copy, Action.REFUSE_UNTRANSLATED, position, current, None, origin=origin)
        place = client_state_error(tp, found) or self._place(tp, found.offset)
        if isinstance(place, OffsetMgrError):
            text = place.why if place.what == str(tp) else place.text
            return refusal._replace(note=Advice.joined(filter(None, (text, place.hint))))
        there, origin = place
        if there.problem or there.answer.offset is None:
            return refusal._replace(action=Action.REFUSE_UNSURE, note=there.problem, origin=origin)
        step = decide(copy, OffsetAndMetadata(there.answer.offset, found.metadata), held, log(copy), options)
        unsure = there.answer.verdict is not Verdict.SEEN or self.translations.partitions[tp].note
        note = Advice.joined(filter(None, (there.how, step.note))) if unsure else step.note
        return step._replace(source=position, note=note, origin=origin)


def client_state_error(tp: TopicPartition, committed: Committed) -> UnsupportedOperation | None:
    """Returns an error if the metadata of a commit is state of its client."""
    if (form := state_in(committed.metadata)) is None:
        return None
    why = f"its commit metadata is {form}, valid for this offset and log alone; its client must move it"
    return UnsupportedOperation(str(tp), why)


def origin_of(tp: TopicPartition, there: TranslatedOffset) -> PlanSource:
    """Returns the origin of the offset that a translation gives."""
    answer = there.answer
    known = (None, None) if answer.offset is None else (answer.repeats, answer.missing)
    return PlanSource(tp.partition, there.how, evidence_of(there), tp.topic, str(answer.verdict), *known)


def evidence_of(there: TranslatedOffset) -> Confidence:
    """Returns the confidence of an offset that a translation gives."""
    return _EVIDENCE.get(there.answer.verdict, Confidence.UNKNOWN)


def _without_metadata(step: PlanStep) -> PlanStep:
    """Returns the step for a target that cannot hold metadata."""
    return step if step.after is None else step._replace(after=step.after._replace(metadata=""))
