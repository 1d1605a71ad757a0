"""The offsets of a source's groups as offsets of a target with other logs, as a mirror reads them round after round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from hashlib import blake2b
from typing import Any, Final

from offsetmgr.config.user_directories import state_directory
from offsetmgr.core.atomic_file import exclusive_writer
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import FileFailure, os_error_as
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets, OffsetStore
from offsetmgr.migration.copied_offsets import CopiedOffsets, transferred_steps
from offsetmgr.migration.plan import PlanOptions, PlanStep
from offsetmgr.migration.state_file import StateFileFormat
from offsetmgr.migration.translated_groups import TranslatedGroups
from offsetmgr.translation.alignment import Verdict
from offsetmgr.translation.translator import Translations

_AGAIN_S: Final = 600.0
"""The time after which positions that have not moved are translated again. Until then, a stretch that the target holds
twice since may be repeated, and nothing is skipped."""
_LOCK_MS: Final = 60_000
_FORMAT: Final = StateFileFormat("mirror", "the offsets that mirrors wrote", "offsetmgr-mirrored-offsets", (1,))


class OwnOffsets:
    """The offsets in groups of ``target`` that are not another client's: those that mirrors wrote last, which a file in
    the state directory holds, or those of a newer plan. A group that another client used while it was mirrored has none
    until a newer plan writes them."""

    def __init__(self, source: OffsetStore, target: OffsetStore, clock: Clock) -> None:
        identity = target.identity()
        name = blake2b(f"{identity.kind} {identity.id}".encode(), digest_size=12).hexdigest()
        self.path, self._clock = state_directory() / "mirrors" / f"{name}.json", clock
        self._copies = CopiedOffsets(source, target)

    def load(self, groups: Iterable[tuple[str, str]]) -> dict[str, dict[TopicPartition, set[int]]]:
        """Returns the offsets of groups, of each by its names in the source and in the target. Several offsets of a
        partition are those that a mirror wrote last or tried to write since. Raises the errors of `_saved`."""
        saved, loaded = self._saved(), dict[str, dict[TopicPartition, set[int]]]()
        for source, target in groups:
            at_ms, offsets = saved.get(target, (0, ()))
            own = loaded[target] = {TopicPartition(topic, number): set(written) for topic, number, written in offsets}
            for tp, copy in self._copies.of(source, target, transferred_steps).items():
                if (copy.at_ms or 1) > at_ms:  # a copy without a time kept what was there
                    own.setdefault(tp, set()).add(copy.offsets[1])
        return loaded

    def save(self, groups: Mapping[str, Mapping[TopicPartition, Set[int]]]) -> None:
        """Replaces the offsets of groups, by their names in the target. Raises `FileFailure`, and the errors of
        `_saved`."""
        if not groups:
            return
        with os_error_as(FileFailure, f"file {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        new = {name: [(*tp, sorted(written)) for tp, written in offsets.items()] for name, offsets in groups.items()}
        now_ms = self._clock.now_ms()
        with exclusive_writer(self.path, _LOCK_MS):
            _FORMAT.save(self.path, {"groups": self._saved() | {name: (now_ms, one) for name, one in new.items()}})

    def _saved(self) -> dict[str, Any]:
        """Returns the content of the file: for each group of the target the time, and its offsets. Raises
        `JournalError`, `UnknownVersion`."""
        return _FORMAT.load(self.path, lambda found: dict(found.mapping("groups"))) or {}


class OffsetTranslator:
    """Translates the groups of each round with one read of each log. Answers stay while their positions do."""

    def __init__(self, translations: Translations, options: PlanOptions, clock: Clock, own: OwnOffsets) -> None:
        self.translations, self.options, self.clock, self.own = translations, options, clock, own
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
