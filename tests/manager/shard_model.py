"""A hypothesis state machine: the shards of two processes on one partition of a log, compared with `Oracle`, through
commits, deletions, expiration, crashes, failed appends, lost ownership and compaction.

Subclasses provide a `ScenarioLog` and a record format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, NamedTuple, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scenario_log import TIMEOUT_S, AppendOutcome, OutcomeWriter, ScenarioLog

from offsetmgr.config.manager_settings import HOUR_MS, ManagerSettings
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown
from offsetmgr.manager.results import CommitRequest, CommitResponse, CoordinatorResult, FetchRequest
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord, GroupKey, GroupValue, OffsetKey, OffsetValue, RecordFormat

LIMITS = ManagerSettings(max_metadata_length=4, retention_ms=24 * HOUR_MS, max_activity_age_ms=6 * HOUR_MS)

State: TypeAlias = dict[OffsetKey | GroupKey, OffsetValue | GroupValue]
Change: TypeAlias = dict[OffsetKey | GroupKey, OffsetValue | GroupValue | None]


def changed(state: State, change: Change) -> State:
    merged = {**state, **change}
    return {key: value for key, value in merged.items() if value is not None}


def offsets_of(state: State, group: str) -> dict[OffsetKey, OffsetValue]:
    return {
        key: value
        for key, value in state.items()
        if isinstance(key, OffsetKey) and isinstance(value, OffsetValue) and key.group == group
    }


def activity(state: State, group: str) -> int | None:
    value = state.get(GroupKey(group))
    return value.last_active if isinstance(value, GroupValue) else None


class Oracle:
    """The expected responses and records, computed with plain dicts, independently of the shard's code.

    ``epochs``: whether an offset with an expiration time keeps its leader epoch, which Kafka's format cannot
    store."""

    def __init__(self, *, epochs: bool) -> None:
        self._epochs = epochs

    def commit(
        self, state: State, pending: Sequence[Change], request: CommitRequest, now: int
    ) -> tuple[CommitResponse, Change]:
        group = request.group
        if not group and request.generation >= 0:
            return CommitResponse(25 if offsets_of(state, group) else 22), {}
        expire = None if request.retention_ms is None else now + request.retention_ms
        errors: dict[tuple[str, int], int] = {}
        change: Change = {}
        deleted: Change = {}
        for topic, partitions in request.topics:
            for partition, offset, epoch, metadata in partitions:
                key = OffsetKey(group, topic, partition)
                expected = request.expected.get((topic, partition))
                if offset < (0 if expected is None else -1):
                    errors[topic, partition] = 42
                    continue
                if expected is not None:
                    stored = offsets_of(state, group).get(key)
                    if any(key in other for other in pending) or (stored.offset if stored else -1) != expected:
                        errors[topic, partition] = 55
                        continue
                    if offset == -1:
                        if stored:
                            deleted[key] = None
                        continue
                if len(metadata) > LIMITS.max_metadata_length:
                    errors[topic, partition] = 12
                    continue
                stored_epoch = None if epoch == -1 or (expire is not None and not self._epochs) else epoch
                change[key] = OffsetValue(offset, stored_epoch, metadata, now, expire)
        last = activity(state, group)
        if change and request.generation >= 0 and (last is None or now - last >= LIMITS.max_activity_age_ms):
            change[GroupKey(group)] = GroupValue(now)
        if deleted and not change and set(deleted) == known(state, pending, group) and last is not None:
            deleted[GroupKey(group)] = None
        return CommitResponse(0, errors), {**change, **deleted}

    def delete(
        self, state: State, pending: Sequence[Change], group: str, partitions: set[tuple[str, int]] | None
    ) -> tuple[int, Change]:
        """Deletes these partitions, or the whole group if ``partitions`` is None."""
        if not group and partitions is not None:
            return 24, {}
        existing = known(state, pending, group)
        if not existing:
            return 69, {}
        to_delete = (
            existing if partitions is None else {key for key in existing if (key.topic, key.partition) in partitions}
        )
        change: Change = dict.fromkeys(to_delete)
        pending_for_group = any(concerns(other, group) for other in pending)
        if to_delete == existing and (pending_for_group or activity(state, group) is not None):
            change[GroupKey(group)] = None
        return 0, change

    def expire(self, state: State, pending: Sequence[Change], now: int, members: Mapping[str, bool | None]) -> Change:
        change: Change = {}
        for group in {key.group for key in state}:
            if not any(concerns(other, group) for other in pending):
                change.update(self._expire_group(state, group, now, members.get(group, False)))
        return change

    def _expire_group(self, state: State, group: str, now: int, has_members: bool | None) -> Change:
        last = activity(state, group)
        stored = offsets_of(state, group)
        due = {key for key, value in stored.items() if self._expires(value, last) <= now}
        stale = now - (last or 0) >= LIMITS.max_activity_age_ms
        if has_members:
            return {GroupKey(group): GroupValue(now)} if stale and (due or last is not None) else {}
        if has_members is None:
            return {}
        change: Change = dict.fromkeys(due)
        if stored and len(due) == len(stored) and last is not None:
            change[GroupKey(group)] = None
        if not stored and last is not None and last + LIMITS.max_activity_age_ms + LIMITS.retention_ms <= now:
            change[GroupKey(group)] = None
        return change

    def _expires(self, value: OffsetValue, last: int | None) -> int:
        if value.expire_timestamp is not None:
            return value.expire_timestamp
        since = (
            value.commit_timestamp if last is None else max(value.commit_timestamp, last + LIMITS.max_activity_age_ms)
        )
        return since + LIMITS.retention_ms


def concerns(change: Change, group: str) -> bool:
    return any(key.group == group for key in change)


def known(state: State, pending: Sequence[Change], group: str) -> set[OffsetKey]:
    """The offsets that exist now or after all pending appends."""
    coming = {
        key
        for change in pending
        for key, value in change.items()
        if isinstance(key, OffsetKey) and key.group == group and value is not None
    }
    return set(offsets_of(state, group)) | coming


class Role(Enum):
    FOLLOWING = "following"
    SERVING = "serving"
    """It has claimed the partition. Another process may have claimed it since."""
    RECOVERING = "recovering"
    """The outcome of its last append is unknown."""


class Claimant:
    """A process that follows a partition, claims it, serves it and loses it, in one thread. It does the runtime's part
    of the shard's ordering contract in the shortest form."""

    def __init__(self, scenario_log: ScenarioLog, record_format: RecordFormat, limits: ManagerSettings) -> None:
        self.scenario_log = scenario_log
        self.shard = Shard(scenario_log.partition, record_format, limits)
        self.role = Role.FOLLOWING
        self.pending: list[CoordinatorResult[Any]] = []
        """Prepared results that wait for their append, in this order."""
        self.in_doubt: list[CoordinatorResult[Any]] = []
        self._writer: OutcomeWriter | None = None

    def claim(self) -> None:
        """Claims the shard group, also a second time, and reads the log to its end."""
        self._close()
        self._writer = self.scenario_log.writer()
        self._writer.claim(TIMEOUT_S)
        self._read_to_end()
        for prepared in self.in_doubt:
            self.shard.on_discarded(prepared)
        self.in_doubt = []
        self.role = Role.SERVING

    def _read_to_end(self) -> None:
        partition = self.scenario_log.partition
        end = self.scenario_log.log.end_offsets([partition], TIMEOUT_S)[partition]
        start = max(self.shard.position, self.scenario_log.log.start_offsets([partition], TIMEOUT_S)[partition])
        if start >= end:
            return
        newest: dict[bytes, bytes | None] = {}
        reader = self.scenario_log.log.reader()
        reached = reader.load({partition: start}, {partition: end}, {partition: newest})
        reader.close()
        self.shard.replay_newest(newest, reached[partition])

    def follow(self, limit: int | None = None) -> bool:
        """Replays at most ``limit`` records, one by one. Returns whether it has reached the end of the log."""
        partition = self.scenario_log.partition
        end = max(self.scenario_log.written_to, self.scenario_log.log.end_offsets([partition], TIMEOUT_S)[partition])
        reader = self.scenario_log.log.reader()
        reader.follow({partition: self.shard.position})
        taken = 0
        while reader.position(partition) < end and (limit is None or taken < limit):
            records = reader.poll(1000 if limit is None else limit - taken, self.scenario_log.wait_s)
            for record in records:
                self.shard.replay(record.offset, record.key, record.value)
            taken += len(records)
        at_end = reader.position(partition) >= end
        reader.close()
        return at_end

    def release(self) -> None:
        """Discards unfinished writes. From now on the process only follows the log."""
        self._close()
        for prepared in [*self.in_doubt, *self.pending]:
            self.shard.on_discarded(prepared)
        self.pending, self.in_doubt = [], []
        self.role = Role.FOLLOWING

    def enqueue(self, prepared: CoordinatorResult[Any]) -> None:
        if prepared.records:
            self.pending.append(prepared)

    def append(self, count: int) -> None:
        """Appends the first ``count`` pending results in one batch, and reports the outcome to the shard."""
        assert self._writer is not None
        batch, self.pending = self.pending[:count], self.pending[count:]
        records: list[EncodedRecord] = [record for prepared in batch for record in prepared.records]
        try:
            last = self._writer.append({self.scenario_log.partition: records}, TIMEOUT_S)[self.scenario_log.partition]
        except AppendRejected:
            for prepared in batch:
                self.shard.on_discarded(prepared)
        except OutcomeUnknown:
            self.in_doubt += batch
            self._close()
            self.role = Role.RECOVERING
        except Fenced:
            self.pending = batch + self.pending
            self.release()
        else:
            first = last - len(records) + 1
            for prepared in batch:
                self.shard.acknowledged(prepared, first)
                first += len(prepared.records)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


