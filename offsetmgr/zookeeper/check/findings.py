"""`Finding`: one fault that a check reports, with a code that is stable across offsetmgr versions. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

from offsetmgr.core.model import BrokerPartition


class Severity(StrEnum):
    """The severity of a finding.

    * ERROR: messages are not consumed, or messages will be lost or reprocessed.
    * WARNING: a node is no longer needed or has no effect.
    * UNKNOWN: the check could not read, understand or decide something.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"


class FindingCode(StrEnum):
    """The kinds of findings, with their severities. The values are stable across offsetmgr versions, so programs can
    rely on them.

    A finding may be ``transient``: a rebalance, an expiring session or the creation of a topic can cause it, and the
    second check can see commits of a group with persistent members.
    """

    severity: Severity
    transient: bool

    def __new__(cls, value: str, severity: Severity, transient: bool = True) -> Self:
        code = str.__new__(cls, value)
        code._value_, code.severity, code.transient = value, severity, transient
        return code

    NO_OWNER = "no-owner", Severity.ERROR
    MEMBER_PERSISTENT = "member-persistent", Severity.UNKNOWN
    OWNER_PERSISTENT = "owner-persistent", Severity.ERROR, False
    OWNER_SESSION = "owner-session", Severity.ERROR
    OWNER_NOT_MEMBER = "owner-not-member", Severity.ERROR
    OWNER_OF_OTHER_GROUP = "owner-of-other-group", Severity.ERROR
    SUBSCRIPTION_UNSERVED = "subscription-unserved", Severity.WARNING
    OFFSETS_TOPIC_GONE = "offsets-topic-gone", Severity.WARNING
    OFFSETS_PARTITION_GONE = "offsets-partition-gone", Severity.WARNING
    OFFSET_OUT_OF_RANGE = "offset-out-of-range", Severity.ERROR
    LOG_RANGE_UNKNOWN = "log-range-unknown", Severity.UNKNOWN, False
    UNUSED = "unused", Severity.WARNING, False
    UNREADABLE = "unreadable", Severity.UNKNOWN, False
    UNRECOGNISED = "unrecognised", Severity.UNKNOWN, False


PARTITIONS: Final = "{partitions}"
"""The placeholder for the partitions in the text of a finding. The placeholder is replaced only when the finding is
formatted, because the second check may remove some of the partitions."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. ``todo`` is the remedy. ``group`` is None for a finding that concerns all groups.

    ``text`` is either a sentence without its subject (the subject is the node at ``path``), or a whole sentence that
    begins with `PARTITIONS`.
    """

    code: FindingCode
    group: str | None
    path: str
    text: str
    todo: str
    topic: str | None = None
    partitions: tuple[int, ...] = ()

    @property
    def severity(self) -> Severity:
        return self.code.severity

    @property
    def sentence(self) -> str:
        """The text of the finding as a whole sentence, with the node's path."""
        whole = self.text.startswith(PARTITIONS)
        return f"{self.path}{':' if whole else ''} {self.text.replace(PARTITIONS, partition_list(self.partitions))}"


def confirmed(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """Returns the findings of the second check, except transient findings that the first check did not report.

    A transient finding keeps only the partitions that both checks reported.
    """
    before = {(finding.code, finding.path, finding.topic): finding for finding in first}
    kept: list[Finding] = []
    for finding in second:
        if not finding.code.transient:
            kept.append(finding)
            continue
        earlier = before.get((finding.code, finding.path, finding.topic))
        if earlier is None:
            continue
        common = tuple(number for number in finding.partitions if number in set(earlier.partitions))
        if common or not finding.partitions:
            kept.append(replace(finding, partitions=common))
    return kept


def partition_list(numbers: Sequence[int]) -> str:
    """Formats partitions: ``partition 3``, ``partitions 0-4,7``, and in the 0.7 layout ``partitions 1-0,1-1``."""
    plural = "" if len(numbers) == 1 else "s"
    if any(isinstance(number, BrokerPartition) for number in numbers):
        return f"partition{plural} {','.join(map(str, sorted(numbers)))}"
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"partition{plural} {text}"
