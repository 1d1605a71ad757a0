"""Maps the errors of a store to Kafka's error codes. Pure.

A client retries a request only after a retriable code. For a temporary failure, the client gets
COORDINATOR_NOT_AVAILABLE. The client then looks up its coordinator again, and finds this listener. If the store is
Kafka, an error may come from the coordinator in that cluster (NOT_COORDINATOR). This code must not reach the client,
because the client would look for another coordinator and find none.
"""

from __future__ import annotations

from typing import Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import (
    AuthenticationFailed,
    Conflict,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupActive,
    GroupNotFound,
    InvalidRequest,
    LockLost,
    NotAuthorized,
    NotCoordinator,
    OffsetMetadataTooLarge,
    OffsetMgrError,
    OffsetOutOfRange,
    ServerError,
    SwitchInProgress,
    TimedOut,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    Unreachable,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.kafka.protocol.errors import UnstableOffset

_CODES: Final[dict[type[OffsetMgrError], int]] = {
    Unreachable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    TimedOut: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    NotCoordinator: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    CoordinatorLoadInProgress: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    SwitchInProgress: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    LockLost: ErrorCode.COORDINATOR_NOT_AVAILABLE,  # offsetmgr, not the client, held the lock
    Conflict: ErrorCode.COORDINATOR_NOT_AVAILABLE,  # a retry of the same commit may succeed
    UnstableOffset: ErrorCode.UNSTABLE_OFFSET_COMMIT,
    AuthenticationFailed: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    NotAuthorized: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    TopicNotAuthorized: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    UnknownTopicOrPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    GroupActive: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    UnsupportedOperation: ErrorCode.UNSUPPORTED_VERSION,
    UsageError: ErrorCode.INVALID_REQUEST,
    InvalidRequest: ErrorCode.INVALID_REQUEST,
}
"""The code for each class and its subclasses. All other errors (unreadable data, files, server errors without a code)
are permanent: the client gets UNKNOWN_SERVER_ERROR, and the log has the details."""


def error_code(error: OffsetMgrError) -> int:
    """Returns the client's error code for a request that failed with this error."""
    if isinstance(error, ServerError) and error.kafka_code is not None:
        return error.kafka_code
    return next(
        (code for kind in type(error).__mro__ if (code := _CODES.get(kind)) is not None), ErrorCode.UNKNOWN_SERVER_ERROR
    )


def delete_code(error: OffsetMgrError) -> int:
    """Returns the client's error code for a deletion that failed with this error; NON_EMPTY_GROUP if the group has
    members."""
    return ErrorCode.NON_EMPTY_GROUP if isinstance(error, GroupActive) else error_code(error)


def outcome_unknown(error: OffsetMgrError) -> bool:
    """Whether a write that failed with this error may still have taken effect, or may take effect later."""
    return error.retriable and not isinstance(error, LockLost)
