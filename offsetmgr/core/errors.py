"""One hierarchy of errors, with Kafka's names and codes where Kafka has one.

Every error says *what* failed, *why*, and (where there is something to do) gives a *hint*.  The
command line prints exactly these three parts, so a message written here is read by a person at night.
No text in here may carry a credential.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from offsetmgr.core.model import LogRange, TopicPartition


class OffsetMgrError(Exception):
    """Base of everything that offsetmgr raises on purpose.

    ``what`` names the thing that failed, ``why`` the reason as far as it is known, ``hint`` what the
    reader can do about it.  ``code`` and ``name`` are Kafka's protocol error where one exists.
    ``retriable`` says whether the very same call may succeed later without anybody changing anything.
    """

    code: ClassVar[int | None] = None
    name: ClassVar[str | None] = None
    retriable: ClassVar[bool] = False

    def __init__(self, what: str, why: str = "", hint: str = "") -> None:
        super().__init__(what, why, hint)
        self.what = what
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.why else self.what


# --- what the caller asked for -------------------------------------------------------------------


class UsageError(OffsetMgrError):
    """The call or the command line does not make sense as given (exit code 2)."""


class ConfigError(UsageError):
    """A configuration file, context or environment variable cannot be used."""


class InvalidUri(UsageError):
    """A store URI that cannot be understood."""


class InvalidPattern(UsageError):
    """A topic pattern that Java refuses, so no old consumer could have subscribed with it."""


class UnsupportedOperation(OffsetMgrError):
    """The store, server version or format cannot do this at all."""


# --- reaching a server ---------------------------------------------------------------------------


class Unreachable(OffsetMgrError):
    """No server answered at this address within the timeout."""

    retriable = True


class TimedOut(OffsetMgrError):
    """The server was reached but did not answer within the timeout (REQUEST_TIMED_OUT)."""

    code = 7
    name = "REQUEST_TIMED_OUT"
    retriable = True


class SessionExpired(OffsetMgrError):
    """The ZooKeeper session is over: its ephemeral nodes are gone, and nothing can be asked in it any more."""


class AuthenticationFailed(OffsetMgrError):
    """The server refused our credentials (SASL_AUTHENTICATION_FAILED)."""

    code = 58
    name = "SASL_AUTHENTICATION_FAILED"


class NotAuthorized(OffsetMgrError):
    """Authenticated, but not allowed to do this (GROUP_AUTHORIZATION_FAILED, TOPIC_..., ZooKeeper NoAuth)."""

    code = 30
    name = "GROUP_AUTHORIZATION_FAILED"


class TopicNotAuthorized(NotAuthorized):
    """Allowed for the group, but not for this topic (TOPIC_AUTHORIZATION_FAILED)."""

    code = 29
    name = "TOPIC_AUTHORIZATION_FAILED"


class ServerError(OffsetMgrError):
    """The server answered with an error that has no class of its own here; the text names it.

    ``wire_code`` is Kafka's code where there was one.
    """

    def __init__(self, what: str, why: str = "", hint: str = "", *, wire_code: int | None = None) -> None:
        super().__init__(what, why, hint)
        self.wire_code = wire_code


# --- Kafka's coordinator -------------------------------------------------------------------------


class CoordinatorLoadInProgress(OffsetMgrError):
    """The coordinator still loads the group's offsets (COORDINATOR_LOAD_IN_PROGRESS)."""

    code = 14
    name = "COORDINATOR_LOAD_IN_PROGRESS"
    retriable = True


class CoordinatorNotAvailable(OffsetMgrError):
    """No coordinator can serve the group right now (COORDINATOR_NOT_AVAILABLE)."""

    code = 15
    name = "COORDINATOR_NOT_AVAILABLE"
    retriable = True


class NotCoordinator(OffsetMgrError):
    """The server asked is not the group's coordinator (NOT_COORDINATOR)."""

    code = 16
    name = "NOT_COORDINATOR"
    retriable = True


class UnknownTopicOrPartition(OffsetMgrError):
    """The topic or partition does not exist (UNKNOWN_TOPIC_OR_PARTITION)."""

    code = 3
    name = "UNKNOWN_TOPIC_OR_PARTITION"


class OffsetOutOfRange(OffsetMgrError):
    """The offset lies outside the partition's log (OFFSET_OUT_OF_RANGE).

    ``log_range`` is what the log held when that was found, None where it could not be asked.
    """

    code = 1
    name = "OFFSET_OUT_OF_RANGE"

    def __init__(self, what: str, why: str = "", hint: str = "", *, log_range: LogRange | None = None) -> None:
        super().__init__(what, why, hint)
        self.log_range = log_range


class OffsetMetadataTooLarge(OffsetMgrError):
    """The commit's metadata is over the server's limit (OFFSET_METADATA_TOO_LARGE)."""

    code = 12
    name = "OFFSET_METADATA_TOO_LARGE"


class GroupNotFound(OffsetMgrError):
    """The group does not exist in this store (GROUP_ID_NOT_FOUND)."""

    code = 69
    name = "GROUP_ID_NOT_FOUND"


