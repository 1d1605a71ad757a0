"""Streams groups through reading and rules, and checks possibly temporary findings a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from offsetmgr.core.clock import Clock
from offsetmgr.zookeeper.check.findings import PASSING, Finding, confirmed
from offsetmgr.zookeeper.check.group_reader import GroupReader, read_cluster
from offsetmgr.zookeeper.check.group_rules import check_cluster, check_group
from offsetmgr.zookeeper.check.ranges import AskRanges, LogRangeCheck
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths

GROUPS_AT_ONCE: Final = 250
MOST_HELD: Final = 10_000
"""Maximum number of findings that wait for their second check; beyond it the check runs before more groups are read."""


class CheckReport(NamedTuple):
    """The findings for one group."""

    group: str
    findings: Sequence[Finding]


class ZookeeperCheck:
    """One run over groups. Construction reads the cluster's topics and raises what that raises.

    None for ``ask_ranges`` or ``unused_since_ms`` disables those rules; ``settle_s`` 0 disables the second check.
    ``on_second_look`` receives the number of groups to check again, before the wait. Memory grows with the groups that
    are read together and the findings that wait, not with the number of groups.
    """

    def __init__(
        self,
        session: ZookeeperSession,
        known_groups: Iterable[str],
        clock: Clock,
        *,
        ask_ranges: AskRanges | None = None,
        unused_since_ms: int | None = None,
        settle_s: float = 0.0,
        on_second_look: Callable[[int], None] | None = None,
    ) -> None:
        self._session = session
        self._known = frozenset(known_groups)
        self._clock = clock
        self._ranges = None if ask_ranges is None else LogRangeCheck(ask_ranges)
        self._unused_since_ms = unused_since_ms
        self._settle_s = settle_s
        self._on_second_look = on_second_look
        self._cluster = read_cluster(session)

    @property
    def of_cluster(self) -> list[Finding]:
        """Findings that concern all groups."""
        return check_cluster(self._cluster)

    def unchecked(self) -> list[str]:
        """The rules that this run does not apply, and why."""
        reasons: list[str] = []
        if self._cluster.topics is None:
            why = f"there is no {paths.BROKER_TOPICS} here"
            reasons.append(f"owners of all partitions, and whether topics exist ({why})")
        if self._ranges is None:
            reasons.append("offsets against the logs' ranges (no --bootstrap-server)")
        if self._unused_since_ms is None:
            reasons.append("unused groups (no --unused-since)")
        if not self._settle_s:
            reasons.append("whether it lasts: nothing was looked at twice (--settle 0)")
        return reasons

    def run(self, groups: Iterable[str]) -> Iterator[CheckReport]:
        """Yields one result for each group; groups that are checked twice come later. Raises if the session fails as a
        whole; an unreadable node is a finding."""
        remaining = iter(groups)
        waiting: list[CheckReport] = []
        while batch := list(islice(remaining, GROUPS_AT_ONCE)):
            for checked in self._look(batch):
                if self._settle_s and any(finding.code in PASSING for finding in checked.findings):
                    waiting.append(checked)
                else:
                    yield checked
            if sum(len(checked.findings) for checked in waiting) >= MOST_HELD:
                yield from self._second_look(waiting)
                waiting = []
        if waiting:
            yield from self._second_look(waiting)

    def _look(self, groups: Sequence[str]) -> Iterator[CheckReport]:
        reader = GroupReader(self._session, self._cluster, self._known)
        found = list(reader.read(groups))
        ranges = None if self._ranges is None else self._ranges.known_for(found, self._cluster)
        for facts in found:
            yield CheckReport(facts.group, check_group(facts, self._cluster, ranges, self._unused_since_ms))

    def _second_look(self, waiting: Sequence[CheckReport]) -> Iterator[CheckReport]:
        """Yields the findings that remain after a wait. Topics are read again, since one may have been created or
        deleted."""
        if self._on_second_look is not None:
            self._on_second_look(len(waiting))
        self._clock.sleep(self._settle_s)
        self._session.sync()
        self._cluster = read_cluster(self._session)
        for at in range(0, len(waiting), GROUPS_AT_ONCE):
            batch = waiting[at : at + GROUPS_AT_ONCE]
            for first, second in zip(batch, self._look([checked.group for checked in batch]), strict=True):
                yield CheckReport(second.group, confirmed(first.findings, second.findings))
