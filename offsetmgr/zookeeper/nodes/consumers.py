"""Parses the nodes that old consumers of all Kafka releases create below ``/consumers/GROUP/ids`` and
``/consumers/GROUP/owners``.

Sources: kafka.consumer.TopicCount and ZookeeperConsumerConnector of Kafka 0.7.2 and 0.8 to 1.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.field_reader import MAX_INT
from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, decoded, format_pairs

STATIC: Final = "static"
WHITE_LIST: Final = "white_list"
BLACK_LIST: Final = "black_list"

_PATTERN_OF_0_7: Final = re.compile(r"(?P<marker>[*!])(?P<streams>[0-9]{1,10})(?P=marker)(?P<regex>.*)", re.ASCII)
_THREAD: Final = re.compile(r"(?P<member>.+)-(?P<thread>[0-9]{1,9})", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConsumerRegistration:
    """``/consumers/GROUP/ids/ID``: the subscription of one old high-level consumer."""

    subscription: Mapping[str, int]
    """Topic -> number of streams. If the consumer subscribes by a pattern, the key is the regular expression instead of
    a topic."""
    pattern: str
    """``static``, ``white_list`` or ``black_list``."""
    timestamp_ms: int | None
    """Registration time, by the consumer's clock; None in Kafka 0.7."""
    version: int | None = 1
    """Version of the format; None for the format of Kafka 0.7."""

    def __str__(self) -> str:
        return (
            format_pairs(self.subscription)
            if self.pattern == STATIC
            else f"{self.pattern} {format_pairs(self.subscription)}"
        )


class OwnerThread(NamedTuple):
    """``/consumers/GROUP/owners/TOPIC/PARTITION``: the consumer thread that owns a partition."""

    member_id: str
    thread: int

    def __str__(self) -> str:
        return f"{self.member_id}-{self.thread}"


def parse_registration(path: str, data: bytes, notes: Notes | None = None) -> ConsumerRegistration:
    """Parses a consumer's registration.

    Kafka 0.8 and later write JSON with a version. Kafka 0.7 writes a map from topics to numbers of streams, or a
    pattern: ``*STREAMS*REGEX`` (white list) or ``!STREAMS!REGEX`` (black list).

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    if pattern := _PATTERN_OF_0_7.fullmatch(decoded(path, data)):
        kind = WHITE_LIST if pattern["marker"] == "*" else BLACK_LIST
        streams = {pattern["regex"]: int(pattern["streams"])}
        return ConsumerRegistration(_streams(path, streams), kind, None, version=None)
    node = _object(path, data, notes)
    if node.names and "version" not in node and "subscription" not in node:
        streams = {topic: node.get(topic) for topic in node.names}
        return ConsumerRegistration(_streams(path, streams), STATIC, None, version=None)
    version = node.version((1,))
    subscription = node.get("subscription")
    if not isinstance(subscription, dict):
        raise _no_subscription(path)
    pattern_name = node.optional_text("pattern")
    registration = ConsumerRegistration(
        _streams(path, subscription),
        STATIC if pattern_name is None else pattern_name,
        node.optional_integer("timestamp"),
        version,
    )
    if notes is not None and registration.pattern not in (STATIC, WHITE_LIST, BLACK_LIST):
        notes.append(f"unknown pattern {registration.pattern!a}, which consumers treat as {STATIC}")
    node.close()
    return registration


def parse_owner(path: str, data: bytes) -> OwnerThread:
    """Parses an owner node. Raises `CorruptData`, which names ``path``."""
    match = _THREAD.fullmatch(data.decode("utf-8", "backslashreplace"))
    if match is None:
        raise corrupt(path, f"contains {data[:60]!r} instead of CONSUMER-THREAD")
    return OwnerThread(match["member"], int(match["thread"]))


def _object(path: str, data: bytes, notes: Notes | None) -> Fields:
    """Parses the node's JSON object, even if the backslashes in a regular expression are not escaped.

    Consumers of Kafka 0.8.0 and 0.8.1 did not escape these backslashes. If a node that contains backslashes cannot be
    parsed, this function escapes all backslashes of the node and parses the node again, as Kafka does since 1.0.1.
    """
    try:
        return Fields.of(path, data, notes)
    except CorruptData:
        if b"\\" not in data:
            raise
        node = Fields.of(path, data.replace(b"\\", b"\\\\"), notes)
    if notes is not None:
        notes.append("its backslashes are not escaped")
    return node


def _streams(path: str, streams: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(n) is int and 0 <= n <= MAX_INT for n in streams.values()):
        raise _no_subscription(path)
    return dict(streams)


def _no_subscription(path: str) -> CorruptData:
    return corrupt(path, "its 'subscription' is not a map from topics to numbers of streams")
