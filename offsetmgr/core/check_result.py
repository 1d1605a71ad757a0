"""The results of the checks of ``offsetmgr doctor``."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from offsetmgr.core.clock import ClockDifference
from offsetmgr.core.errors import OffsetMgrError


class CheckStatus(StrEnum):
    """The outcome of a check. ``UNKNOWN`` means that the server cannot report what the check needs."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "not known"


class CheckResult(NamedTuple):
    """The outcome of one check of one endpoint. ``fix`` is the remedy in one line; empty if nothing is to be done."""

    check: str
    endpoint: str
    status: CheckStatus
    detail: str
    fix: str = ""


def failed_check(check: str, endpoint: str, error: OffsetMgrError) -> CheckResult:
    """Returns the result of a check that ended with an error."""
    return CheckResult(check, endpoint, CheckStatus.FAILED, error.why or error.what, error.hint)


def clock_check(endpoint: str, difference: ClockDifference) -> CheckResult:
    """Returns the result of comparing a server's clock with this machine's."""
    fix = "synchronise the clocks (NTP): expiry dates and the times of evidence are wrong by this difference"
    if difference.exceeds():
        return CheckResult("clock", endpoint, CheckStatus.FAILED, str(difference), fix)
    if difference.high is None:
        return CheckResult("clock", endpoint, CheckStatus.UNKNOWN, str(difference))
    return CheckResult("clock", endpoint, CheckStatus.OK, str(difference))
