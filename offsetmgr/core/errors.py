"""The exceptions of offsetmgr. If Kafka has an error code for a failure, the exception class has the name and the code
from Kafka.

Every error says *what* failed and *why*, and has a *hint* if the reader can do something about it. The command line
prints these three texts, so write every message for operators. No text may contain a credential.

Some class names are participles (`SessionExpired`, `Superseded`), as in Kafka: they describe the outcome of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from offsetmgr.core.advice import Advice
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.model import LogRange, TopicPartition

T = TypeVar("T")
K = TypeVar("K")
Keys = TypeVar("Keys", bound=Collection[Any])


# The error codes of the Kafka protocol that offsetmgr uses. Source: org.apache.kafka.common.protocol.Errors.


class ErrorCode(IntEnum):
    """An error code of the Kafka protocol. ``reason`` describes it; empty if messages never show it."""

    reason: str

    def __new__(cls, code: int, reason: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_, member.reason = code, reason
        return member

    UNKNOWN_SERVER_ERROR = -1, "unexpected error in the broker; see its log"
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1, "the offset is outside the log"
    CORRUPT_MESSAGE = 2, "the log contains a message with a wrong checksum"
    UNKNOWN_TOPIC_OR_PARTITION = 3, "the topic or partition does not exist on the broker"
    LEADER_NOT_AVAILABLE = 5, "the partition has no leader right now"
    NOT_LEADER_OR_FOLLOWER = 6, "another broker leads the partition"
    REQUEST_TIMED_OUT = 7, "the broker could not finish the request in time"
    REPLICA_NOT_AVAILABLE = 9, "the broker has no replica of the partition yet"
    MESSAGE_TOO_LARGE = 10, "the batch is larger than the topic's max.message.bytes"
    OFFSET_METADATA_TOO_LARGE = 12, "the metadata is longer than the broker's offset.metadata.max.bytes"
    NETWORK_EXCEPTION = 13, "the broker disconnected"
    COORDINATOR_LOAD_IN_PROGRESS = 14, "the coordinator is still loading its groups"
    COORDINATOR_NOT_AVAILABLE = 15, "no coordinator can serve the group right now; check that enough brokers are up"
    NOT_COORDINATOR = 16, "another broker coordinates the group"
    INVALID_TOPIC_EXCEPTION = 17, "the topic's name is not valid"
    RECORD_LIST_TOO_LARGE = 18, "the commit is larger than a segment of the offsets topic"
    NOT_ENOUGH_REPLICAS = 19, "the offsets topic has too few in-sync replicas"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "the offsets topic has too few in-sync replicas"
    ILLEGAL_GENERATION = 22, "this member's generation is no longer current"
    INCONSISTENT_GROUP_PROTOCOL = 23, "the group's members use another protocol"
    INVALID_GROUP_ID = 24, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, "the coordinator accepts commits only from members of the group"
    INVALID_SESSION_TIMEOUT = 26, "the broker's group.min/max.session.timeout.ms exclude our session timeout"
    REBALANCE_IN_PROGRESS = 27, "the group's members are changing"
    INVALID_COMMIT_OFFSET_SIZE = 28, "the commit is larger than the broker accepts"
    TOPIC_AUTHORIZATION_FAILED = 29, "not authorized for this topic"
    GROUP_AUTHORIZATION_FAILED = 30, "not authorized for this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, "not authorized on this cluster"
    UNSUPPORTED_SASL_MECHANISM = 33, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, "the broker did not expect SASL authentication at this point"
    UNSUPPORTED_VERSION = 35, "the broker does not support this version of the request"
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, "the replication factor is larger than the number of brokers"
    NOT_CONTROLLER = 41, "another broker is the controller"
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (
        43,
        "the topic's messages have a format without timestamps (before 0.10); reset to an offset, or to the start or"
        " end of the log",
    )
    POLICY_VIOLATION = 44, "the topic policy of the brokers (create.topic.policy.class.name) rejects it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "the broker expected another sequence number"
    DUPLICATE_SEQUENCE_NUMBER = 46, "the broker has received this sequence number before"
    INVALID_PRODUCER_EPOCH = 47, "another producer has a newer epoch"
    CONCURRENT_TRANSACTIONS = 51, "a transaction of this transactional id is ending"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "not authorized for this transactional id"
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56, "the broker cannot access the disk of the partition"
    SASL_AUTHENTICATION_FAILED = 58, "the broker rejected the credentials"
    UNKNOWN_PRODUCER_ID = 59, "the broker has no state of this producer id"
    NON_EMPTY_GROUP = 68, "the group has members"
    GROUP_ID_NOT_FOUND = 69, "the group does not exist on its coordinator"
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74, "the partition's leader has changed meanwhile"
    UNKNOWN_LEADER_EPOCH = 75, "the partition's leader has changed, and this broker does not know the new epoch yet"
    OFFSET_NOT_AVAILABLE = (
        78,
        "the partition has a new leader, which does not know yet how far the other replicas have copied its log",
    )
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81, "the group has reached the broker's group.max.size"
    FENCED_INSTANCE_ID = 82, "another process with the same instance id has joined the group"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "a member of the group subscribes to the topic"
    UNSTABLE_OFFSET_COMMIT = 88, "a transaction that commits offsets of this group has not ended"
    PRODUCER_FENCED = 90, "another process has received a newer epoch of the transactional id"
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110, "the coordinator has removed this member from the group"
    STALE_MEMBER_EPOCH = 113, "the coordinator accepts commits only from members of the group"
    UNSUPPORTED_ENDPOINT_TYPE = 115


class OffsetMgrError(Exception):
    """The base class of all errors that offsetmgr raises on purpose.

    ``what`` names the object or operation that failed, ``why`` gives the reason if it is known, and ``hint`` proposes
    an action. ``code`` is the error code of Kafka's protocol, or None. ``retriable`` is True if the same call may
    succeed when the caller repeats it later.

    Example::

        from offsetmgr import ConnectionConfig, OffsetAdmin, OffsetMgrError, errors

        try:
            with OffsetAdmin("kafka://127.0.0.1:1", config=ConnectionConfig(timeout_ms=1_000)) as admin:
                admin.groups()
        except errors.Unreachable as error:
            print(error.what, error.why, error.hint, error.retriable)
        except OffsetMgrError as error:
            print(error)
    """

    code: ClassVar[ErrorCode | None] = None
    retriable: ClassVar[bool] = False

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        Exception.__init__(self, what, why, hint)  # `OSError.__init__` would keep two of the arguments
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what

    @property
    def text(self) -> Advice:
        """The text of the error, which the command line can word."""
        return Advice("{}: {}", self.what, self.why) if self.why else Advice("{}", self.what)

    @property
    def name(self) -> str | None:
        """The name of ``code`` in Kafka's protocol."""
        return None if self.code is None else self.code.name


