"""Reads the logs of two clusters for commands that translate positions, with what a user must see meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from offsetmgr.app.connections import Connections, SourceAndTarget
from offsetmgr.app.ui import Ui
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    OffsetMgrError,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.log_origin import TranslationChoice, TranslationRules
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.topic_renames import TopicRenames

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore
    from offsetmgr.kafka.cluster import KafkaCluster
    from offsetmgr.translation.translator import TranslatedPartition, Translations

_MIN_PROGRESS: Final = 16
"""The progress of so many partitions is shown by their number, and that of fewer ones by the bytes read."""
_LARGE_READ: Final = 1_000_000_000
_MANY_RECORDS: Final = 100_000
"""A command notes a read that may have more bytes and has more records."""


def translating(
    connections: Connections, pair: SourceAndTarget, translate: TranslationChoice | None, command: str = ""
) -> SourceAndTarget:
    """Returns the pair, whose planner and verifier translate by the records if ``translate`` has rules for this.
    ``command`` is as in `Translations`."""
    if isinstance(translate, TranslationRules):
        opener = partial(open_translations, connections, pair, translate, command=command)
        pair.translates, pair.open_translations = True, opener
    return pair


def open_translations(
    connections: Connections, pair: SourceAndTarget, rules: TranslationRules, *, again: bool = False, command: str = ""
) -> Translations:
    """Returns the translations of positions of the source's cluster into positions of the target's cluster. Raises
    `UsageError` if both stores belong to one cluster, and `UnsupportedOperation` if one of them has no logs.

    ``again`` is for a command that translates again and again, and shows its own state: only the first read is
    announced. ``command`` is as in `Translations`.
    """
    from offsetmgr.translation.translator import PositionTranslator, Translations

    _require_two_logs(pair.source, pair.target, renamed=bool(TopicRenames(rules.topics)))
    source, target = pair.clusters()
    announced, total, show = False, 0, Ui().meter("")

    def on_read(read: int) -> None:
        nonlocal total
        total += read
        show(total, None)

    def started(positions: Mapping[TopicPartition, Collection[int]]) -> None:
        nonlocal announced, total, show
        if not (again and announced):
            _note_reading(connections, source, positions, rules)
        shows_bytes = not again and len(positions) < _MIN_PROGRESS
        announced, total = True, 0
        show = (connections.ui if shows_bytes else Ui()).meter("reading both logs, KiB", 1024)

    def shown(found: Iterable[TranslatedPartition], total: int) -> Iterator[TranslatedPartition]:
        for one in connections.ui.progress(found, "translating", total) if not again else found:
            if one.error is not None:
                with_hint(one.error, one.source, one.target, renamed=bool(rules.topics), command=command)
            yield one

    return Translations(PositionTranslator(source, target, rules, on_read), rules, started, shown, command)


def _require_two_logs(left: OffsetStore, right: OffsetStore, *, renamed: bool) -> None:
    """Raises the errors of `open_translations`. ``renamed`` tells whether topics have other names in the target."""
    from offsetmgr.core.log_origin import compare_origins
    from offsetmgr.core.offset_store import PartitionKinds

    for store in (left, right):
        if store.uri.startswith("file:") or store.capabilities.partitions is PartitionKinds.OF_BROKERS:
            why = "has no logs of Kafka 0.8 or later: translation reads the records at the committed offsets"
            raise UnsupportedOperation(store.uri, why, "name the Kafka cluster or the ZooKeeper of the groups")
    compared = compare_origins(left.log_origin(), right.log_origin())
    if compared.keeps_epochs and not renamed:
        why = f"both stores belong to one cluster ({compared.how}), in which equal offsets are the same records"
        raise UsageError(
            Advice("{translate=auto}"), why, Advice("name two clusters; or compare the offsets: leave out {translate}")
        )


def with_hint(
    error: OffsetMgrError, source: TopicPartition, target: TopicPartition, *, renamed: bool, command: str = ""
) -> OffsetMgrError:
    """Adds a hint at what a translation needs, if the error is that something is missing. ``renamed`` tells whether
    topics have other names in the target. ``command`` is as in `Translations`."""
    from offsetmgr.translation.translator import TooMuch, enough_text

    if isinstance(error, TopicNotAuthorized):
        topics = f"topic {source.topic} in the source, and on topic {target.topic} in the target"
        error.hint = f"a translation reads the logs of both clusters: grant Read on {topics}"
    elif isinstance(error, UnknownTopicOrPartition) and renamed:
        error.hint = Advice("check the name that {rename_topic} gives in the target")
    elif isinstance(error, UnknownTopicOrPartition) and not error.hint:
        error.hint = Advice("if the target's topic has another name: {rename_topic} {}", r"'(.*)=PREFIX.\1'")
    elif isinstance(error, TooMuch) and error.enough:
        error.hint = enough_text(error.enough, command)
    return error


def _note_reading(
    connections: Connections,
    source: KafkaCluster,
    positions: Mapping[TopicPartition, Collection[int]],
    rules: TranslationRules,
) -> None:
    """Tells the user how much a translation reads, if it may be much."""
    limit = len(positions) * rules.read_limit
    if limit <= _LARGE_READ:
        return
    ranges = source.log_ranges(positions)
    records = sum(
        max(0, log.end - max(log.start, min(positions[tp]))) for tp, log in ranges.items() if isinstance(log, LogRange)
    )
    if records > _MANY_RECORDS:
        most = f"{limit / 1_000_000_000:,.0f} GB of {count_of(len(positions), 'partition')}"
        text = "reading about {} in each cluster, at most {}; {max_read} and {throttle} limit it"
        connections.ui.note(Advice(text, count_of(records, "record"), most))
