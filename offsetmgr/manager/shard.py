"""`Shard`: the offsets of the groups of one partition of the log. Pure: no I/O, no threads, no clock.

The handlers (`commit`, `delete_offsets`, `delete_group`, `expire`) validate a request and return the records to append.
Only `replay` and its bulk forms change the served state. Loads, live traffic and standbys all follow this rule (data
rule "state changes only in replay").

Ordering contract: the caller appends each result of a handler at most once, in the order of the calls. After the append
the caller calls `acknowledged`, in log order. If the records are certainly not in the log, the caller calls
`on_discarded` instead. After an append with an unknown outcome, the caller reads the log to its end, so that `replay`
has seen the records that are in the log, and then also calls `on_discarded`. To retry after a failure, the caller calls
the handler again and never appends the same result twice. A result is in flight from the time when the handler returns
it until the call of `acknowledged` or `on_discarded`. During this time, a fetch does not return its offsets, a
conditional commit to its partitions is rejected, and expiration skips its groups. If expiration did not skip these
groups, it could append a tombstone after a commit that it has not seen yet.

The semantics are those of a broker of Kafka 3.9.1 (GroupCoordinator, GroupMetadataManager; KIP-211 for expiration);
docstrings name the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeVar

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import ErrorCode, UnsupportedOperation
from offsetmgr.manager.commit_checks import check_conditions, without_invalid
from offsetmgr.manager.expiration import ExpiringTable
from offsetmgr.manager.results import (
    CommitRequest,
    CommitResponse,
    CoordinatorResult,
    RecordRun,
)
from offsetmgr.records.base import EncodedRecord, GroupValue, PartitionCommit, RecordFormat

_MAX_TIMESTAMP_MS: Final = 2**63 - 1
_PARTITION: Final = itemgetter(0)
_METADATA: Final = itemgetter(3)


R = TypeVar("R")


class Shard(ExpiringTable):
    """The offsets of one partition of the log. Only one thread may use it at a time."""

    def __init__(self, partition: int, record_format: RecordFormat, settings: ManagerSettings) -> None:
        super().__init__(record_format, settings)
        self.partition = partition
        self.position = 0
        """The next offset of the log to replay."""
        self.held_from = 0
        """The log has had a record of every value of this shard from this offset on."""
        self.gap_below = 0
        """Records below this offset were deleted before this shard could replay them, so it may have old values."""

    # --- commits -------------------------------------------------------------------------------------

    def commit(self, request: CommitRequest, now_ms: int) -> CoordinatorResult[CommitResponse]:
        """Commits at the time ``now_ms`` (ms since 1970). A partition fails if its number or offset is negative, its
        metadata is too long, or its condition does not hold; the other partitions are committed.

        Broker 3.9.1 accepts negative offsets (tested). The shard rejects them with INVALID_REQUEST, because a fetch
        would return them as "no offset is committed" (data rule "absent is not zero"). The shard rejects a commit with
        a generation to the empty group id, since that group cannot have members. For other groups, the caller checks
        the membership. A commit with a generation proves that the group has members; an activity record notes this
        periodically (see `expiration`).
        """
        group = request.group
        if not group and request.generation >= 0:
            return _rejected(ErrorCode.UNKNOWN_MEMBER_ID if self.has_group(group) else ErrorCode.ILLEGAL_GENERATION)
        request, invalid = without_invalid(request)
        try:
            result = self._conditional(request, now_ms) if request.expected else self._unconditional(request, now_ms)
        except UnsupportedOperation:  # for example a name that is too long for the record format
            return _rejected(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        if invalid:
            result = result._replace(response=CommitResponse(errors={**result.response.errors, **invalid}))
        return self._put_in_flight(result)

    def _unconditional(self, request: CommitRequest, now_ms: int) -> CoordinatorResult[CommitResponse]:
        group = request.group
        expire = None
        if request.retention_ms is not None:
            expire = min(max(now_ms + request.retention_ms, 0), _MAX_TIMESTAMP_MS)
        errors: dict[tuple[str, int], int] = {}
        records: list[EncodedRecord] = []
        runs: list[RecordRun] = []
        for topic, commits in request.topics:
            fits = self._all_metadata_fits(commits)
            accepted = commits if fits else self._with_valid_metadata(topic, commits, errors)
            if accepted:
                records += self.record_format.encode_commit(group, topic, accepted, now_ms, expire)
                runs.append(RecordRun(group, topic, [*map(_PARTITION, accepted)]))
        has_members = records and request.generation >= 0
        if has_members and self.activity_is_old(group, now_ms):
            records.append(self.record_format.encode_group(group, GroupValue(now_ms)))
        return CoordinatorResult(CommitResponse(ErrorCode.NONE, errors), records, (group,), runs)

    def _conditional(self, request: CommitRequest, now_ms: int) -> CoordinatorResult[CommitResponse]:
        group, in_flight_keys = request.group, self._in_flight.keys(request.group)
        topics, to_delete, errors = check_conditions(
            request,
            lambda topic, partition: self.offset(group, topic, partition),
            lambda topic, partition: bool(in_flight_keys) and self.key(group, topic, partition) in in_flight_keys,
        )
        unconditional = self._unconditional(request._replace(topics=topics), now_ms)
        known = self._known_partitions(group)
        emptied = not unconditional.records and to_delete >= known
        with_record = emptied and self.has_group_record(group)
        tombstones = self.tombstones(group, to_delete & known, with_record=with_record)
        response = CommitResponse(ErrorCode.NONE, {**errors, **unconditional.response.errors})
        return unconditional._replace(response=response, records=[*unconditional.records, *tombstones])

    def _all_metadata_fits(self, partitions: Sequence[PartitionCommit]) -> bool:
        """Returns whether all metadata is certainly short enough. The check is quick: most commits have no metadata,
        and other metadata fits if its length is at most half the limit, because a character has at most two UTF-16 code
        units."""
        if not any(map(_METADATA, partitions)):
            return True
        return max(map(len, map(_METADATA, partitions))) <= self._settings.max_metadata_length // 2

    def _with_valid_metadata(
        self, topic: str, partitions: Sequence[PartitionCommit], errors: dict[tuple[str, int], int]
    ) -> list[PartitionCommit]:
        accepted = []
        for commit in partitions:
            if len(_METADATA(commit).encode("utf-16-le", "surrogatepass")) // 2 <= self._settings.max_metadata_length:
                accepted.append(commit)
            else:
                errors[topic, _PARTITION(commit)] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        return accepted

    # --- deletions -----------------------------------------------------------------------------------

    def delete_offsets(
        self, group: str, topics: Sequence[tuple[str, Sequence[int]]]
    ) -> CoordinatorResult[CommitResponse]:
        """Deletes single offsets; a missing offset is not an error. Commits in flight are deleted too, because their
        records precede the tombstones."""
        if not group:
            return CoordinatorResult(CommitResponse(ErrorCode.INVALID_GROUP_ID), (), ())
        known = self._known_partitions(group)
        if not known:
            return CoordinatorResult(CommitResponse(ErrorCode.GROUP_ID_NOT_FOUND), (), ())
        to_delete = {(topic, partition) for topic, partitions in topics for partition in partitions} & known
        return self._deletion(CommitResponse(), group, to_delete, last=to_delete == known)

    def delete_group(self, group: str) -> CoordinatorResult[int]:
        """Deletes all offsets of a group and its activity record; the response is an error code. Commits in flight are
        deleted too, because their records precede the tombstones."""
        known = self._known_partitions(group)
        if not known:
            return CoordinatorResult(ErrorCode.GROUP_ID_NOT_FOUND, (), ())
        return self._deletion(ErrorCode.NONE, group, known, last=True)

    def _deletion(
        self, response: R, group: str, to_delete: Iterable[tuple[str, int]], *, last: bool
    ) -> CoordinatorResult[R]:
        recorded = self.has_group_record(group) or self._in_flight.has_group(group)
        records = self.tombstones(group, to_delete, with_record=last and recorded)
        return self._put_in_flight(CoordinatorResult(response, records, (group,)))

    def _known_partitions(self, group: str) -> set[tuple[str, int]]:
        """Returns the partitions for which the group has committed offsets, or commits in flight."""
        committed = {(topic, partition) for topic, values in self.topics(group).items() for partition in values}
        return committed | self._in_flight.commits(group)

    # --- replay --------------------------------------------------------------------------------------

    def acknowledged(self, result: CoordinatorResult[Any], first_offset: int) -> None:
        """Replays the records of a result. ``first_offset`` is the offset at which the first of these records was
        appended. The result is no longer in flight.

        The caller may have read some of these records from the log and replayed them before. The method skips these
        records.
        """
        self._in_flight.end(result)
        if first_offset < self.position:
            for offset, (key, value) in enumerate(result.records, first_offset):
                self.replay(offset, key, value)
            return
        records, start = result.records, 0
        for run in result.runs:
            stop = start + len(run.partitions)
            self.apply_run(run, [value for _, value in records[start:stop]])
            start = stop
        if start < len(records):
            self.apply_newest(dict(records[start:]))
        self.position = first_offset + len(records)

    def on_discarded(self, result: CoordinatorResult[Any]) -> None:
        """Removes a result from the results in flight, because its records were not appended, or because `replay` has
        already seen them."""
        self._in_flight.end(result)

    def replay(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Applies one record of the log. It ignores a record below `position`, because such a record was applied
        already.

        Raises `FormatMismatch` and leaves the position unchanged.
        """
        if offset < self.position:
            return
        self.apply(key, value)
        self.position = offset + 1

    def replay_newest(self, newest: Mapping[bytes, bytes | None], position: int) -> None:
        """Applies the newest value of each key between the current position and ``position``.

        A large load may be applied in parts. For all parts but the last part, ``position`` is the current position, and
        no fetch may happen before the last part is applied. A call with a ``position`` below the current position is
        ignored, because its records were already replayed. Raises `FormatMismatch` and leaves the position unchanged.
        """
        if position < self.position:
            return
        self.apply_newest(newest)
        self.position = position


def _rejected(error: int) -> CoordinatorResult[CommitResponse]:
    return CoordinatorResult(CommitResponse(error), (), ())