# --- invalid calls -----------------------------------------------------------------------------------


class UsageError(OffsetMgrError, ValueError):
    """The arguments of the call or of the command line are not valid (exit code 2). The errors of this kind are also
    `ValueError`."""


class ConfigError(UsageError):
    """A configuration file, context or environment variable is not valid."""


class InvalidUri(UsageError):
    """A store URI is not valid."""


class InvalidPattern(UsageError):
    """Java does not accept the topic pattern, so no old consumer could have subscribed with it."""


class UnsupportedOperation(OffsetMgrError):
    """The store, server version or format does not support the operation."""


# --- reaching a server ---------------------------------------------------------------------------


class Unreachable(OffsetMgrError, ConnectionError):
    """No server answered at this address within the timeout. The errors of this kind are also `ConnectionError`."""

    retriable = True


class TimedOut(OffsetMgrError, TimeoutError):
    """The server was reached but did not answer within the timeout (REQUEST_TIMED_OUT). The errors of this kind are
    also `TimeoutError`."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class SessionExpired(OffsetMgrError):
    """The ZooKeeper session has expired: the server deleted its ephemeral nodes, and the session accepts no more
    requests."""


class AuthenticationFailed(OffsetMgrError):
    """The server rejected the credentials (SASL_AUTHENTICATION_FAILED)."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class NotAuthorized(OffsetMgrError):
    """The client is authenticated but not authorized (GROUP_AUTHORIZATION_FAILED, TOPIC_..., NoAuth of ZooKeeper)."""

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class TopicNotAuthorized(NotAuthorized):
    """The client is authorized for the group but not for this topic (TOPIC_AUTHORIZATION_FAILED)."""

    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class ServerError(OffsetMgrError):
    """The server returned an error for which offsetmgr has no separate exception class. The message describes the
    error.

    ``kafka_code`` is Kafka's error code; None if the error has no code.
    """

    def __init__(self, what: str, why: str = "", hint: str = "", *, kafka_code: int | None = None) -> None:
        super().__init__(what, why, hint)
        self.kafka_code = kafka_code