GROUPS = ("", "grüppe")
PARTITIONS = [("t", 0), ("t", 1), ("t", 300), ("u", 0)]
PARTITION = st.sampled_from(PARTITIONS)
GROUP = st.sampled_from(GROUPS)
OFFSET = st.one_of(st.integers(-2, 9), st.integers(0, 2**62))
COMMIT = st.tuples(OFFSET, st.sampled_from([-1, 0, 7]), st.sampled_from(["", "m", "zu lang"]))
AT_ONCE = st.booleans()
"""Whether a request is appended before the next one; otherwise it stays in flight until `ShardModel.append`."""
ZOMBIE = st.sampled_from([False, False, True])
"""Whether the request goes to the former owner, if that has not noticed yet that it is fenced."""
REQUEST: dict[str, Any] = {"zombie": ZOMBIE, "at_once": AT_ONCE, "group": GROUP}
HOURS = st.sampled_from([0, 1, 6, 24, 30])
"""Hours that pass before a request."""


class PreparedWrite(NamedTuple):
    """A prepared result, and the change that the oracle expects."""

    prepared: CoordinatorResult[Any]
    change: Change


class ModelProcess:
    """A process and its expected state. ``view`` is None while the process has not read the log to its end."""

    def __init__(self, claimant: Claimant) -> None:
        self.claimant = claimant
        self.view: State | None = {}
        self.waiting: list[PreparedWrite] = []
        self.in_doubt: list[PreparedWrite] = []

    def in_flight(self) -> list[Change]:
        return [one.change for one in self.in_doubt + self.waiting]


