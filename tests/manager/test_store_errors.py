"""Error codes for clients after a failure of the store behind the listener: every error class has its code."""

import inspect

import pytest

from offsetmgr.core import errors
from offsetmgr.core.errors import GroupActive, OffsetMgrError, PartialFailure, ServerError
from offsetmgr.kafka.protocol.errors import UnstableOffset, kafka_error
from offsetmgr.server.store_backends.store_errors import delete_code, error_code, outcome_unknown

CODES = {
    -1: "OffsetMgrError ServerError RewindRefused Overwritten CorruptData UnknownVersion FileFailure MalformedData "
        "PlanError JournalError GateRefused ControllerRequestRefused SandboxError",
    1: "OffsetOutOfRange",
    3: "UnknownTopicOrPartition",
    12: "OffsetMetadataTooLarge",
    14: "CoordinatorLoadInProgress",
    15: "Unreachable TimedOut CoordinatorNotAvailable NotCoordinator LockLost Superseded Conflict",
    25: "GroupActive",
    29: "TopicNotAuthorized",
    30: "AuthenticationFailed NotAuthorized",
    35: "UnsupportedOperation",
    42: "UsageError ConfigError InvalidUri InvalidPattern InvalidRequest",
    69: "GroupNotFound",
}  # fmt: skip
EXPECTED = {name: code for code, names in CODES.items() for name in names.split()}


def every_error() -> list[type[OffsetMgrError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, OffsetMgrError) and not issubclass(kind, PartialFailure)
    ]


def test_every_class_of_error_has_its_code() -> None:
    codes = {kind.__name__: error_code(kind("what", "why")) for kind in every_error()}
    assert {name: codes[name] for name in EXPECTED} == EXPECTED
    assert 0 not in codes.values(), "errors that no store raises also have an error code"


@pytest.mark.parametrize("code", [1, 5, 7, 16, 17, 19, 22, 24, 27, 28, 3, 12, 14, 29, 30, 69, 88, 999])
def test_a_brokers_code_is_passed_on_unless_it_is_about_coordinators(code: int) -> None:
    assert error_code(kafka_error(code, "what")) == (15 if code in (7, 16, 22) else code)


def test_a_group_with_members_has_one_code_for_commits_and_one_for_deletions() -> None:
    active = GroupActive("group g", "has members")

    assert (error_code(active), delete_code(active)) == (25, 68)


def test_only_retriable_errors_have_an_unknown_outcome() -> None:
    assert {k.__name__ for k in every_error() if outcome_unknown(k("what")) and k.__name__ in EXPECTED} == {
        "Unreachable",
        "TimedOut",
        "CoordinatorLoadInProgress",
        "CoordinatorNotAvailable",
        "NotCoordinator",
    }
    assert outcome_unknown(UnstableOffset("what"))
    assert not outcome_unknown(ServerError("what"))