# --- Kafka's coordinator -------------------------------------------------------------------------


class CoordinatorLoadInProgress(OffsetMgrError):
    """The coordinator is still loading the group's offsets (COORDINATOR_LOAD_IN_PROGRESS)."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True


class CoordinatorNotAvailable(OffsetMgrError):
    """No coordinator is available for the group (COORDINATOR_NOT_AVAILABLE)."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True


class NotCoordinator(OffsetMgrError):
    """The server is not the group's coordinator (NOT_COORDINATOR)."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True


class UnknownTopicOrPartition(OffsetMgrError, LookupError):
    """The topic or partition does not exist (UNKNOWN_TOPIC_OR_PARTITION)."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class OffsetOutOfRange(OffsetMgrError):
    """The offset is outside the partition's log (OFFSET_OUT_OF_RANGE).

    ``log_range`` is the range of the log when the offset was checked; None if the range is unknown.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, what: str, why: str = "", hint: str = "", *, log_range: LogRange | None = None) -> None:
        super().__init__(what, why, hint)
        self.log_range = log_range


class OffsetMetadataTooLarge(OffsetMgrError):
    """The metadata of the commit is longer than the server's limit (OFFSET_METADATA_TOO_LARGE)."""

    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class GroupNotFound(OffsetMgrError, LookupError):
    """The group does not exist in this store (GROUP_ID_NOT_FOUND). ``groups`` has the missing names, if known."""

    code = ErrorCode.GROUP_ID_NOT_FOUND

    def __init__(self, what: str, why: str = "", hint: str = "", *, groups: Sequence[str] = ()) -> None:
        super().__init__(what, why, hint)
        self.groups = tuple(groups)


class OperationNotFound(OffsetMgrError, LookupError):
    """The operation log does not have the operation."""


class GroupActive(OffsetMgrError):
    """The group has active members, so no other client may change its offsets (NON_EMPTY_GROUP).

    ``members`` contains the names of the members (``client-id at /host (member id)``). If offsetmgr commands that hold
    the group lock are the only members, the hint reports that another command is editing the group. In this case
    ``lock_ends_s`` is the number of seconds after which the lock of a killed command has expired. If other clients are
    members, ``lock_ends_s`` is 0.
    """

    code = ErrorCode.NON_EMPTY_GROUP

    def __init__(
        self, what: str, why: str = "", hint: str = "", *, members: tuple[str, ...] = (), lock_ends_s: float = 0
    ) -> None:
        if lock_ends_s or (members and all(member.startswith("offsetmgr at ") for member in members)):
            expires_s = max(lock_ends_s - 2, 10) if lock_ends_s > 22 else 10  # 45 s for an edit of a running group
            hint = (
                "another offsetmgr command is editing this group: try again when it has finished; if it was killed,"
                f" its lock expires within {expires_s:g} s"
            )
        super().__init__(what, why, hint)
        self.members = members
        self.lock_ends_s = lock_ends_s


