"""`ZookeeperCheck`: reads and checks a stream of groups. If a group has transient findings, the group is checked a
second time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import batched
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.log_range_cache import FetchLogRanges, LogRangeCache
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.zookeeper.check.findings import Finding, confirmed
from offsetmgr.zookeeper.check.group_reader import read_cluster, read_facts
from offsetmgr.zookeeper.check.group_rules import check_cluster, check_group
from offsetmgr.zookeeper.check.offset_rules import partitions_with_log
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths

GROUPS_AT_ONCE: Final = 250
MAX_WAITING_FINDINGS: Final = 10_000
"""Maximum number of findings that wait for the second check. When this number is reached, the second check runs
immediately."""


class CheckReport(NamedTuple):
    """The findings for one group."""

    group: str
    findings: Sequence[Finding]


class ZookeeperCheck:
    """One check of many groups. The constructor reads the cluster's topics, and raises the same errors as
    `read_cluster`.

    If ``fetch_log_ranges`` or ``unused_since_ms`` is None, the check skips the rules that need it. Before each second
    check, the object calls ``on_recheck`` with the number of groups to check again, and then waits ``recheck_after_s``
    seconds. If ``recheck_after_s`` is 0, there is no second check. Memory use depends on the batch size and on the
    number of findings that wait for the second check, not on the number of groups.
    """

    def __init__(
        self,
        session: ZookeeperSession,
        known_groups: Iterable[str],
        clock: Clock,
        *,
        fetch_log_ranges: FetchLogRanges | None = None,
        unused_since_ms: int | None = None,
        recheck_after_s: float = 0.0,
        on_recheck: Callable[[int], None] | None = None,
    ) -> None:
        self._session = session
        self._known = frozenset(known_groups)
        self._clock = clock
        self._ranges = None if fetch_log_ranges is None else LogRangeCache(partial(_fetched, fetch_log_ranges))
        self._unused_since_ms = unused_since_ms
        self._recheck_after_s = recheck_after_s
        self._on_recheck = on_recheck
        self._cluster = read_cluster(session)

    @property
    def cluster_findings(self) -> list[Finding]:
        """The findings that concern all groups."""
        return check_cluster(self._cluster)

    def skipped_rules(self) -> list[str]:
        """The rules that this check skips, each with the reason."""
        reasons: list[str] = []
        if self._cluster.topics is None:
            why = f"there is no {paths.BROKER_TOPICS} here"
            reasons.append(f"owners of all partitions, and whether topics exist ({why})")
        if self._ranges is None:
            reasons.append(Advice("offsets outside of the logs' ranges (no {bootstrap_server})"))
        if self._unused_since_ms is None:
            reasons.append(Advice("unused groups (no {unused_since_ms:unused_since})"))
        if not self._recheck_after_s:
            reasons.append(Advice("whether findings are transient: no second check ({settle_s:settle} 0)"))
        return reasons

    def run(self, groups: Iterable[str]) -> Iterator[CheckReport]:
        """Yields the findings of each group. The findings of a group that is checked twice are yielded after its second
        check.

        Raises if the session fails. A node that cannot be read is reported as a finding.
        """
        waiting: list[CheckReport] = []
        for batch in batched(groups, GROUPS_AT_ONCE):
            for checked in self._check(batch):
                if self._recheck_after_s and any(finding.code.transient for finding in checked.findings):
                    waiting.append(checked)
                else:
                    yield checked
            if sum(len(checked.findings) for checked in waiting) >= MAX_WAITING_FINDINGS:
                yield from self._recheck(waiting)
                waiting = []
        if waiting:
            yield from self._recheck(waiting)

    def _check(self, groups: Sequence[str]) -> Iterator[CheckReport]:
        found = read_facts(self._session, self._cluster, self._known, groups)
        ranges = None
        if self._ranges is not None:
            ranges = self._ranges.known
            with_log = ((facts, tp) for facts in found for tp in partitions_with_log(facts, self._cluster))
            self._ranges.load(offsets=((tp, facts.offsets[tp].offset) for facts, tp in with_log))
        for facts in found:
            yield CheckReport(facts.group, check_group(facts, self._cluster, ranges, self._unused_since_ms))

    def _recheck(self, waiting: Sequence[CheckReport]) -> Iterator[CheckReport]:
        """Waits, checks the groups again, and yields the findings that both checks confirm.

        Reads the topics and the log ranges again, because a topic may have been created, deleted or recreated since
        the first check.
        """
        if self._on_recheck is not None:
            self._on_recheck(len(waiting))
        self._clock.sleep(self._recheck_after_s)
        self._session.sync()
        self._cluster = read_cluster(self._session)
        if self._ranges is not None:
            self._ranges.clear()
        for batch in batched(waiting, GROUPS_AT_ONCE):
            for first, second in zip(batch, self._check([checked.group for checked in batch]), strict=True):
                yield CheckReport(second.group, confirmed(first.findings, second.findings))


def _fetched(
    fetch: FetchLogRanges, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
    """Fetches log ranges. If the whole request fails, its error is the result for each partition."""
    try:
        return fetch(sorted(partitions))
    except OffsetMgrError as error:
        return dict.fromkeys(partitions, error)
