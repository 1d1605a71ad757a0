"""Maps the errors of a store to Kafka's error codes. Pure.

A client retries a request only after a retriable code. For a temporary failure, the client gets
COORDINATOR_NOT_AVAILABLE. The client then looks up its coordinator again, and finds this listener. If the store is
Kafka, an error may come from the coordinator in that cluster (NOT_COORDINATOR). This code must not reach the client,
because the client would look for another coordinator and find none.
"""

from __future__ import annotations

from typing import Final

from offsetmgr.core.errors import (
    AuthenticationFailed,
    Conflict,
    ErrorCode,
    GroupActive,
    LockLost,
    NotCoordinator,
    OffsetMgrError,
    ServerError,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
    UsageError,
)

_CODES: Final[dict[type[OffsetMgrError], int]] = {
    Unreachable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    TimedOut: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    NotCoordinator: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    LockLost: ErrorCode.COORDINATOR_NOT_AVAILABLE,  # offsetmgr, not the client, held the lock
    Conflict: ErrorCode.COORDINATOR_NOT_AVAILABLE,  # a retry of the same commit may succeed
    AuthenticationFailed: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    GroupActive: ErrorCode.UNKNOWN_MEMBER_ID,
    UnsupportedOperation: ErrorCode.UNSUPPORTED_VERSION,
    UsageError: ErrorCode.INVALID_REQUEST,
}
"""The code for each class and its subclasses, if it differs from the ``code`` of the class. Errors without a code
(unreadable data, files, server errors) are permanent: the client gets UNKNOWN_SERVER_ERROR, and the log has the
details."""


def error_code(error: OffsetMgrError) -> int:
    """Returns the client's error code for a request that failed with this error."""
    if isinstance(error, ServerError) and error.kafka_code is not None:
        return error.kafka_code
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), error.code)
    return ErrorCode.UNKNOWN_SERVER_ERROR if code is None else code


def delete_code(error: OffsetMgrError) -> int:
    """Returns the client's error code for a deletion that failed with this error; NON_EMPTY_GROUP if the group has
    members."""
    return ErrorCode.NON_EMPTY_GROUP if isinstance(error, GroupActive) else error_code(error)


def outcome_unknown(error: OffsetMgrError) -> bool:
    """Whether a write that failed with this error may still have taken effect, or may take effect later."""
    return error.retriable and not isinstance(error, LockLost)