class LockLost(OffsetMgrError):
    """The membership that serves as the group lock ended before the write (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
    FENCED_INSTANCE_ID)."""

    code = ErrorCode.ILLEGAL_GENERATION
    retriable = True


class Superseded(LockLost):
    """Another process joined the group with the same instance id and replaced this process (FENCED_INSTANCE_ID,
    KIP-345)."""

    code = ErrorCode.FENCED_INSTANCE_ID
    retriable = False


class InvalidRequest(OffsetMgrError):
    """A client sent bytes that are not a request of Kafka's protocol (INVALID_REQUEST). The server closes the
    connection, as a broker does."""

    code = ErrorCode.INVALID_REQUEST


# --- data rules --------------------------------------------------------------------------------------


class RewindRefused(OffsetMgrError):
    """The write would lower a committed offset, and no rewind is allowed (data rule "no accidental rewind")."""


class OtherCluster(UsageError):
    """The offsets belong to the logs of another Kafka cluster, and the caller did not accept offsets of another cluster
    (exit code 2)."""


class RecreatedTopic(OffsetMgrError):
    """The topic was deleted and recreated after the offset was committed, so the offset points into a deleted log."""


class Conflict(OffsetMgrError):
    """The committed offset differs from the offset that the caller expected, so the store wrote nothing (data rule
    "conditional writes").

    ``actual`` is the offset in the store (``Committed`` or ``Absent``), or None if unknown.
    """

    def __init__(self, what: str, why: str = "", hint: str = "", *, actual: Any = None) -> None:
        super().__init__(what, why, hint)
        self.actual = actual


class Overwritten(OffsetMgrError):
    """The offset was written, and a member of the group has committed an earlier offset over it."""


class CorruptData(OffsetMgrError):
    """Data exists but cannot be decoded, such as a znode or record that contains no offset. Such data never counts as
    absent. ``data`` is the content of the znode of an offset."""

    data: bytes | None = None


class LimitExceeded(CorruptData):
    """An entry of a log, or the decompressed content of a batch, needs more memory than the caller allows."""


class UnknownVersion(OffsetMgrError):
    """The data has a format version that offsetmgr does not know. The message contains the version (data rule
    "versioned formats")."""


class FileFailure(OffsetMgrError):
    """offsetmgr cannot open, read, lock or write a file."""


class MalformedData(OffsetMgrError):
    """A file violates its format. The message names the line and the reason."""


class PartialFailure(OffsetMgrError):
    """Some partitions succeeded and some failed. The error contains the outcome of every partition (data rule "absent
    is not zero").

    ``successes`` maps each successful partition to its result, and ``failures`` maps each failed partition to its
    error.
    """

    def __init__(
        self,
        what: str,
        *,
        successes: Mapping[TopicPartition, Any],
        failures: Mapping[TopicPartition, OffsetMgrError],
    ) -> None:
        first = next(iter(sorted(failures.items())), None)
        why = f"{len(failures)} of {len(failures) + len(successes)} partitions failed"
        if first is not None:
            why += f"; {first[0]}: {first[1]}"
        super().__init__(what, why)
        self.successes = dict(successes)
        self.failures = dict(failures)


class GroupsFailed(PartialFailure, Generic[T]):
    """An edit, or a step of a migration, succeeded for some groups and failed for others, or left them out.

    ``report`` has the outcomes of partitions, and ``successes`` and ``failures`` are empty. ``group_failures`` maps
    each failed group to its first error.
    """

    def __init__(
        self, what: str, report: T, group_failures: Mapping[str, OffsetMgrError], left_out: Mapping[str, str]
    ) -> None:
        reasons = {**left_out, **{group: error.text for group, error in group_failures.items()}}
        group, why = min(reasons.items())
        number, verb = count_of(len(reasons), "group"), "was" if len(reasons) == 1 else "were"
        failed = f"{number} failed" + (f" or {verb} left out" if left_out else "")
        shown = why if any(f"group {name}" in why for name in (group, repr(group))) else Advice("{}: {}", group, why)
        hint = getattr(group_failures.get(group), "hint", "")
        OffsetMgrError.__init__(self, what, Advice("{}; {}", failed, shown), hint)
        self.successes, self.failures = {}, {}
        self.report, self.group_failures = report, dict(group_failures)


