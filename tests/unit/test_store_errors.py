"""Error codes for clients after a failure of the store behind the listener: every error class has its code."""

from __future__ import annotations

import inspect

import pytest

from offsetmgr.core import errors
from offsetmgr.core.errors import GroupActive, OffsetMgrError, PartialFailure, ServerError
from offsetmgr.kafka.protocol.errors import UnstableOffset, kafka_error
from offsetmgr.server.store_backends.store_errors import delete_code, error_code, outcome_unknown

EXPECTED = {
    "OffsetMgrError": -1,
    "UsageError": 42,
    "ConfigError": 42,
    "InvalidUri": 42,
    "InvalidPattern": 42,
    "UnsupportedOperation": 35,
    "Unreachable": 15,
    "TimedOut": 15,
    "AuthenticationFailed": 30,
    "NotAuthorized": 30,
    "TopicNotAuthorized": 29,
    "ServerError": -1,
    "CoordinatorLoadInProgress": 14,
    "CoordinatorNotAvailable": 15,
    "NotCoordinator": 15,
    "UnknownTopicOrPartition": 3,
    "OffsetMetadataTooLarge": 12,
    "OffsetOutOfRange": 1,
    "GroupNotFound": 69,
    "GroupActive": 25,
    "LockLost": 15,
    "SwitchInProgress": 15,
    "Superseded": 15,
    "InvalidRequest": 42,
    "RewindRefused": -1,
    "Conflict": 15,
    "Overwritten": -1,
    "CorruptData": -1,
    "UnknownVersion": -1,
    "FileFailure": -1,
    "MalformedData": -1,
    "PlanError": -1,
    "JournalError": -1,
    "GateRefused": -1,
    "ControllerRequestRefused": -1,
    "SandboxError": -1,
}


def every_error() -> list[type[OffsetMgrError]]:
    return [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, OffsetMgrError) and kind is not PartialFailure
    ]


def test_every_class_of_error_has_its_code() -> None:
    codes = {kind.__name__: error_code(kind("what", "why")) for kind in every_error()}
    assert {name: codes[name] for name in EXPECTED} == EXPECTED
    assert 0 not in codes.values(), "errors that no store raises also have an error code"


@pytest.mark.parametrize("code", [1, 5, 17, 19, 22, 24, 27, 28, 3, 12, 14, 29, 30, 69, 88, 999])
def test_a_brokers_code_is_passed_on_unless_it_is_about_coordinators(code: int) -> None:
    result = error_code(kafka_error(code, "what"))

    assert result == (15 if code == 22 else code)


def test_an_error_about_another_coordinator_is_not_passed_on() -> None:
    assert error_code(kafka_error(16, "what")) == 15
    assert error_code(kafka_error(7, "what")) == 15


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
        "SwitchInProgress",
    }
    assert outcome_unknown(UnstableOffset("what"))
    assert not outcome_unknown(ServerError("what"))
