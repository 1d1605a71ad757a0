"""A dual store: two stores with the same offsets (data rule "dual commit: Kafka first"), as the old consumer's
``dual.commit.enabled=true``.

The semantics are those of kafka.consumer.ZookeeperConsumerConnector (0.8.2 - 1.1): a commit goes to the primary store
(Kafka) first, then to the secondary store (ZooKeeper) with the partitions that the primary accepted; a fetch returns
the larger offset of each partition. In addition, a change that the secondary rejects is reported, retried, kept as
pending and tried again at the next edit, at `DualStore.flush` and at `close`.

Ordering contract: the primary is written before the secondary, and the secondary never for a partition that the primary
rejected. So an edit with ``expected`` is atomic in each store but not across them, and its result records that.

Both stores must hold offsets of one Kafka cluster's logs: the larger of two numbers means something only there. The
first call that reads or writes offsets compares the two clusters and rejects different ones with `OtherCluster`, unless
``translate`` states that the logs are identical copies. Nothing is written before the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar
from urllib.parse import quote

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import Conflict, OffsetMgrError, OtherCluster, PartialFailure, RewindRefused
from offsetmgr.core.log_origin import LogOrigin, OffsetTranslation
from offsetmgr.core.model import ABSENT, Offset, TopicPartition, Weakness
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    StoreBase,
    StoreIdentity,
    same_value,
)
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.dual_policy import DualDecision, PendingChange, combined, merged, outcome_of, refused
from offsetmgr.stores.dual_reads import GROUPS_IN_FLIGHT, _batches, _edit, _fetch, _read, _scan

_HINT: Final = (
    "name two stores of one cluster; if the topics of both clusters are equal copies (same records at the same "
    "offsets), add translate=none to the URI or to the [store.NAME] section"
)
Value = TypeVar("Value")


class DualStore(StoreBase):
    """Commits to ``primary``, then to ``secondary``; reads the larger offset. Usually Kafka and ZooKeeper.

    ``attempts`` is how often one call tries a secondary write while its error is retriable, ``backoff_ms`` apart.
    ``translate`` is the user's statement if the two belong to different Kafka clusters. Instances are not thread-safe.
    Closing it closes both stores.
    """

    has_topic_creation_times = True

    def __init__(
        self,
        primary: OffsetStore,
        secondary: OffsetStore,
        *,
        attempts: int = 3,
        backoff_ms: int = 100,
        clock: Clock | None = None,
        translate: OffsetTranslation | None = None,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._attempts = attempts
        self._backoff_ms = backoff_ms
        self._clock = clock or SystemClock()
        self._translate = translate
        self._crossing: CrossClusterCheck | None = None
        self._pending: dict[str, dict[TopicPartition, PendingChange]] = {}
        self._dropped: dict[str, dict[TopicPartition, OffsetMgrError]] = {}

    @property
    def uri(self) -> str:
        both = f"dual:?primary={quote(self._primary.uri, safe='')}&secondary={quote(self._secondary.uri, safe='')}"
        return both if self._translate is None else f"{both}&translate={self._translate.value}"

    @property
    def primary(self) -> OffsetStore:
        return self._primary

    @property
    def secondary(self) -> OffsetStore:
        return self._secondary

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the primary store, which remains after dual commit."""
        return self._primary.capabilities

    @property
    def pending(self) -> Mapping[str, Mapping[TopicPartition, PendingChange]]:
        """The changes that the secondary store lacks, by group."""
        return {group: dict(changes) for group, changes in self._pending.items()}

    @property
    def dropped(self) -> Mapping[str, Mapping[TopicPartition, OffsetMgrError]]:
        """Pending changes that were dropped, because other clients have changed the primary or the secondary since."""
        return {group: dict(errors) for group, errors in self._dropped.items()}

    def identity(self) -> StoreIdentity:
        first, second = self._primary.identity(), self._secondary.identity()
        return StoreIdentity("dual", f"{first.id}+{second.id}", f"primary: {first.how}; secondary: {second.how}")

    # --- origin of the logs --------------------------------------------------------------------------

    def crossing(self) -> CrossClusterCheck:
        """Returns the relation of the logs of the two stores, which are compared once.

        Raises `OtherCluster` for two clusters that the user has not accepted, and the errors of
        `OffsetStore.log_origin`; the next call then compares again.
        """
        if self._crossing is None:
            crossing = CrossClusterCheck(self._primary, self._secondary, self._translate, ("primary", "secondary"))
            if crossing.foreign and self._translate is None:
                why = f"its two stores hold offsets of different Kafka clusters: {crossing.compared.how}"
                raise OtherCluster(f"store {self.uri}", why, _HINT)
            self._crossing = crossing
        return self._crossing

    @property
    def shares_epochs(self) -> bool:
        """Returns whether both stores are known to hold offsets of the same logs, so that leader epochs are valid in
        both."""
        return self._crossing is not None and self._crossing.compared.keeps_epochs

    def log_origin(self) -> LogOrigin:
        """Returns the origin of the primary store. Raises the errors of `crossing`."""
        self.crossing()
        return self._primary.log_origin()

    def weaknesses(self) -> tuple[Weakness, ...]:
        return tuple(dict.fromkeys([*self._primary.weaknesses(), *self._secondary.weaknesses()]))

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        asked = None if topics is None else list(topics)
        return self._of_topics(lambda store: store.topic_ids(asked))

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:
        asked = list(topics)
        return self._of_topics(lambda store: store.topic_creation_times(asked))

    def _of_topics(self, ask: Callable[[OffsetStore], Mapping[str, Value]]) -> dict[str, Value]:
        """Returns the primary's values for its topics, and the secondary's for other topics of the same cluster."""
        theirs = {} if self.crossing().foreign else ask(self._secondary)
        return {**theirs, **ask(self._primary)}

    def _related(self, offsets: GroupOffsets) -> GroupOffsets:
        """Returns the secondary's offsets, without leader epochs unless they belong to the primary's logs."""
        crossing = self.crossing()
        if crossing.compared.keeps_epochs or not any(c.leader_epoch is not None for c in offsets.offsets.values()):
            return offsets
        return replace(offsets, offsets={tp: c._replace(leader_epoch=None) for tp, c in offsets.offsets.items()})

    # --- reads ---------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        seen: set[str] = set()
        for store in (self._primary, self._secondary):
            for group in store.groups():
                if group not in seen:
                    seen.add(group)
                    yield group

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        self.crossing()
        asked = None if partitions is None else list(partitions)
        both = merged(_fetch(self._primary, group, asked), self._related(_fetch(self._secondary, group, asked)))
        if both.error is not None:
            raise both.error
        failures = dict(both.errors)
        found: dict[TopicPartition, Offset] = {
            tp: both.offsets.get(tp, ABSENT) for tp in (both.offsets if asked is None else asked) if tp not in failures
        }
        if failures:
            raise PartialFailure(f"fetch of group {group} from {self.uri}", successes=found, failures=failures)
        return found

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        names = iter(groups)
        while batch := list(islice(names, GROUPS_IN_FLIGHT)):
            if (unknown := self._not_compared()) is not None:
                yield from (GroupOffsets(group, {}, error=unknown) for group in batch)
                continue
            unique = list(dict.fromkeys(batch))
            first, second = _scan(self._primary, unique), _scan(self._secondary, unique)
            for group in batch:
                yield merged(first[group], self._related(second[group]))

    def _not_compared(self) -> OffsetMgrError | None:
        """Returns why the relation of the two stores' logs is not known yet. Raises `OtherCluster`."""
        try:
            self.crossing()
        except OtherCluster:
            raise
        except OffsetMgrError as error:
            return error
        return None

    # --- writes --------------------------------------------------------------------------------------

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Works as `OffsetStore.edit`; ``expected`` is compared with the larger offset, as `fetch` returns it.

        A change is FAILED if the primary rejects it. If only the secondary does, the outcome is the primary's and
        ``secondary`` of the result has the error. While the secondary cannot be read, changes without ``expected``
        still go to the primary, whose own offsets they may not lower; those with ``expected`` fail, since they cannot
        be compared.
        """
        waiting = self.pending  # before this edit adds its own
        for batch in _batches(edits):
            if (unknown := self._not_compared()) is not None:
                failed = ChangeOutcome(EditStatus.FAILED, None, unknown)
                how = "nothing was written: it is unknown yet whether both stores belong to one Kafka cluster"
                yield from (GroupEditResult(e.group, dict.fromkeys(e.changes, failed), how=how) for e in batch)
            else:
                yield from self._edit_batch(batch)
        if waiting:
            self._retry({g: {tp: p for tp, p in w.items() if self._waits(g, tp) is p} for g, w in waiting.items()})

    def flush(self) -> Mapping[str, Mapping[TopicPartition, OffsetMgrError]]:
        """Tries all pending changes again; returns those that were not written, with their errors.

        A change is dropped with a `Conflict` if the primary has changed since, or if the secondary rejects it
        (`Conflict`, `RewindRefused`). All others stay pending.
        """
        return self._retry(self.pending)

    def close(self) -> None:
        """Tries the pending changes again, then closes both stores; what `pending` contains then was never written."""
        try:
            self.flush()
        finally:
            try:
                self._primary.close()
            finally:
                self._secondary.close()

    def _edit_batch(self, batch: list[GroupEdit]) -> Iterator[GroupEditResult]:
        first, second = _read(self._primary, batch), _read(self._secondary, batch)
        decisions = {e.group: self._decide(e, first[e.group], second[e.group]) for e in batch}
        done = _edit(
            self._primary,
            [GroupEdit(e.group, d.primary, e.guard) for e in batch if (d := decisions[e.group]).primary],
        )
        writes: dict[str, dict[TopicPartition, PendingChange]] = {}
        for group, result in done.items():
            taken = [tp for tp, outcome in result.outcomes.items() if outcome.error is None]
            for tp in taken:
                self._forget(group, tp)  # this write replaces the pending one
            secondary = decisions[group].secondary
            writes[group] = {
                tp: secondary[tp] for tp in taken if not self._holds(outcome_of(second[group], tp), secondary[tp])
            }
        errors = self._write_secondary(writes, self._attempts)
        for edit in batch:
            group = edit.group
            yield combined(
                edit,
                decisions[group],
                done.get(group),
                self._related(second[group]),
                errors.get(group, {}),
                writes.get(group, {}).keys() - errors.get(group, {}).keys(),
            )

    def _decide(self, edit: GroupEdit, first: GroupOffsets, second: GroupOffsets) -> DualDecision:
        decision = DualDecision({}, {}, {})
        for tp, change in edit.changes.items():
            here, there = outcome_of(first, tp), outcome_of(second, tp)
            waiting = self._waits(edit.group, tp)
            no = refused(f"group {edit.group}, {tp}", change, here, there, waiting)
            if no is not None:
                decision.failed[tp] = no
                continue
            unread = there if isinstance(there, OffsetMgrError) else None
            exactly = here if change.expected is not None and not isinstance(here, OffsetMgrError) else None
            decision.primary[tp] = Change(change.after, exactly, change.allow_rewind)
            decision.secondary[tp] = PendingChange(
                None if change.after is None else self.crossing().carry(change.after),
                None if isinstance(there, OffsetMgrError) else there,
                change.allow_rewind or (waiting is not None and waiting.lowers),
                unread or OffsetMgrError(f"group {edit.group}, {tp}", "not written to the secondary yet"),
            )
        return decision

    def _holds(self, found: Offset | OffsetMgrError, write: PendingChange) -> bool:
        """Returns whether the secondary already holds the value; the write is then skipped (data rule "dual commit:
        Kafka first")."""
        return not isinstance(found, OffsetMgrError) and same_value(found, write.after, self._secondary.capabilities)

    def _retry(
        self, waiting: Mapping[str, Mapping[TopicPartition, PendingChange]]
    ) -> dict[str, dict[TopicPartition, OffsetMgrError]]:
        failed: dict[str, dict[TopicPartition, OffsetMgrError]] = {}
        writes: dict[str, dict[TopicPartition, PendingChange]] = {}
        for group, found in _scan(self._primary, [g for g, changes in waiting.items() if changes]).items():
            for tp, pending in waiting[group].items():
                current = outcome_of(found, tp)
                if isinstance(current, OffsetMgrError):
                    failed.setdefault(group, {})[tp] = current
                elif pending.overtaken(current):
                    why = "the primary was changed since, so the secondary keeps its offset"
                    error = Conflict(f"group {group}, {tp}: pending change dropped", why, actual=current)
                    failed.setdefault(group, {})[tp] = self._drop(group, tp, error)
                else:
                    writes.setdefault(group, {})[tp] = pending
        for group, errors in self._write_secondary(writes, attempts=1).items():
            failed.setdefault(group, {}).update(errors)
        return failed

    def _write_secondary(
        self, writes: Mapping[str, Mapping[TopicPartition, PendingChange]], attempts: int
    ) -> dict[str, dict[TopicPartition, OffsetMgrError]]:
        """Writes to the secondary, with retries; failed changes become pending and are returned."""
        left = {group: dict(changes) for group, changes in writes.items() if changes}
        failed: dict[str, dict[TopicPartition, OffsetMgrError]] = {}
        for attempt in range(attempts):
            if attempt:
                self._clock.sleep(self._backoff_ms / 1000)
            results = _edit(
                self._secondary,
                [GroupEdit(group, {tp: p.change() for tp, p in changes.items()}) for group, changes in left.items()],
            )
            again: dict[str, dict[TopicPartition, PendingChange]] = {}
            for group, result in results.items():
                for tp, pending in left[group].items():
                    error = result.outcomes[tp].error
                    failed.get(group, {}).pop(tp, None)
                    if error is None or self._was_written(error, pending):
                        self._forget(group, tp)
                        continue
                    failed.setdefault(group, {})[tp] = self._keep(group, tp, replace(pending, error=error))
                    if error.retriable:
                        again.setdefault(group, {})[tp] = pending
            left = again
            if not left:
                break
        return {group: errors for group, errors in failed.items() if errors}

    def _was_written(self, error: OffsetMgrError, pending: PendingChange) -> bool:
        """Returns whether a conflict is with our own earlier attempt, whose response was lost."""
        return isinstance(error, Conflict) and same_value(error.actual, pending.after, self._secondary.capabilities)

    def _waits(self, group: str, tp: TopicPartition) -> PendingChange | None:
        return self._pending.get(group, {}).get(tp)

    def _keep(self, group: str, tp: TopicPartition, pending: PendingChange) -> OffsetMgrError:
        if isinstance(pending.error, (Conflict, RewindRefused)):
            # other clients have changed the secondary since: a retry would be a blind write
            return self._drop(group, tp, pending.error)
        self._pending.setdefault(group, {})[tp] = pending
        return pending.error

    def _drop(self, group: str, tp: TopicPartition, error: OffsetMgrError) -> OffsetMgrError:
        self._forget(group, tp)
        self._dropped.setdefault(group, {})[tp] = error
        return error

    def _forget(self, group: str, tp: TopicPartition) -> None:
        if changes := self._pending.get(group):
            changes.pop(tp, None)
            if not changes:
                del self._pending[group]
