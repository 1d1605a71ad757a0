"""Maps Kafka's error codes to exceptions of offsetmgr, for its own Kafka client and for consumers of librdkafka.

Source: org.apache.kafka.common.protocol.Errors.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from offsetmgr.core import errors
from offsetmgr.core.errors import (
    AuthenticationFailed,
    CoordinatorNotAvailable,
    CorruptData,
    ErrorCode,
    GroupActive,
    InvalidRequest,
    LockLost,
    NotAuthorized,
    OffsetMgrError,
    ServerError,
    UnsupportedOperation,
)


class UnstableOffset(ServerError):
    """An open transaction will commit or abort this offset (UNSTABLE_OFFSET_COMMIT)."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    retriable = True


class NegativeOffset(CorruptData):
    """The coordinator holds a negative offset, which is not a position. A write may replace it."""


class ProducerFenced(ServerError):
    """Another process has received a newer epoch of the transactional id, or of a producer id (PRODUCER_FENCED)."""

    code = ErrorCode.PRODUCER_FENCED


class PartitionUnavailable(ServerError):
    """No broker can serve the partition at the moment: it has no leader, or its leader has moved or cannot answer yet.
    The client looks up the leader again."""

    retriable = True


_CLASSES: Final[dict[int | None, type[OffsetMgrError]]] = {
    **{
        kind.code: kind
        for kind in (*vars(errors).values(), ProducerFenced, UnstableOffset)
        if isinstance(kind, type) and issubclass(kind, OffsetMgrError) and "code" in vars(kind)
        if kind is not InvalidRequest  # the error of a request to offsetmgr's own listener
    },
    ErrorCode.UNKNOWN_MEMBER_ID: LockLost,
    ErrorCode.FENCED_MEMBER_EPOCH: LockLost,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: UnsupportedOperation,
    ErrorCode.ILLEGAL_SASL_STATE: AuthenticationFailed,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedOperation,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: GroupActive,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.CONCURRENT_TRANSACTIONS: CoordinatorNotAvailable,
}
"""The exception for each code: the code of the exception's class, and further codes with the same meaning."""