class ShardModel(RuleBasedStateMachine):
    record_format: ClassVar[RecordFormat]

    def new_log(self) -> ScenarioLog:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.scenario_log = self.new_log()
        self.oracle = Oracle(epochs=self.record_format.name != "kafka")
        self.now = 1_800_000_000_000
        self.durable: State = {}
        self.open: Change | None = None
        """The change of an open transaction, which the next claim completes."""
        self.owner, self.other = self.new_process(), self.new_process()
        self.claim(self.owner)

    def new_process(self) -> ModelProcess:
        return ModelProcess(Claimant(self.scenario_log, self.record_format, LIMITS))

    def claim(self, process: ModelProcess) -> None:
        process.claimant.claim()
        if self.open is not None:
            self.durable = changed(self.durable, self.open)
            self.open = None
        process.view = dict(self.durable)
        process.in_doubt = []

    # --- requests ----------------------------------------------------------------------------------

    def requested_process(self, *, zombie: bool) -> ModelProcess | None:
        """The process that gets the request: the owner, or a former owner that has not noticed the loss."""
        if not zombie:
            return self.owner
        return self.other if self.other.claimant.role is Role.SERVING else None

    def enqueue_prepared(
        self, process: ModelProcess, prepared: CoordinatorResult[Any], change: Change, *, at_once: bool
    ) -> None:
        """Checks that the prepared records equal the expected change, and enqueues them."""
        assert self.decoded(prepared) == change
        if change:
            process.waiting.append(PreparedWrite(prepared, change))
            process.claimant.enqueue(prepared)
        else:
            assert not prepared.records
        if at_once and process is self.owner and process.waiting and process.claimant.role is Role.SERVING:
            self.append_with(len(process.waiting), AppendOutcome.WRITTEN)

    def decoded(self, prepared: CoordinatorResult[Any]) -> Change:
        change: Change = {}
        for raw_key, raw in prepared.records:
            key = self.record_format.decode_key(raw_key)
            if isinstance(key, OffsetKey):
                change[key] = None if raw is None else self.record_format.decode_value(raw)
            else:
                assert isinstance(key, GroupKey)
                change[key] = None if raw is None else self.record_format.decode_group(raw)
        return change

    @rule(
        **REQUEST,
        commits=st.dictionaries(PARTITION, COMMIT, max_size=4),
        generation=st.sampled_from([-1, -1, 3]),
        retention=st.sampled_from([None, None, None, 0, 10 * HOUR_MS, 100 * HOUR_MS]),
    )
    def commit(
        self, zombie: bool, at_once: bool, group: str, commits: Mapping[tuple[str, int], tuple[int, int, str]],
        generation: int, retention: int | None,
    ) -> None:  # fmt: skip
        topics = [(topic, [(partition, *commit)]) for (topic, partition), commit in commits.items()]
        self.request_commit(zombie, at_once, CommitRequest(group, topics, generation, retention_ms=retention))

    @rule(**REQUEST, partition=PARTITION, offset=st.just(-1) | OFFSET, guessed=OFFSET, use_current=st.booleans())
    def commit_if(
        self, zombie: bool, at_once: bool, group: str, partition: tuple[str, int], offset: int, guessed: int,
        use_current: bool,
    ) -> None:  # fmt: skip
        process = self.requested_process(zombie=zombie)
        if process is None or process.view is None:
            return
        stored = offsets_of(process.view, group).get(OffsetKey(group, *partition))
        expected = guessed if not use_current else stored.offset if stored else -1
        topics = [(partition[0], [(partition[1], offset, -1, "")])]
        self.request_commit(zombie, at_once, CommitRequest(group, topics, expected={partition: expected}))

    def request_commit(self, zombie: bool, at_once: bool, request: CommitRequest) -> None:
        process = self.requested_process(zombie=zombie)
        if process is None or process.view is None:
            return
        response, change = self.oracle.commit(process.view, process.in_flight(), request, self.now)
        prepared = process.claimant.shard.commit(request, self.now)
        assert prepared.response == response
        self.enqueue_prepared(process, prepared, change, at_once=at_once)

    @rule(**REQUEST, partitions=st.one_of(st.none(), st.sets(PARTITION, max_size=3)))
    def delete(self, zombie: bool, at_once: bool, group: str, partitions: set[tuple[str, int]] | None) -> None:
        process = self.requested_process(zombie=zombie)
        if process is None or process.view is None:
            return
        error, change = self.oracle.delete(process.view, process.in_flight(), group, partitions)
        shard = process.claimant.shard
        if partitions is None:
            prepared: CoordinatorResult[Any] = shard.delete_group(group)
            assert prepared.response == error
        else:
            prepared = shard.delete_offsets(group, [(topic, [partition]) for topic, partition in partitions])
            assert (prepared.response.error, prepared.response.errors) == (error, {})
        self.enqueue_prepared(process, prepared, change, at_once=at_once)

    @rule(zombie=ZOMBIE, at_once=AT_ONCE, members=st.dictionaries(GROUP, st.sampled_from([True, None])), hours=HOURS)
    def expire(self, zombie: bool, at_once: bool, members: Mapping[str, bool | None], hours: int) -> None:
        self.now += hours * HOUR_MS
        process = self.requested_process(zombie=zombie)
        if process is None or process.view is None:
            return
        change = self.oracle.expire(process.view, process.in_flight(), self.now, members)
        prepared = process.claimant.shard.expire(self.now, lambda group: members.get(group, False))
        self.enqueue_prepared(process, prepared, change, at_once=at_once)

    # --- appends -----------------------------------------------------------------------------------

    @precondition(lambda self: self.owner.waiting and self.owner.claimant.role is Role.SERVING)
    @rule(count=st.integers(1, 5), outcome=st.sampled_from([*AppendOutcome, *[AppendOutcome.WRITTEN] * 5]))
    def append(self, count: int, outcome: AppendOutcome) -> None:
        self.append_with(count, outcome if outcome in self.scenario_log.outcomes else AppendOutcome.WRITTEN)

    def append_with(self, count: int, outcome: AppendOutcome) -> None:
        process = self.owner
        batch, process.waiting = process.waiting[:count], process.waiting[count:]
        self.scenario_log.outcome = outcome
        self.scenario_log.fence = lambda: self.claim_after(process, batch)
        process.claimant.append(count)
        if outcome is AppendOutcome.WRITTEN:
            assert process.view is not None
            process.view = self.after(process.view, batch)
            self.durable = self.after(self.durable, batch)
        elif outcome is AppendOutcome.FENCED_WRITTEN:
            process.waiting = []
        elif outcome is not AppendOutcome.NOT_WRITTEN:
            process.in_doubt += batch
            if outcome is AppendOutcome.UNKNOWN_WRITTEN:
                self.durable = self.after(self.durable, batch)
            elif outcome is AppendOutcome.OPEN_WRITTEN:
                self.open = {key: value for one in batch for key, value in one.change.items()}

    def after(self, state: State, batch: Sequence[PreparedWrite]) -> State:
        for one in batch:
            state = changed(state, one.change)
        return state

    def claim_after(self, process: ModelProcess, batch: Sequence[PreparedWrite]) -> None:
        """Moves the ownership between the append and its response."""
        self.durable = self.after(self.durable, batch)
        self.ownership_moves()

    @precondition(lambda self: self.owner.claimant.role is Role.RECOVERING)
    @rule()
    def recover(self) -> None:
        self.claim(self.owner)

    @precondition(lambda self: self.other.waiting and self.other.claimant.role is Role.SERVING)
    @rule(count=st.integers(1, 5))
    def a_zombie_appends(self, count: int) -> None:
        """A fenced process appends: it gets an error, and the log does not change."""
        self.other.claimant.append(count)
        self.other.waiting = []
        assert self.other.claimant.role is Role.FOLLOWING

    # --- ownership -------------------------------------------------------------------------------

    @rule()
    def ownership_moves(self) -> None:
        """The other process claims the partition; the owner has not noticed it yet."""
        self.other.claimant.release()
        self.other.waiting, self.other.in_doubt = [], []
        self.owner, self.other = self.other, self.owner
        self.claim(self.owner)

    @rule(standby=st.booleans())
    def crash(self, standby: bool) -> None:
        """A process loses its memory and its requests in flight."""
        if standby:
            self.other.claimant.release()
            self.other = self.new_process()
            self.other.view = None
        else:
            self.owner.claimant.release()
            self.owner = self.new_process()
            self.claim(self.owner)

    @rule(limit=st.one_of(st.none(), st.integers(1, 4)))
    def the_standby_follows(self, limit: int | None) -> None:
        self.other.claimant.release()
        self.other.waiting, self.other.in_doubt = [], []
        at_end = self.other.claimant.follow(limit)
        self.other.view = dict(self.durable) if at_end else None

    @rule()
    def compact(self) -> None:
        """A standby that is behind starts again from the beginning, because compaction may remove tombstones that it
        has not read."""
        if self.other.view != self.durable:
            self.crash(standby=True)
        self.scenario_log.compact()

    @rule()
    def a_newcomer_reads_everything(self) -> None:
        newcomer = self.new_process()
        assert newcomer.claimant.follow()
        newcomer.view = dict(self.durable)
        self.check_view(newcomer)

    # --- invariants -----------------------------------------------------------------------

    @invariant()
    def each_process_has_its_expected_view(self) -> None:
        if hasattr(self, "scenario_log"):
            self.check_view(self.owner)
            self.check_view(self.other)

    def check_view(self, process: ModelProcess) -> None:
        if process.view is None:
            return
        shard, view = process.claimant.shard, process.view
        assert dict(shard.entries()) == {key: value for key, value in view.items() if isinstance(key, OffsetKey)}
        assert shard.offset_count == sum(isinstance(key, OffsetKey) for key in view)
        assert set(shard.groups()) == {key.group for key in view if isinstance(key, OffsetKey)}
        assert not shard.problems
        for group in GROUPS:
            assert shard.last_active(group) == activity(view, group)
            stored = offsets_of(view, group)
            assert shard.has_group(group) == bool(stored)
            request = FetchRequest(group, [(topic, [partition]) for topic, partition in PARTITIONS])
            for topic, [(partition, offset, epoch, metadata, error)] in shard.fetch(request).topics:
                value = stored.get(OffsetKey(group, topic, partition))
                if value is None:
                    assert (offset, epoch, metadata, error) == (-1, -1, "", 0)
                else:
                    known_epoch = -1 if value.leader_epoch is None else value.leader_epoch
                    assert (offset, epoch, metadata, error) == (value.offset, known_epoch, value.metadata, 0)
