"""`History`: the work on each period, for jobs that process a period's records as fixed ranges of offsets.

::

    work/NUMBER-JOB    ranges, attempts, and what was published; under the root, one node a period and job

Ordering contract: the ranges are here before the work on them begins (`fix`), an attempt is here before it works
(`attempt`), and its output counts only through `publish`, one write that holds only while no later attempt has begun.
So a process that was frozen and wakes beside its successor publishes nothing, whatever it takes itself for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from offsetmgr.errors import Conflict, ServerError, TakenOver, TimedOut, UsageError
from offsetmgr.model import TopicPartition
from offsetmgr.period.nodeform import NodeForm, OffsetRange, node_bytes, ranges_of
from offsetmgr.period.schedule import Period
from offsetmgr.zookeeper.jute import Code
from offsetmgr.zookeeper.session import ZookeeperSession
from offsetmgr.zookeeper.transactions import Create, Delete, Operation, SetData, State

_MARK: Final = node_bytes({"by": "offsetmgr"})


@dataclass(frozen=True, slots=True)
class Attempt:
    """One process that worked on the period; the first has number 0."""

    member: str
    epoch: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class Published:
    """The attempt whose output counts."""

    attempt: int
    output: str
    """Where it is, in the job's words."""
    published_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records by kind: taken, late, set aside; the job's words."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one job does with one period."""

    job: str
    period: Period
    ranges: Mapping[TopicPartition, OffsetRange]
    fixed_ms: int
    attempts: tuple[Attempt, ...] = ()
    published: Published | None = None


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to publish, as long as nobody has begun a later attempt: the node's content and version."""

    work: Work
    version: int

    @property
    def attempt(self) -> int:
        return len(self.work.attempts) - 1


