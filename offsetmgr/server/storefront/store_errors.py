"""What clients are told where a store could not do what they asked: our errors as Kafka's codes. Pure.

A client repeats a request by itself only after a retriable code; for "not now" that is COORDINATOR_NOT_AVAILABLE, after
which it finds its coordinator again, which is this very listener.  Codes that mean something about the *coordinator
behind* a store (NOT_COORDINATOR) must not pass through: the client would look for another one and find none.
"""

from __future__ import annotations

from typing import Final

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
from offsetmgr.manager.protocol_values import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    OFFSET_METADATA_TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_SERVER_ERROR,
)

OFFSET_OUT_OF_RANGE: Final = 1
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
UNSUPPORTED_VERSION: Final = 35
INVALID_REQUEST: Final = 42
NON_EMPTY_GROUP: Final = 68
UNSTABLE_OFFSET_COMMIT: Final = 88

_CODES: Final[dict[type[OffsetMgrError], int]] = {
    Unreachable: COORDINATOR_NOT_AVAILABLE,
    TimedOut: COORDINATOR_NOT_AVAILABLE,
    CoordinatorNotAvailable: COORDINATOR_NOT_AVAILABLE,
    NotCoordinator: COORDINATOR_NOT_AVAILABLE,
    CoordinatorLoadInProgress: COORDINATOR_LOAD_IN_PROGRESS,
    SwitchInProgress: COORDINATOR_NOT_AVAILABLE,
    LockLost: COORDINATOR_NOT_AVAILABLE,  # its subclasses too: the lock was ours, not the client's
    Conflict: COORDINATOR_NOT_AVAILABLE,  # others kept writing at the same moment: the very same commit may succeed
    UnstableOffset: UNSTABLE_OFFSET_COMMIT,
    AuthenticationFailed: GROUP_AUTHORIZATION_FAILED,
    NotAuthorized: GROUP_AUTHORIZATION_FAILED,
    TopicNotAuthorized: TOPIC_AUTHORIZATION_FAILED,
    UnknownTopicOrPartition: UNKNOWN_TOPIC_OR_PARTITION,
    OffsetMetadataTooLarge: OFFSET_METADATA_TOO_LARGE,
    OffsetOutOfRange: OFFSET_OUT_OF_RANGE,
    GroupActive: UNKNOWN_MEMBER_ID,
    GroupNotFound: GROUP_ID_NOT_FOUND,
    UnsupportedOperation: UNSUPPORTED_VERSION,
    UsageError: INVALID_REQUEST,
    InvalidRequest: INVALID_REQUEST,
}
"""By class, its subclasses included. What is not here (unreadable data, files, servers' own errors without a code)
does not go away by asking again: UNKNOWN_SERVER_ERROR, and the log says what it was."""


def commit_code(error: OffsetMgrError) -> int:
    """The code for a commit, a fetch or a deletion of a partition, or of a whole group."""
    if isinstance(error, ServerError) and error.wire_code is not None:
        return error.wire_code
    return next((code for kind in type(error).__mro__ if (code := _CODES.get(kind)) is not None), UNKNOWN_SERVER_ERROR)


def delete_code(error: OffsetMgrError) -> int:
    """The code for the deletion of a group or of its offsets: a group with members is NON_EMPTY_GROUP there."""
    return NON_EMPTY_GROUP if isinstance(error, GroupActive) else commit_code(error)


def outcome_unknown(error: OffsetMgrError) -> bool:
    """Whether a write that failed with this may have been carried out all the same, now or a little later."""
    return error.retriable and not isinstance(error, LockLost)
