"""`History`: records the work of jobs in ZooKeeper. For each job and period it stores the offset ranges that the job
processes for the period, the job's attempts, and the published output. Stored ranges never change.

The node ``work/NUMBER-JOB`` below the root has the ranges, the attempts and the published output of one job for one
period.

Ordering contract: `fix` stores the ranges before the work on them begins; `attempt` stores an attempt before the
attempt processes records; the output of an attempt is valid only after `publish`, one write that succeeds only if no
later attempt has begun. Therefore, if another process begins an attempt while this process is frozen, this process
cannot publish its output afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from offsetmgr.core.errors import Conflict, Superseded, TimedOut, UsageError, value_of
from offsetmgr.period.job_records import Attempt, PublishedOutput, Work, decode_work, encode_work
from offsetmgr.period.schedule import Period
from offsetmgr.period.state_nodes import DIRECTORY_DATA
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession, committed, ensure_nodes
from offsetmgr.zookeeper.client.transactions import Create, Delete, SetData, TransactionOperation

_REPEAT: Final = "repeating the call is safe"


@dataclass(frozen=True, slots=True)
class WorkClaim:
    """The content and version of a `Work` node, as written at the beginning of an attempt. `History.publish` needs both
    values to publish the output of this attempt. It fails if a later attempt has begun."""

    work: Work
    version: int

    @property
    def attempt(self) -> int:
        return self.work.attempt_count - 1


class History:
    """The `Work` nodes under a run's root, accessed through one session. All methods raise the errors of
    `ZookeeperSession`, `CorruptData` and `UnknownVersion`."""

    def __init__(self, session: ZookeeperSession, root: str) -> None:
        self._session = session
        self._directory = f"{root}/work"

    def fix(self, work: Work) -> tuple[Work, bool]:
        """Stores the final ranges of a period for a job, unless ranges are already stored. Returns the stored work, and
        whether this call stored the work.

        Raises `Conflict` if the stored period has the same number as the period of ``work`` but other times. This means
        that the stored period belongs to another schedule. Raises `TimedOut` if ZooKeeper did not respond; repeating
        the call is safe.
        """
        job, period = work.job, work.period
        if not job or "/" in job:
            raise UsageError(f"job {job!r}", "cannot be part of a node's name")
        if self._try_write(Create(self._path(job, period.number), encode_work(work))):
            return work, True
        found = self.read(job, period.number)
        if found is None:  # the response was lost, and the write was not executed
            raise TimedOut(_what(job, period.number), "its ranges were not stored", _REPEAT)
        if found.period != period:
            why = f"has stored ranges for the time from {found.period.start_ms} to {found.period.end_ms}"
            raise Conflict(_what(job, period.number), why, "use another root for another schedule")
        return found, False

    def read(self, job: str, number: int) -> Work | None:
        """Returns the stored work; None if there is none."""
        node = self._session.get(self._path(job, number))
        return None if node is None else decode_work(self._path(job, number), node.data)

    def attempt(self, job: str, number: int, member: str, epoch: int, now_ms: int) -> WorkClaim:
        """Begins an attempt. After this call, earlier attempts cannot publish their output. Raises `Conflict` if no
        ranges are stored, if an output is already published, or if another process began an attempt at the same time.
        Raises `Superseded` if a later process with this member's name has begun an attempt."""
        work, version = self._read_existing(job, number)
        if work.published is not None:
            raise Conflict(_what(job, number), f"was already published by attempt {work.published.attempt}")
        if any(earlier.member == member and earlier.epoch > epoch for earlier in work.attempts):
            raise Superseded(_what(job, number), f"a later process of {member} works on it")
        started = work.with_attempt(Attempt(member, epoch, now_ms))
        if not self._try_write(SetData(self._path(job, number), encode_work(started), version)):
            found, version_now = self._read_existing(job, number)
            if version_now == version:
                raise TimedOut(_what(job, number), "its attempt was not stored", _REPEAT)
            if found != started or version_now != version + 1:  # otherwise only the response was lost
                why = "another process began an attempt at the same time"
                raise Conflict(_what(job, number), why, "begin again")
        return WorkClaim(started, version + 1)

    def publish(self, claim: WorkClaim, output: str, counts: Mapping[str, int], now_ms: int) -> Work:
        """Publishes this attempt's output by one conditional write. Repeating the call is safe.

        Raises `TimedOut` if ZooKeeper did not respond. Raises `Superseded` if a later attempt has begun; the output of
        this attempt must not be used.
        """
        job, number = claim.work.job, claim.work.period.number
        done = replace(claim.work, published=PublishedOutput(claim.attempt, output, now_ms, dict(counts)))
        if self._try_write(SetData(self._path(job, number), encode_work(done), claim.version)):
            return done
        found, _ = self._read_existing(job, number)
        if found.attempts == claim.work.attempts:  # the response was lost
            if found.published is not None:
                return found
            raise TimedOut(_what(job, number), "was not published", _REPEAT)
        raise Superseded(_what(job, number), f"a later attempt than {claim.attempt} has begun")

    def delete(self, job: str, number: int) -> None:
        """Deletes a job's work on a period. Does nothing if the node does not exist or another client changes it at the
        same time."""
        path = self._path(job, number)
        node = self._session.get(path)
        if node is not None:
            self._try_write(Delete(path, node.version))

    def latest(self, job: str, before: int) -> Work | None:
        """Returns the newest work of a job on a period with a number below ``before``; None if there is none."""
        for number in self._numbers(job, before):
            work = self.read(job, number)
            if work is not None:  # otherwise it was just deleted
                return work
        return None

    def covering(self, job: str, period: Period, before: int | None = None) -> Work | None:
        """Returns a job's work on the newest period that contains the whole time of ``period``. If ``before`` is given,
        only periods with a lower number are considered.

        Returns None if no period of the job overlaps ``period``. Raises `Conflict` if periods of the job overlap
        ``period`` but none of them contains it completely, because stored offset ranges cannot be divided at a point in
        time.
        """
        overlapping = []
        for number in self._numbers(job, before):
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
                f"overlaps the processed period from {other.start_ms} to {other.end_ms}",
                "each period of a rerun must lie within one period of the run: use its length, or divide it evenly",
            )
        return None

    def all_work(self, numbers: Iterable[int] | None = None) -> dict[tuple[int, str], Work]:
        """Returns the work on the periods with these numbers, or on all periods if ``numbers`` is `None`, keyed by
        number and job."""
        selected = None if numbers is None else set(numbers)
        keys = sorted(key for key in self._keys() if selected is None or key[0] in selected)
        paths = [self._path(job, number) for number, job in keys]
        nodes = zip(keys, paths, map(value_of, self._session.get_many(paths)), strict=True)
        return {key: decode_work(path, node.data) for key, path, node in nodes if node is not None}

    def _keys(self) -> Iterator[tuple[int, str]]:
        """Yields the number and the job of each stored work."""
        for name in self._session.children(self._directory) or ():
            number, _, job = name.partition("-")
            if number.isdigit() and job:
                yield int(number), job

    def _numbers(self, job: str, before: int | None) -> list[int]:
        """Returns the numbers of a job's periods below ``before``, the newest first."""
        found = (number for number, of_job in self._keys() if of_job == job)
        return sorted((number for number in found if before is None or number < before), reverse=True)

    def _path(self, job: str, number: int) -> str:
        return f"{self._directory}/{number}-{job}"

    def _read_existing(self, job: str, number: int) -> tuple[Work, int]:
        path = self._path(job, number)
        node = self._session.get(path)
        if node is None:
            raise Conflict(_what(job, number), "has no stored ranges", "call fix before the work begins")
        return decode_work(path, node.data), node.version

    def _try_write(self, operation: TransactionOperation) -> bool:
        """Returns whether the write succeeded. Returns False in two cases: another client wrote first, or the response
        was lost. To find out whether the write took effect, a caller must read the node."""
        outcome = self._session.transaction([operation])
        if outcome.code == ZookeeperError.NO_NODE and isinstance(operation, Create):
            ensure_nodes(self._session, [self._directory], DIRECTORY_DATA)
            outcome = self._session.transaction([operation])
        return committed(self._session, outcome)


def _what(job: str, number: int) -> str:
    return f"period {number} of job {job}"