_REASONS: Final[dict[int, str]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: "unexpected error in the broker; see its log",
    ErrorCode.OFFSET_OUT_OF_RANGE: "the offset is outside the log",
    ErrorCode.CORRUPT_MESSAGE: "the log contains a message with a wrong checksum",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the topic or partition does not exist on the broker",
    ErrorCode.LEADER_NOT_AVAILABLE: "the partition has no leader right now",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "another broker leads the partition",
    ErrorCode.REQUEST_TIMED_OUT: "the broker could not finish the request in time",
    ErrorCode.REPLICA_NOT_AVAILABLE: "the broker has no replica of the partition yet",
    ErrorCode.MESSAGE_TOO_LARGE: "the batch is larger than the topic's max.message.bytes",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the metadata is longer than the broker's offset.metadata.max.bytes",
    ErrorCode.NETWORK_EXCEPTION: "the broker disconnected",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator is still loading its groups",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: (
        "no coordinator can serve the group right now; check that enough brokers are up"
    ),
    ErrorCode.NOT_COORDINATOR: "another broker coordinates the group",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "the topic's name is not valid",
    ErrorCode.RECORD_LIST_TOO_LARGE: "the commit is larger than a segment of the offsets topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: "the offsets topic has too few in-sync replicas",
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "the offsets topic has too few in-sync replicas",
    ErrorCode.ILLEGAL_GENERATION: "this member's generation is no longer current",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group's members use another protocol",
    ErrorCode.INVALID_GROUP_ID: "the group id is not valid",
    ErrorCode.UNKNOWN_MEMBER_ID: "the coordinator accepts commits only from members of the group",
    ErrorCode.INVALID_SESSION_TIMEOUT: "the broker's group.min/max.session.timeout.ms exclude our session timeout",
    ErrorCode.REBALANCE_IN_PROGRESS: "the group's members are changing",
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: "the commit is larger than the broker accepts",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "not authorized for this topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "not authorized for this group",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "not authorized on this cluster",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "the broker does not offer this SASL mechanism",
    ErrorCode.ILLEGAL_SASL_STATE: "the broker did not expect SASL authentication at this point",
    ErrorCode.UNSUPPORTED_VERSION: "the broker does not support this version of the request",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions is not valid",
    ErrorCode.INVALID_REPLICATION_FACTOR: "the replication factor is larger than the number of brokers",
    ErrorCode.NOT_CONTROLLER: "another broker is the controller",
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: (
        "the topic's messages have a format without timestamps (before 0.10); reset to an offset, or to the start or"
        " end of the log"
    ),
    ErrorCode.POLICY_VIOLATION: "the topic policy of the brokers (create.topic.policy.class.name) rejects it",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "the broker expected another sequence number",
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "the broker has received this sequence number before",
    ErrorCode.INVALID_PRODUCER_EPOCH: "another producer has a newer epoch",
    ErrorCode.CONCURRENT_TRANSACTIONS: "a transaction of this transactional id is ending",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "not authorized for this transactional id",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker cannot access the disk of the partition",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "the broker rejected the credentials",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the broker has no state of this producer id",
    ErrorCode.NON_EMPTY_GROUP: "the group has members",
    ErrorCode.GROUP_ID_NOT_FOUND: "the group does not exist on its coordinator",
    ErrorCode.FENCED_LEADER_EPOCH: "the partition's leader has changed meanwhile",
    ErrorCode.UNKNOWN_LEADER_EPOCH: (
        "the partition's leader has changed, and this broker does not know the new epoch yet"
    ),
    ErrorCode.OFFSET_NOT_AVAILABLE: (
        "the partition has a new leader, which does not know yet how far the other replicas have copied its log"
    ),
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group has reached the broker's group.max.size",
    ErrorCode.FENCED_INSTANCE_ID: "another process with the same instance id has joined the group",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member of the group subscribes to the topic",
    ErrorCode.UNSTABLE_OFFSET_COMMIT: "a transaction that commits offsets of this group has not ended",
    ErrorCode.PRODUCER_FENCED: "another process has received a newer epoch of the transactional id",
    ErrorCode.FENCED_MEMBER_EPOCH: "the coordinator has removed this member from the group",
    ErrorCode.STALE_MEMBER_EPOCH: "the coordinator accepts commits only from members of the group",
}

RETRIABLE: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Transient error codes in the response to a commit: the same request may succeed a moment later."""

LEADER_UNKNOWN: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Error codes of a partition. After one of these errors, the client looks up the partition's leader again."""

NOT_A_MEMBER: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
"""Error codes in the response to a commit to a group that has members, if the client is not a current member."""


VALID_MEMBER_CODES: Final = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
"""The error codes in the response to the Heartbeat of a valid member: REBALANCE_IN_PROGRESS during a rebalance,
otherwise NONE."""


def reason(code: int) -> str:
    """Returns the description and the name of an error code for messages."""
    if code not in _REASONS:
        return f"unknown Kafka error (error {code})"
    return f"{_REASONS[code]} ({ErrorCode(code).name})"


def kafka_error(code: int, what: str, *, detail: str = "", hint: str = "") -> OffsetMgrError:
    """Returns the exception for an error code other than 0.

    ``what`` names the object or operation that failed, and ``detail`` is the broker's error message.
    """
    why = reason(code)
    if detail:
        why = f"{why}: {detail}"
    known = _CLASSES.get(code)
    if known is not None:
        return known(what, why, hint)
    kind = PartitionUnavailable if code in LEADER_UNKNOWN else ServerError
    return kind(what, why, hint, kafka_code=code)


def failure_of(answer: dict[str, Any], what: str) -> OffsetMgrError | None:
    """Returns the exception for the error code of a response, or of a part of one, with the broker's error message if
    there is one; None if the code is 0."""
    code = answer["error_code"]
    return kafka_error(code, what, detail=answer.get("error_message") or "") if code else None


def checked(answer: dict[str, Any], what: str, accepted: Container[int] = (ErrorCode.NONE,)) -> dict[str, Any]:
    """Returns a response, or a part of one. Raises the exception for its error code, with the broker's error message if
    there is one, unless the code is one of ``accepted``."""
    if (code := answer["error_code"]) not in accepted:
        raise kafka_error(code, what, detail=answer.get("error_message") or "")
    return answer
