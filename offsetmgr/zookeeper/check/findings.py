"""`Finding`: one fault that a check reports, with a code that is stable across offsetmgr versions. Values only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from offsetmgr.core.model import BrokerPartition


class FindingCode(StrEnum):
    """The kinds of findings. The values are stable across offsetmgr versions, so programs can rely on them."""

    NO_OWNER = "no-owner"
    MEMBER_PERSISTENT = "member-persistent"
    OWNER_PERSISTENT = "owner-persistent"
    OWNER_SESSION = "owner-session"
    OWNER_NOT_MEMBER = "owner-not-member"
    OWNER_OF_OTHER_GROUP = "owner-of-other-group"
    SUBSCRIPTION_UNSERVED = "subscription-unserved"
    OFFSETS_TOPIC_GONE = "offsets-topic-gone"
    OFFSETS_PARTITION_GONE = "offsets-partition-gone"
    OFFSET_OUT_OF_RANGE = "offset-out-of-range"
    LOG_RANGE_UNKNOWN = "log-range-unknown"
    UNUSED = "unused"
    UNREADABLE = "unreadable"
    UNRECOGNISED = "unrecognised"


class Severity(StrEnum):
    """The severity of a finding.

    * ERROR: messages are not consumed, or messages will be lost or reprocessed.
    * WARNING: a node is no longer needed or has no effect.
    * UNKNOWN: the check could not read, understand or decide something.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"


SEVERITIES: Final = {
    FindingCode.NO_OWNER: Severity.ERROR,
    FindingCode.MEMBER_PERSISTENT: Severity.UNKNOWN,
    FindingCode.OWNER_PERSISTENT: Severity.ERROR,
    FindingCode.OWNER_SESSION: Severity.ERROR,
    FindingCode.OWNER_NOT_MEMBER: Severity.ERROR,
    FindingCode.OWNER_OF_OTHER_GROUP: Severity.ERROR,
    FindingCode.SUBSCRIPTION_UNSERVED: Severity.WARNING,
    FindingCode.OFFSETS_TOPIC_GONE: Severity.WARNING,
    FindingCode.OFFSETS_PARTITION_GONE: Severity.WARNING,
    FindingCode.OFFSET_OUT_OF_RANGE: Severity.ERROR,
    FindingCode.LOG_RANGE_UNKNOWN: Severity.UNKNOWN,
    FindingCode.UNUSED: Severity.WARNING,
    FindingCode.UNREADABLE: Severity.UNKNOWN,
    FindingCode.UNRECOGNISED: Severity.UNKNOWN,
}

TRANSIENT: Final = frozenset(
    {
        FindingCode.MEMBER_PERSISTENT,
        FindingCode.NO_OWNER,
        FindingCode.OWNER_SESSION,
        FindingCode.OWNER_NOT_MEMBER,
        FindingCode.OWNER_OF_OTHER_GROUP,
        FindingCode.SUBSCRIPTION_UNSERVED,
        FindingCode.OFFSETS_TOPIC_GONE,
        FindingCode.OFFSETS_PARTITION_GONE,
        FindingCode.OFFSET_OUT_OF_RANGE,
    }
)
"""Codes of findings that may be temporary: a rebalance, an expiring session or the creation of a topic can cause
them, and the second check can see commits of a group with persistent members."""


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
        return SEVERITIES[self.code]

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
        if finding.code not in TRANSIENT:
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