class History:
    """Under a run's root, in one session. All methods raise what `ZookeeperSession` raises, `Unreadable` and
    `UnknownVersion`."""

    def __init__(self, session: ZookeeperSession, root: str) -> None:
        self._session = session
        self._folder = f"{root}/work"

    def fix(
        self, job: str, period: Period, ranges: Mapping[TopicPartition, OffsetRange], now_ms: int
    ) -> tuple[Work, bool]:
        """Fixes the ranges of a period for a job, unless they are: what is fixed, and whether by this call.

        Raises `Conflict` where they are fixed for a period of other times: the run is another one.
        """
        _check(job)
        work = Work(job, period, dict(ranges), now_ms)
        if self._written(Create(self._path(job, period.number), encode_work(work))):
            return work, True
        found, _ = self._there(job, period.number)
        if found.period != period:
            why = f"has its ranges fixed for {found.period.start_ms} to {found.period.end_ms}"
            raise Conflict(f"period {period.number} of job {job}", why, "use another root for another schedule")
        return found, False

    def read(self, job: str, number: int) -> Work | None:
        """None where nothing has been fixed."""
        node = self._session.get(self._path(job, number))
        return None if node is None else decode_work(self._path(job, number), node.data)

    def attempt(self, job: str, number: int, member: str, epoch: int, now_ms: int) -> Ticket:
        """Begins an attempt: from now on no earlier one can publish. Raises `Conflict` where nothing is fixed, or
        it is published already; `TakenOver` where a later process of this member's name has begun."""
        work, version = self._there(job, number)
        if work.published is not None:
            raise Conflict(f"period {number} of job {job}", f"is published, by attempt {work.published.attempt}")
        if any(earlier.member == member and earlier.epoch > epoch for earlier in work.attempts):
            raise TakenOver(f"period {number} of job {job}", f"a later process of {member} is at work on it")
        begun = replace(work, attempts=(*work.attempts, Attempt(member, epoch, now_ms)))
        if not self._written(SetData(self._path(job, number), encode_work(begun), version)):
            raise Conflict(f"period {number} of job {job}", "somebody else began at the same moment", "begin again")
        return Ticket(begun, version + 1)

    def publish(self, ticket: Ticket, output: str, counts: Mapping[str, int], now_ms: int) -> Work:
        """Makes this attempt's output the one that counts, by one conditional write. Safe to repeat.

        Raises `TimedOut` where ZooKeeper did not answer; `TakenOver` where a later attempt has begun or another was
        published: this output counts for nothing.
        """
        job, number = ticket.work.job, ticket.work.period.number
        done = replace(ticket.work, published=Published(ticket.attempt, output, now_ms, dict(counts)))
        if self._written(SetData(self._path(job, number), encode_work(done), ticket.version)):
            return done
        found, _ = self._there(job, number)
        if found.attempts == ticket.work.attempts:  # the answer was lost: the write itself was, or was not
            if found.published is not None:
                return found
            raise TimedOut(f"period {number} of job {job}", "was not published", "asking again is safe")
        raise TakenOver(f"period {number} of job {job}", f"attempt {ticket.attempt} was overtaken by a later one")

    def forget(self, job: str, number: int) -> None:
        """Deletes the entry of an old period, if it is there and nobody changes it at this moment."""
        path = self._path(job, number)
        node = self._session.get(path)
        if node is not None:
            self._written(Delete(path, node.version))

    def works(self, numbers: Iterable[int] | None = None) -> dict[tuple[int, str], Work]:
        """The work on these periods (or all), by number and job."""
        wanted = None if numbers is None else set(numbers)
        keys = []
        for name in self._session.children(self._folder) or ():
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
        return f"{self._folder}/{number}-{job}"

    def _there(self, job: str, number: int) -> tuple[Work, int]:
        path = self._path(job, number)
        node = self._session.get(path)
        if node is None:
            raise Conflict(f"period {number} of job {job}", "has no ranges fixed", "fix them before the work begins")
        return decode_work(path, node.data), node.version

    def _written(self, operation: Operation) -> bool:
        """Whether it was; False: somebody was there before, or (with the answer lost) read whether it was."""
        outcome = self._session.transaction([operation])
        if outcome.code == Code.NO_NODE and isinstance(operation, Create):
            made = self._session.transaction([Create(self._folder, _MARK)])
            if made.state is State.REFUSED and made.code != Code.NODE_EXISTS:
                raise made.error or ServerError(f"ZooKeeper node {self._folder}", f"refused with code {made.code}")
            outcome = self._session.transaction([operation])
        if outcome.state is State.COMMITTED:
            return True
        if outcome.state is State.UNKNOWN:
            self._session.sync()
            return False
        if outcome.state is State.REFUSED and outcome.code in (Code.BAD_VERSION, Code.NODE_EXISTS):
            return False
        raise outcome.error or TimedOut(f"ZooKeeper node {self._folder}", "was not written")


def _check(job: str) -> None:
    if not job or "/" in job:
        raise UsageError(f"job {job!r}", "cannot be part of a node's name")


def encode_work(work: Work) -> bytes:
    published = work.published
    return node_bytes(
        {
            "job": work.job,
            "period": work.period.number,
            "start_ms": work.period.start_ms,
            "end_ms": work.period.end_ms,
            "ranges": ranges_of(work.ranges),
            "fixed_ms": work.fixed_ms,
            "attempts": [{"member": a.member, "epoch": a.epoch, "started_ms": a.started_ms} for a in work.attempts],
            "published": []
            if published is None
            else [
                {
                    "attempt": published.attempt,
                    "output": published.output,
                    "published_ms": published.published_ms,
                    "counts": dict(published.counts),
                }
            ],
        }
    )


def decode_work(path: str, data: bytes) -> Work:
    """Raises `Unreadable`, `UnknownVersion`, which name ``path``."""
    node = NodeForm(path, data)
    period = Period(node.number("period"), node.number("start_ms"), node.number("end_ms"))
    attempts = tuple(
        Attempt(a.text("member"), a.number("epoch"), a.number("started_ms")) for a in node.items("attempts")
    )
    published = [
        Published(p.number("attempt"), p.text("output"), p.number("published_ms"), p.numbers("counts"))
        for p in node.items("published")
    ]
    if len(published) > 1:
        raise node.broken("says twice what was published")
    return Work(
        node.text("job"),
        period,
        node.ranges("ranges"),
        node.number("fixed_ms"),
        attempts,
        published[0] if published else None,
    )
