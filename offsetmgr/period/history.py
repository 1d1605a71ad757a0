"""`History`: the work on each period, for jobs that process a period's records as fixed ranges of offsets.

::

    work/NUMBER-JOB    ranges, attempts, and the published output; under the root, one node a period and job

Ordering contract: the ranges are here before the work on them begins (`fix`), an attempt is here before it works
(`attempt`), and its output counts only through `publish`, one write that holds only while no later attempt has begun.
So a process that was frozen and wakes while its successor runs publishes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from offsetmgr.core.errors import Conflict, ServerError, Superseded, TimedOut, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.job_records import Attempt, PublishedOutput, Work, decode_work, encode_work
from offsetmgr.period.node_codec import OffsetRange, node_bytes
from offsetmgr.period.schedule import Period
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, Delete, Operation, OperationState, SetData

_MARK: Final = node_bytes({"by": "offsetmgr"})


@dataclass(frozen=True, slots=True)
class WorkClaim:
    """The right to publish, as long as no later attempt has begun: the node's content and version."""

    work: Work
    version: int

    @property
    def attempt(self) -> int:
        return self.work.begun - 1


class History:
    """The history under a run's root, in one session. All methods raise what `ZookeeperSession` raises, `CorruptData`
    and `UnknownVersion`."""

    def __init__(self, session: ZookeeperSession, root: str) -> None:
        self._session = session
        self._directory = f"{root}/work"

    def fix(
        self, job: str, period: Period, ranges: Mapping[TopicPartition, OffsetRange], now_ms: int
    ) -> tuple[Work, bool]:
        """Fixes the ranges of a period for a job, unless they already are; returns the fixed ranges, and whether this
        call fixed them.

        Raises `Conflict` if they are fixed for a period of other times, because the run is a different one; `TimedOut`
        if ZooKeeper did not respond (repeating the call is safe).
        """
        return self.fix_work(Work(job, period, dict(ranges), now_ms))

    def fix_work(self, work: Work) -> tuple[Work, bool]:
        """Like `fix`, including the results of the scans."""
        job, period = work.job, work.period
        _check(job)
        if self._written(Create(self._path(job, period.number), encode_work(work))):
            return work, True
        found = self.read(job, period.number)
        if found is None:  # the response was lost, and the write with it
            raise TimedOut(f"period {period.number} of job {job}", "its ranges were not fixed", "asking again is safe")
        if found.period != period:
            why = f"has its ranges fixed for {found.period.start_ms} to {found.period.end_ms}"
            raise Conflict(f"period {period.number} of job {job}", why, "use another root for another schedule")
        return found, False

    def read(self, job: str, number: int) -> Work | None:
        """None if nothing has been fixed."""
        node = self._session.get(self._path(job, number))
        return None if node is None else decode_work(self._path(job, number), node.data)

    def attempt(self, job: str, number: int, member: str, epoch: int, now_ms: int) -> WorkClaim:
        """Begins an attempt, after which no earlier one can publish. Raises `Conflict` if nothing is fixed, or it is
        already published; `Superseded` if a later process of this member's name has begun."""
        work, version = self._there(job, number)
        if work.published is not None:
            raise Conflict(f"period {number} of job {job}", f"is published, by attempt {work.published.attempt}")
        if any(earlier.member == member and earlier.epoch > epoch for earlier in work.attempts):
            raise Superseded(f"period {number} of job {job}", f"a later process of {member} is at work on it")
        begun = work.begin(Attempt(member, epoch, now_ms))
        if not self._written(SetData(self._path(job, number), encode_work(begun), version)):
            found, version_now = self._there(job, number)
            if found != begun or version_now != version + 1:  # otherwise the response was lost, and not the write
                raise Conflict(
                    f"period {number} of job {job}", "another process began at the same moment", "begin again"
                )
        return WorkClaim(begun, version + 1)

    def publish(self, claim: WorkClaim, output: str, counts: Mapping[str, int], now_ms: int) -> Work:
        """Publishes this attempt's output, by one conditional write. Safe to repeat.

        Raises `TimedOut` if ZooKeeper did not respond; `Superseded` if a later attempt has begun or another was
        published, so that this output does not count.
        """
        job, number = claim.work.job, claim.work.period.number
        done = replace(claim.work, published=PublishedOutput(claim.attempt, output, now_ms, dict(counts)))
        if self._written(SetData(self._path(job, number), encode_work(done), claim.version)):
            return done
        found, _ = self._there(job, number)
        if found.attempts == claim.work.attempts:  # the response was lost, with or without the write
            if found.published is not None:
                return found
            raise TimedOut(f"period {number} of job {job}", "was not published", "asking again is safe")
        raise Superseded(f"period {number} of job {job}", f"attempt {claim.attempt} was overtaken by a later one")

    def forget(self, job: str, number: int) -> None:
        """Deletes the entry of an old period, if it exists and no other client changes it at this moment."""
        path = self._path(job, number)
        node = self._session.get(path)
        if node is not None:
            self._written(Delete(path, node.version))

    def latest(self, job: str, before: int) -> Work | None:
        """The newest work of a job on a period below number ``before``; None if there is none."""
        for number in sorted(self._numbers(job, before), reverse=True):
            work = self.read(job, number)
            if work is not None:  # otherwise it was just deleted
                return work
        return None

    def covering(self, job: str, period: Period, before: int | None = None) -> Work | None:
        """The newest work of a job (on a period below number ``before``) whose period contains all of this one's times.

        None if no work overlaps these times. Raises `Conflict` if some overlap but none contains them all, because
        their records could not be separated.
        """
        overlapping = []
        for number in sorted(self._numbers(job, before), reverse=True):
            work = self.read(job, number)
            if work is None or work.period.end_ms <= period.start_ms or period.end_ms <= work.period.start_ms:
                continue
            if work.period.start_ms <= period.start_ms and period.end_ms <= work.period.end_ms:
                return work
            overlapping.append(work)
        if overlapping:
            other = overlapping[0].period
            raise Conflict(
                f"period {period.start_ms} to {period.end_ms} of job {job}",
                f"overlaps one that was worked on, {other.start_ms} to {other.end_ms}",
                "a rerun's periods must lie within those of the run: the same length, or an even part of it",
            )
        return None

    def _numbers(self, job: str, before: int | None) -> list[int]:
        found = []
        for name in self._session.children(self._directory) or ():
            number, _, of_job = name.partition("-")
            if number.isdigit() and of_job == job and (before is None or int(number) < before):
                found.append(int(number))
        return found

    def works(self, numbers: Iterable[int] | None = None) -> dict[tuple[int, str], Work]:
        """The work on these periods (or all), by number and job."""
        wanted = None if numbers is None else set(numbers)
        keys = []
        for name in self._session.children(self._directory) or ():
            number, _, job = name.partition("-")
            if number.isdigit() and job and (wanted is None or int(number) in wanted):
                keys.append((int(number), job))
        paths = [self._path(job, number) for number, job in sorted(keys)]
        found = {}
        for key, path, node in zip(sorted(keys), paths, self._session.get_many(paths), strict=True):
            if isinstance(node, Exception):
                raise node
            if node is not None:
                found[key] = decode_work(path, node.data)
        return found

    def _path(self, job: str, number: int) -> str:
        return f"{self._directory}/{number}-{job}"

    def _there(self, job: str, number: int) -> tuple[Work, int]:
        path = self._path(job, number)
        node = self._session.get(path)
        if node is None:
            raise Conflict(f"period {number} of job {job}", "has no ranges fixed", "fix them before the work begins")
        return decode_work(path, node.data), node.version

    def _written(self, operation: Operation) -> bool:
        """Returns whether the write happened; False if another client was first, or if the response was lost (read
        again to find out)."""
        outcome = self._session.transaction([operation])
        if outcome.code == ZookeeperError.NO_NODE and isinstance(operation, Create):
            made = self._session.transaction([Create(self._directory, _MARK)])
            if made.state is OperationState.REJECTED and made.code != ZookeeperError.NODE_EXISTS:
                raise made.error or ServerError(f"ZooKeeper node {self._directory}", f"refused with code {made.code}")
            outcome = self._session.transaction([operation])
        if outcome.state is OperationState.COMMITTED:
            return True
        if outcome.state is OperationState.UNKNOWN:
            self._session.sync()
            return False
        if outcome.state is OperationState.REJECTED and outcome.code in (
            ZookeeperError.BAD_VERSION,
            ZookeeperError.NODE_EXISTS,
        ):
            return False
        raise outcome.error or TimedOut(f"ZooKeeper node {self._directory}", "was not written")


def _check(job: str) -> None:
    if not job or "/" in job:
        raise UsageError(f"job {job!r}", "cannot be part of a node's name")