class AssignmentRefused(OffsetMgrError):
    """The strategy cannot assign the group's partitions, so a rebalance of the members would fail too."""


# --- migration -----------------------------------------------------------------------------------


class OpenPeriodUnknown(OffsetMgrError):
    """The coordinator has not yet read the open period from ZooKeeper."""

    retriable = True


class LateRecord(OffsetMgrError):
    """The record belongs to a closed period, or to a period that the record's partition has already finished."""


class RunEnded(Conflict):
    """No further period opens, because the run was ended early, or because the last period of the run is closed
    (``done``)."""

    def __init__(self, what: str, why: str = "", hint: str = "", *, done: bool = False) -> None:
        super().__init__(what, why, hint)
        self.done = done


class CallbackFailed(OffsetMgrError):
    """A callback of the caller raised an exception that is not an `OffsetMgrError`."""


class LegacyMembersPresent(OffsetMgrError):
    """Members of an older program are present: members of the original period coordinator, which ignore offsetmgr's
    conditional writes, or old consumers, whose commits would fail."""


class PlanError(OffsetMgrError):
    """A plan cannot be used: it is damaged, has an unknown version, or belongs to other clusters (data rule "migration
    is a state machine on disk")."""


class JournalError(OffsetMgrError):
    """A journal is damaged in a line other than its last line, belongs to another plan, or is in use by another
    process."""


class GateRefused(OffsetMgrError):
    """offsetmgr refuses a change of the commit mode, because evidence is missing or contradicts the change (data rule
    "verdicts carry evidence")."""


class ControllerRequestRefused(OffsetMgrError):
    """offsetmgr does not write a request to the controller, because the controller would not process the request, or
    would never finish the request."""


class SparkError(OffsetMgrError):
    """A Spark session or its connector is not available, or a query cannot be tracked."""


class SandboxError(OffsetMgrError):
    """A server of the sandbox could not be downloaded, started or stopped."""


# The outcome of one item of a bulk call: a value or an error.


def value_of(outcome: T | OffsetMgrError) -> T:
    """Returns the outcome if it is a value. Raises it if it is an error."""
    if isinstance(outcome, OffsetMgrError):
        raise outcome
    return outcome


def value_of_each(read: Callable[[Keys], Mapping[K, T | OffsetMgrError]], keys: Keys) -> Mapping[K, T | OffsetMgrError]:
    """Reads a value for each key. An error of the whole read is the value of each."""
    try:
        return read(keys)
    except OffsetMgrError as error:
        return dict.fromkeys(keys, error)


# Converts errors of the operating system.


@contextmanager
def os_error_as(kind: Callable[[str, str, str], OffsetMgrError], what: str, hint: str = "") -> Iterator[None]:
    """Converts an `OSError` to an error of this kind, with the operating system's text as the reason."""
    try:
        yield
    except OffsetMgrError:
        raise
    except OSError as error:
        raise kind(what, error.strerror or str(error), hint) from error


# The hint of errors about a package that an optional dependency group (an extra) of offsetmgr installs.


def install_hint(extra: str) -> str:
    """Returns the hint that names the extra.

    >>> install_hint("spark").partition(": ")[2]
    "pip install '.[spark]' in a clone, or './offsetmgr-VERSION-py3-none-any.whl[spark]'; an executable has no extras"
    """
    ways = f"'.[{extra}]' in a clone, or './offsetmgr-VERSION-py3-none-any.whl[{extra}]'"
    return f"install offsetmgr with its extra {extra}: pip install {ways}; an executable has no extras"
