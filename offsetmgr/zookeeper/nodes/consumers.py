"""Parses the nodes that old consumers of all Kafka releases create below ``/consumers/GROUP/ids`` and
``/consumers/GROUP/owners``.

Sources: kafka.consumer.TopicCount and ZookeeperConsumerConnector of Kafka 0.7.2 and 0.8 to 1.1; kazoo-go and
kafka-node, whose owner nodes hold the bare consumer id; pykafka, whose registrations hold the bare topic;
kafka-spark-consumer, which registers below ``ids/TOPIC``.
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
_UUID_ID: Final = re.compile(r".*[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.DOTALL)
"""An id that ends in a UUID, as kazoo-go, pykafka and kafka-node generate them."""
_TOPIC: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")


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
        pairs = format_pairs(self.subscription)
        return pairs if self.pattern == STATIC else f"{self.pattern} {pairs}"


class OwnerThread(NamedTuple):
    """``/consumers/GROUP/owners/TOPIC/PARTITION``: the consumer thread that owns a partition. ``thread`` is None if the
    consumer's client has no threads."""

    member_id: str
    thread: int | None


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
    if _UUID_ID.fullmatch(path.rpartition("/")[2]) and _TOPIC.fullmatch(data):
        return ConsumerRegistration({data.decode(): 1}, STATIC, None, version=None)
    node = _object(path, data, notes)
    if node.values and "version" not in node and "subscription" not in node:
        streams = {topic: node.get(topic) for topic in node.values}
        return ConsumerRegistration(_streams(path, streams), STATIC, None, version=None)
    with node:
        version = node.version((1,))
        subscription = node.get("subscription")
        if not isinstance(subscription, dict):
            raise _no_subscription(path)
        pattern_name = node.optional_text("pattern")
        kind = STATIC if pattern_name is None else pattern_name
        timestamp_ms = node.optional_integer("timestamp")
        if notes is not None and kind not in (STATIC, WHITE_LIST, BLACK_LIST):
            notes.append(f"unknown pattern {kind!a}, which consumers treat as {STATIC}")
        return ConsumerRegistration(_streams(path, subscription), kind, timestamp_ms, version)


def parse_owner(path: str, data: bytes, members: Mapping[str, int] | None = None, session_id: int = 0) -> OwnerThread:
    """Parses an owner node. ``members`` maps the ids of the group's members to their sessions, and ``session_id`` is
    the session of the owner node.

    Java consumers write ``CONSUMER-THREAD``, other clients the bare id, which can end in a number, too. Therefore the
    members are compared first: with the same session, with any session, and the session alone if the text has no
    thread. Raises `CorruptData`, which names ``path``.
    """
    text, known = data.decode("utf-8", "backslashreplace"), members or {}
    nested = f"{path.rpartition('/')[0].rpartition('/')[2]}/"
    match = _THREAD.fullmatch(text)
    candidates = [OwnerThread(text, None)]
    if match is not None:
        candidates.append(OwnerThread(match["member"], int(match["thread"])))
    # The id of a nested registration is TOPIC/NAME, and its owner nodes hold NAME.
    registered = [
        one._replace(member_id=member)
        for one in candidates
        for member in known
        if one.member_id in (member, member.rpartition("/")[2])
    ]
    if registered:
        return max(registered, key=lambda one: (known[one.member_id] == session_id, one.member_id.startswith(nested)))
    if match is not None:
        return candidates[1]
    owners = [member for member, session in known.items() if session and session == session_id]
    if len(owners) == 1 or _UUID_ID.fullmatch(text):
        return OwnerThread(owners[0] if len(owners) == 1 else text, None)
    raise corrupt(path, f"contains {data[:60]!r} instead of CONSUMER-THREAD")


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


# Parses the consumer ids that old consumers generate.

# kafka.consumer.ZookeeperConsumerConnector: host, start time in milliseconds, up to 8 hex digits of a random UUID.
_GENERATED_ID: Final = re.compile(r"(?P<host>.+)-(?P<millis>[0-9]{10,16})-[0-9a-f]{1,8}")
_HOST_AND_UUID: Final = re.compile(r"(?P<host>[^:]+):[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def parse_member_id(group: str, member_id: str) -> tuple[str, int | None] | None:
    """Returns the host in a generated consumer id, and the consumer's start time (ms since 1970) if the id contains it.
    Returns None for other ids.

    A generated id begins with the prefix ``GROUP_``. The prefix is optional if the id contains a UUID.
    """
    prefix = f"{group}_"
    own = member_id.removeprefix(prefix)
    if match := _HOST_AND_UUID.fullmatch(own):
        return match["host"], None
    match = _GENERATED_ID.fullmatch(own) if member_id.startswith(prefix) else None
    return (match["host"], int(match["millis"])) if match is not None else None