class GroupActive(OffsetMgrError):
    """The group has members that are consuming, so nobody else may change its offsets (NON_EMPTY_GROUP).

    ``members`` are their readable names (``client-id at /host (member id)``).
    Where all of them are locks of offsetmgr's, the hint says so. ``lock_ends_s``: the seconds within which the
    coordinator ends such locks where their process was killed; 0 where others are members.
    """

    code = 68
    name = "NON_EMPTY_GROUP"

    def __init__(
        self, what: str, why: str = "", hint: str = "", *, members: tuple[str, ...] = (), lock_ends_s: float = 0
    ) -> None:
        if lock_ends_s or (members and all(member.startswith("offsetmgr at ") for member in members)):
            hint = (
                "another offsetmgr command edits this group at this moment, or was killed while it did, and then its"
                " lock ends within 10 s: repeat it then"
            )
        super().__init__(what, why, hint)
        self.members = members
        self.lock_ends_s = lock_ends_s


class LockLost(OffsetMgrError):
    """Our membership as the group's only member ended before the write (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
    FENCED_INSTANCE_ID)."""

    code = 22
    name = "ILLEGAL_GENERATION"
    retriable = True


class Superseded(LockLost):
    """Another process has taken over our place in the group, under the same name (FENCED_INSTANCE_ID, KIP-345)."""

    code = 82
    name = "FENCED_INSTANCE_ID"
    retriable = False


class InvalidRequest(OffsetMgrError):
    """Bytes from a client that are not a request of Kafka's protocol (INVALID_REQUEST): its connection is closed, as a
    broker does."""

    code = 42
    name = "INVALID_REQUEST"


# --- the rules of the data -----------------------------------------------------------------------


class RewindRefused(OffsetMgrError):
    """The write would lower a committed offset and nobody said that it may (data rule "no accidental rewind")."""


class OtherCluster(UsageError):
    """The offsets belong to the logs of another Kafka cluster, and the caller did not accept that (exit code 2)."""


class RecreatedTopic(OffsetMgrError):
    """The topic was deleted and recreated after the offset was committed, so the offset points into a deleted log."""


class Conflict(OffsetMgrError):
    """The committed offset is not what the caller expected it to be; nothing was written (data rule "conditional
    writes").

    ``actual`` is what was found instead (``Committed`` or ``Absent``), or None where it is not known.
    """

    def __init__(self, what: str, why: str = "", hint: str = "", *, actual: Any = None) -> None:
        super().__init__(what, why, hint)
        self.actual = actual


class CorruptData(OffsetMgrError):
    """Data exists but cannot be understood: a node or record that is not an offset (never taken for absent)."""


class LimitExceeded(CorruptData):
    """Data that would take more memory than the caller allows: one entry of a log, or what a batch decompresses to."""


class UnknownVersion(OffsetMgrError):
    """A format whose version we do not know; the text names the version (data rule "versioned formats")."""


class FileFailure(OffsetMgrError):
    """A file of ours cannot be opened, read, locked or written: missing, not allowed, no space, exists already."""


class MalformedData(OffsetMgrError):
    """A file that breaks its format; the text says which line, and why."""


class PartialFailure(OffsetMgrError):
    """Some partitions succeeded and some failed: both are here, nothing is hidden (data rule "absent is not zero").

    ``successes`` maps partitions to what the call would have returned for them, ``failures`` maps partitions to their
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


# --- dividing a group's partitions -----------------------------------------------------------------


class AssignmentRefused(OffsetMgrError):
    """The strategy cannot divide the group's partitions as the group stands: its real members fail to rebalance too."""


class UnequalSubscriptions(AssignmentRefused):
    """Round-robin as it was up to Kafka 0.10.1 needs every member to have the same topics with as many streams of each.

    ``members`` are those that differ from the others, sorted.
    """

    def __init__(self, what: str, why: str = "", hint: str = "", *, members: tuple[str, ...] = ()) -> None:
        super().__init__(what, why, hint)
        self.members = members


# --- migration -----------------------------------------------------------------------------------


class OpenPeriodUnknown(OffsetMgrError):
    """Which period is open has not been read yet: it is unknown, not 0."""

    retriable = True


class LateRecord(OffsetMgrError):
    """A record of a period that its partition has finished, or that was closed before."""


class RunEnded(Conflict):
    """No further period will open: the run was ended by somebody, or its last period is closed (``done``)."""

    def __init__(self, what: str, why: str = "", hint: str = "", *, done: bool = False) -> None:
        super().__init__(what, why, hint)
        self.done = done


class CallbackFailed(OffsetMgrError):
    """A function that the caller handed in has raised something that is no error of ours."""


class LegacyMembersPresent(OffsetMgrError):
    """Nodes in a form whose writers know nothing of what guards ours: nobody may run beside them."""


class SwitchInProgress(OffsetMgrError):
    """A group is being switched to other stores, or its member cannot know whether it is; nothing was done."""

    retriable = True


class PlanError(OffsetMgrError):
    """A plan cannot be used: damaged, of an unknown version, or made for other clusters (data rule "migration is a
    state machine on disk")."""


class JournalError(OffsetMgrError):
    """A journal is damaged before its end, belongs to another plan, or is in use by another process."""


class GateRefused(OffsetMgrError):
    """A phase change is refused because the evidence is missing or speaks against it (data rule "verdicts carry
    evidence")."""


class ControllerRequestRefused(OffsetMgrError):
    """An admin action is refused before anything is written: the cluster's controller would not carry it out, or never
    end it."""


class SparkError(OffsetMgrError):
    """A Spark session or its connector cannot be had, or a query cannot be followed."""


class SandboxError(OffsetMgrError):
    """A sandbox server could not be fetched, started or stopped."""
