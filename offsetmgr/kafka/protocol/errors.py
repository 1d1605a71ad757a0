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
    known = next((one for one in ErrorCode if one == code and one.reason), None)
    return f"{known.reason} ({known.name})" if known else f"unknown Kafka error (error {code})"


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
