"""`KnownLogs`: detects that a topic was recreated while a program writes its offsets again and again.

An offset is valid in one log only (data rule "numbers belong to one log"). Before a program repeats a write, it must
check that the log is still the one to which the offset belongs (data rule "look again before writing again"). A
recreated topic has another topic id (KIP-516) and another creation time in ZooKeeper. If neither is known, an offset
beyond the end of the log still proves that the log is another one, or that the log was truncated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from offsetmgr.core.errors import RecreatedTopic, UnsupportedOperation
from offsetmgr.core.model import Committed, LogRange, TopicPartition
from offsetmgr.core.offset_store import OffsetStore

NEW_LOG: Final = "the topic was deleted and recreated"


class KnownLogs:
    """The logs of topics, as the stores of one program have reported them so far."""

    def __init__(self, *stores: OffsetStore) -> None:
        self._stores = stores
        self._ids: dict[str, str] = {}
        self._created: dict[str, int] = {}

    def recreated(self, topics: Collection[str]) -> dict[str, str]:
        """Reads the ids and creation times of topics. Returns the topics that were recreated since an earlier call,
        each with the reason. Raises the errors of `OffsetStore.log_origin`."""
        if not topics:
            return {}
        ids: dict[str, str] = {}
        created: dict[str, int] = {}
        for store in self._stores:
            ids = {**store.topic_ids(topics), **ids}
            if store.has_topic_creation_times:
                created = {**store.topic_creation_times(topics), **created}
        moved = {topic for topic, at in created.items() if self._created.get(topic, at) != at}
        found = dict.fromkeys(moved, f"{NEW_LOG}: its creation time in ZooKeeper has changed")
        for topic, now in ids.items():
            if (was := self._ids.get(topic, now)) != now:
                found[topic] = f"{NEW_LOG}: its topic id was {was} and is {now}"
        self._ids |= ids
        self._created |= created
        return found

    def predates(self, tp: TopicPartition, committed: Committed) -> bool:
        """Returns whether an offset was committed before its topic was created, so that it belongs to a deleted log.
        Returns False if one of the two times is unknown. Call `recreated` for the topic first."""
        created, at = self._created.get(tp.topic), committed.commit_timestamp
        return created is not None and at is not None and at < created

    def beyond_end(
        self, offsets: Iterable[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], RecreatedTopic]:
        """Returns the offsets that are beyond the end of their log, each with the error. A log that the stores cannot
        read does not count. Raises `Unreachable`, `TimedOut`."""
        from offsetmgr.stores.kafka import KafkaStore

        stores = [store.parts[0] for store in self._stores]
        logs = next((store.logs() for store in stores if isinstance(store, KafkaStore)), None)
        pairs = list(offsets)
        try:
            ranges = logs.log_ranges({tp for tp, _ in pairs}) if logs is not None and pairs else {}
        except UnsupportedOperation:  # brokers that are too old
            return {}
        found: dict[tuple[TopicPartition, int], RecreatedTopic] = {}
        for tp, offset in pairs:
            log = ranges.get(tp)
            if isinstance(log, LogRange) and offset > log.end:
                why = f"{offset} is beyond the log's end ({log.end}): {NEW_LOG}, or its log was truncated"
                found[tp, offset] = RecreatedTopic(str(tp), why)
        return found
