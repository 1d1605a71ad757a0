"""The outcome of one item of a bulk call: a value or an error."""

from __future__ import annotations

from typing import TypeVar

from offsetmgr.core.errors import OffsetMgrError

T = TypeVar("T")


def value_of(outcome: T | OffsetMgrError) -> T:
    """Returns the outcome if it is a value. Raises it if it is an error."""
    if isinstance(outcome, OffsetMgrError):
        raise outcome
    return outcome
