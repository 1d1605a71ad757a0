"""Kafka's protocol error codes as this project's errors: the one table for both ways of talking to a broker.

Source: org.apache.kafka.common.protocol.Errors.
"""

from __future__ import annotations

from typing import Final

from offsetmgr.core.errors import (
    AuthenticationFailed,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupActive,
    GroupNotFound,
    LockLost,
    NotAuthorized,
    NotCoordinator,
    OffsetMetadataTooLarge,
    OffsetMgrError,
    OffsetOutOfRange,
    ServerError,
    Superseded,
    TimedOut,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    UnsupportedOperation,
)


class UnstableOffset(ServerError):
    """A transaction that has not ended yet is about to commit or abort this offset (UNSTABLE_OFFSET_COMMIT)."""

    code = 88
    name = "UNSTABLE_OFFSET_COMMIT"
    retriable = True


class PartitionUnavailable(ServerError):
    """The broker asked does not lead the partition, or nobody does at this moment: its leader is to be found anew."""

    retriable = True


_CLASSES: Final[dict[int, type[OffsetMgrError]]] = {
    1: OffsetOutOfRange,
    3: UnknownTopicOrPartition,
    7: TimedOut,
    12: OffsetMetadataTooLarge,
    14: CoordinatorLoadInProgress,
    15: CoordinatorNotAvailable,
    16: NotCoordinator,
    22: LockLost,
    25: LockLost,
    29: TopicNotAuthorized,
    30: NotAuthorized,
    31: NotAuthorized,
    33: UnsupportedOperation,
    34: AuthenticationFailed,
    35: UnsupportedOperation,
    53: NotAuthorized,
    58: AuthenticationFailed,
    68: GroupActive,
    69: GroupNotFound,
    82: Superseded,
    86: GroupActive,
    88: UnstableOffset,
}

_REASONS: Final[dict[int, tuple[str, str]]] = {
    -1: ("UNKNOWN_SERVER_ERROR", "the broker met an error that it does not explain; its log does"),
    1: ("OFFSET_OUT_OF_RANGE", "the offset is outside the log"),
    2: ("CORRUPT_MESSAGE", "the log holds a message whose checksum is wrong"),
    3: ("UNKNOWN_TOPIC_OR_PARTITION", "the broker knows no such topic or partition"),
    5: ("LEADER_NOT_AVAILABLE", "the partition has no leader right now"),
    6: ("NOT_LEADER_OR_FOLLOWER", "another broker leads the partition"),
    7: ("REQUEST_TIMED_OUT", "the broker could not finish the request in time"),
    9: ("REPLICA_NOT_AVAILABLE", "the broker has no replica of the partition yet"),
    12: ("OFFSET_METADATA_TOO_LARGE", "the metadata is longer than the broker's offset.metadata.max.bytes"),
    13: ("NETWORK_EXCEPTION", "the broker disconnected"),
    14: ("COORDINATOR_LOAD_IN_PROGRESS", "the coordinator still loads its groups"),
    15: ("COORDINATOR_NOT_AVAILABLE", "no coordinator can serve the group right now; are enough brokers up?"),
    16: ("NOT_COORDINATOR", "another broker coordinates the group"),
    17: ("INVALID_TOPIC_EXCEPTION", "the topic's name is not valid"),
    18: ("RECORD_LIST_TOO_LARGE", "the commit is larger than a segment of the offsets topic"),
    19: ("NOT_ENOUGH_REPLICAS", "the offsets topic has too few replicas in sync"),
    20: ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "the offsets topic has too few replicas in sync"),
    22: ("ILLEGAL_GENERATION", "our membership of the group has been superseded"),
    23: ("INCONSISTENT_GROUP_PROTOCOL", "the group's members speak another protocol"),
    24: ("INVALID_GROUP_ID", "the group id is not valid"),
    25: ("UNKNOWN_MEMBER_ID", "the coordinator accepts commits of the group's members only"),
    26: ("INVALID_SESSION_TIMEOUT", "the broker's group.min.session.timeout.ms and .max. exclude our session time-out"),
    27: ("REBALANCE_IN_PROGRESS", "the group's members are changing"),
    28: ("INVALID_COMMIT_OFFSET_SIZE", "the commit is larger than the broker accepts"),
    29: ("TOPIC_AUTHORIZATION_FAILED", "not allowed for this topic"),
    30: ("GROUP_AUTHORIZATION_FAILED", "not allowed for this group"),
    31: ("CLUSTER_AUTHORIZATION_FAILED", "not allowed on this cluster"),
    33: ("UNSUPPORTED_SASL_MECHANISM", "the broker does not offer this SASL mechanism"),
    34: ("ILLEGAL_SASL_STATE", "the broker did not expect an authentication now"),
    35: ("UNSUPPORTED_VERSION", "the broker does not speak this version of the request"),
    37: ("INVALID_PARTITIONS", "the number of partitions is not possible"),
    38: ("INVALID_REPLICATION_FACTOR", "there are fewer brokers than replicas asked for"),
    43: (
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "the topic's messages have a format without times (before 0.10); reset it to an offset or an end of the log",
    ),
    44: ("POLICY_VIOLATION", "the brokers' create.topic.policy forbids it"),
    53: ("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "not allowed for this transactional id"),
    56: ("KAFKA_STORAGE_ERROR", "the broker cannot use the disk that the partition is on"),
    58: ("SASL_AUTHENTICATION_FAILED", "the broker refused the credentials"),
    68: ("NON_EMPTY_GROUP", "the group has members"),
    69: ("GROUP_ID_NOT_FOUND", "the coordinator knows no such group"),
    74: ("FENCED_LEADER_EPOCH", "the partition's leader has changed meanwhile"),
    75: ("UNKNOWN_LEADER_EPOCH", "the partition's leader has changed, and this broker does not know yet"),
    78: ("OFFSET_NOT_AVAILABLE", "a new leader does not know its high watermark yet"),
    81: ("GROUP_MAX_SIZE_REACHED", "the group is full"),
    82: ("FENCED_INSTANCE_ID", "another process has taken over our place in the group"),
    86: ("GROUP_SUBSCRIBED_TO_TOPIC", "a member of the group subscribes to the topic"),
    88: ("UNSTABLE_OFFSET_COMMIT", "a transaction that commits offsets of this group has not ended"),
    113: ("STALE_MEMBER_EPOCH", "the coordinator accepts commits of the group's members only"),
}

RETRIABLE: Final = frozenset({7, 14, 15, 16})
"""Codes of a commit after which the very same request may succeed a moment later."""

LEADER_UNKNOWN: Final = frozenset({5, 6, 9, 13, 56, 74, 75, 78})
"""Codes of one partition after which its leader is looked up again."""

NOT_A_MEMBER: Final = frozenset({22, 25, 27, 113})
"""What a coordinator answers to a commit by a client that is no member of a group with members."""


def reason(code: int) -> str:
    """The code's name and meaning, for a person."""
    name, text = _REASONS.get(code, (f"error {code}", "Kafka answered with this code"))
    return f"{text} ({name})"


def kafka_error(code: int, what: str, *, detail: str = "", hint: str = "") -> OffsetMgrError:
    """The error of this project for a protocol error code other than 0; ``detail`` is the broker's own text."""
    why = reason(code)
    if detail:
        why = f"{why}: {detail}"
    known = _CLASSES.get(code)
    if known is not None:
        return known(what, why, hint)
    kind = PartitionUnavailable if code in LEADER_UNKNOWN else ServerError
    return kind(what, why, hint, wire_code=code)
