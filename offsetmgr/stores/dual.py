"""`DualStore`: two stores that receive the same commits, as with ``dual.commit.enabled=true`` of the old consumer.

It implements the data rule "dual commit: Kafka first" with the semantics of kafka.consumer.ZookeeperConsumerConnector
(0.8.2 - 1.1): a commit is written to the primary store (Kafka) first, and the partitions that the primary accepted are
then written to the secondary store (ZooKeeper). A fetch returns the larger offset of each partition. Unlike the old
consumer, `DualStore` retries and reports a change that the secondary did not accept. Such a change is *pending* until
it is written: the next edit, `DualStore.flush` and `DualStore.close` try again.

Ordering contract: the primary is written before the secondary, and the secondary is never written for a partition that
the primary rejected. An edit with ``expected`` is atomic in each store, but not across both stores. The result of the
edit reports this.

Both stores must hold offsets of the same Kafka cluster's logs, because offsets of different logs cannot be compared.
The first call that reads or writes offsets compares the two clusters. If the clusters differ, that call raises
`OtherCluster`, unless ``translate`` states that the logs are identical copies. Nothing is written before the
comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar
from urllib.parse import quote

from offsetmgr.core.batches import batched, by_key
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import Conflict, OffsetMgrError, OtherCluster, RewindRefused, UsageError
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.log_origin import LogOrigin, OffsetTranslation
from offsetmgr.core.model import Offset, TopicPartition, Weakness
from offsetmgr.core.offset_store import (
    GROUPS_IN_FLIGHT,
    Capabilities,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    StoreIdentity,
    edit_batches,
    edit_store,
    fetch_group,
    fetched,
    read_batch,
    scan_store,
)
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.dual_policy import (
    SUPERSEDED,
    DualDecision,
    PendingChange,
    accepted_by_primary,
    combined,
    dual_rejection,
    is_superseded,
    merged,
    outcome_of,
    without_epochs,
)

_HINT: Final = (
    "name two stores of one cluster; if the topics of both clusters are equal copies (same records at the same "
    "offsets), add translate=none to the URI or to the [store.NAME] section"
)
_ATTEMPTS: Final = 3
"""The number of times that an edit tries to write a change to the secondary."""
_BACKOFF_S: Final = 0.1

Value = TypeVar("Value")
_Key: TypeAlias = tuple[str, TopicPartition]
"""The group and the partition of an offset."""


class DualStore(OffsetStore):
    """Commits to ``primary`` (usually Kafka), then to ``secondary`` (usually ZooKeeper). Reads the larger offset.

    If a write to the secondary fails with a retriable error, the write is tried again. There are at most `_ATTEMPTS`
    attempts in total, with pauses of `_BACKOFF_S`. ``translate`` is the user's statement that the stores' clusters
    have identical logs. Instances are not thread-safe. `close` closes both stores.
    """

    has_topic_creation_times = True

    def __init__(
        self,
        primary: OffsetStore,
        secondary: OffsetStore,
        *,
        clock: Clock | None = None,
        translate: OffsetTranslation | None = None,
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self._clock = clock or SystemClock()
        self._translate = translate
        self._cross_cluster_check: CrossClusterCheck | None = None
        self._pending: dict[_Key, PendingChange] = {}

    @property
    def parts(self) -> tuple[OffsetStore, OffsetStore]:
        return self.primary, self.secondary

    def address_doubt(self) -> str:
        return next((doubt for part in self.parts if (doubt := part.address_doubt())), "")

    @property
    def uri(self) -> str:
        both = f"dual:?primary={quote(self.primary.uri, safe='')}&secondary={quote(self.secondary.uri, safe='')}"
        return both if self._translate is None else f"{both}&translate={self._translate.value}"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the primary store, because the group continues to use that store when dual commit
        ends."""
        return self.primary.capabilities

    @property
    def pending(self) -> Mapping[str, Mapping[TopicPartition, PendingChange]]:
        """The changes that the primary store has accepted but the secondary store has not yet accepted, by group."""
        return _by_group(self._pending)

    def identity(self) -> StoreIdentity:
        first, second = self.primary.identity(), self.secondary.identity()
        return StoreIdentity("dual", f"{first.id}+{second.id}", f"primary: {first.how}; secondary: {second.how}")

    # --- origin of the logs --------------------------------------------------------------------------

    def cross_cluster_check(self) -> CrossClusterCheck:
        """Returns the comparison of the two stores' clusters. The first successful call compares the clusters; later
        calls return the same result.

        Raises `OtherCluster` if the clusters differ and ``translate`` is not set. Also raises the errors of
        `OffsetStore.log_origin`. After an error, the next call compares again.
        """
        if self._cross_cluster_check is None:
            check = CrossClusterCheck(self.primary, self.secondary, self._translate, ("primary", "secondary"))
            if check.refused:
                why = check.why("its two stores hold offsets of different Kafka clusters")
                raise OtherCluster(f"store {self.uri}", why, _HINT)
            self._cross_cluster_check = check
        return self._cross_cluster_check

    @property
    def shares_epochs(self) -> bool:
        """Whether both stores are known to hold offsets of the same logs, so that leader epochs are valid in both."""
        return self._cross_cluster_check is not None and self._cross_cluster_check.comparison.keeps_epochs

    def log_origin(self) -> LogOrigin:
        """Returns the origin of the primary store. Raises the errors of `cross_cluster_check`."""
        self.cross_cluster_check()
        return self.primary.log_origin()

    def weaknesses(self) -> tuple[Weakness, ...]:
        return tuple(dict.fromkeys([*self.primary.weaknesses(), *self.secondary.weaknesses()]))

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        requested = None if topics is None else list(topics)
        return self._of_topics(lambda store: store.topic_ids(requested))

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:
        requested = list(topics)
        return self._of_topics(lambda store: store.topic_creation_times(requested))

    def _of_topics(self, ask: Callable[[OffsetStore], Mapping[str, Value]]) -> dict[str, Value]:
        """Returns the primary's values. For topics without a value in the primary, returns the secondary's values if
        both stores belong to the same cluster."""
        theirs = {} if self.cross_cluster_check().other_cluster else ask(self.secondary)
        return {**theirs, **ask(self.primary)}

    def _with_valid_epochs(self, found: GroupOffsets) -> GroupOffsets:
        return found if self.shares_epochs else without_epochs(found)

    # --- reads ---------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        seen: set[str] = set()
        for store in (self.primary, self.secondary):
            for group in store.groups():
                if group not in seen:
                    seen.add(group)
                    yield group

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        self.cross_cluster_check()
        requested = None if partitions is None else list(partitions)
        both = self.merged(fetch_group(self.primary, group, requested), fetch_group(self.secondary, group, requested))
        if both.error is not None:
            raise both.error
        return fetched(f"fetch of group {group} from {self.uri}", both.offsets, both.errors, requested)

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        for batch in batched(groups, GROUPS_IN_FLIGHT):
            if (unknown := self._comparison_error()) is not None:
                yield from (GroupOffsets(group, {}, error=unknown) for group in batch)
                continue
            unique = list(dict.fromkeys(batch))
            first, second = scan_store(self.primary, unique), scan_store(self.secondary, unique)
            for group in batch:
                yield self.merged(first[group], second[group])

    def merged(self, first: GroupOffsets, second: GroupOffsets) -> GroupOffsets:
        """Returns what `scan` yields for a group, given the results of the primary and of the secondary."""
        return merged(first, self._with_valid_epochs(second))

    def _comparison_error(self) -> OffsetMgrError | None:
        """Returns the error if the two clusters cannot be compared yet; otherwise None. Raises `OtherCluster`."""
        try:
            self.cross_cluster_check()
        except OtherCluster:
            raise
        except OffsetMgrError as error:
            return error
        return None

    # --- writes --------------------------------------------------------------------------------------

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Works as `OffsetStore.edit`; ``expected`` is compared with the larger offset, which `fetch` returns.

        A change is FAILED if the primary rejects it. If only the secondary rejects a change, the change has the outcome
        of the primary, and the result's field ``secondary`` contains the error. While the secondary cannot be read, the
        larger offset is unknown. In this case a change with ``expected`` fails. A change without ``expected`` is
        compared only with the primary's offset, and is written to the primary.
        """
        pending = dict(self._pending)  # this edit may add further pending changes
        for batch in edit_batches(edits):
            if (unknown := self._comparison_error()) is not None:
                failed = ChangeOutcome(EditStatus.FAILED, None, unknown)
                how = "nothing was written: offsetmgr could not yet compare the Kafka clusters of the two stores"
                yield from (GroupEditResult(e.group, dict.fromkeys(e.changes, failed), how=how) for e in batch)
            else:
                yield from self._edit_batch(batch)
        if pending:
            self._retry({key: change for key, change in pending.items() if self._pending.get(key) is change})

    def flush(self) -> Mapping[str, Mapping[TopicPartition, OffsetMgrError]]:
        """Tries again to write all pending changes; returns the errors of the changes that were not written.

        A pending change is dropped if another client has changed the primary's offset since the change (`Conflict`), or
        if the secondary rejects the change (`Conflict`, `RewindRefused`). All other changes that fail stay pending.
        """
        return self._retry(dict(self._pending))

    def close(self) -> None:
        """Tries again to write the pending changes, then closes both stores. Changes that are still in `pending` after
        this call have not been written to the secondary."""
        with closing(self.secondary), closing(self.primary):
            self.flush()

    def _edit_batch(self, batch: list[GroupEdit]) -> Iterator[GroupEditResult]:
        first, second = read_batch(self.primary, batch), read_batch(self.secondary, batch)
        decisions = {e.group: self._decide(e, first[e.group], second[e.group]) for e in batch}
        done = edit_store(
            self.primary,
            [GroupEdit(e.group, d.primary, e.guard) for e in batch if (d := decisions[e.group]).primary],
        )
        writes: dict[_Key, PendingChange] = {}
        for group, result in done.items():
            changes, secondary = decisions[group].primary, decisions[group].secondary
            for tp, outcome in result.outcomes.items():
                if accepted_by_primary(changes[tp], outcome):
                    self._pending.pop((group, tp), None)  # the new change replaces the pending one
                    if not self._already_holds(outcome_of(second[group], tp), secondary[tp]):
                        writes[group, tp] = secondary[tp]
        failed = self._write_secondary(writes, _ATTEMPTS)
        errors, written = _by_group(failed), by_key(writes.keys() - failed.keys())
        for edit in batch:
            group = edit.group
            yield combined(
                edit,
                decisions[group],
                done.get(group),
                self._with_valid_epochs(second[group]),
                errors.get(group, {}),
                written.get(group, ()),
            )

    def _decide(self, edit: GroupEdit, first: GroupOffsets, second: GroupOffsets) -> DualDecision:
        decision = DualDecision({}, {}, {})
        for tp, change in edit.changes.items():
            in_primary, in_secondary = outcome_of(first, tp), outcome_of(second, tp)
            pending = self._pending.get((edit.group, tp))
            outcome = dual_rejection(edit.group, tp, change, in_primary, in_secondary, pending)
            if isinstance(in_secondary, UsageError) and in_secondary.what == f"group {edit.group!r}":
                # The secondary can never hold a group of this name.
                outcome = ChangeOutcome(EditStatus.FAILED, None, in_secondary)
            if outcome is not None:
                decision.failed[tp] = outcome
                continue
            unread = in_secondary if isinstance(in_secondary, OffsetMgrError) else None
            exactly = in_primary if change.expected is not None and not isinstance(in_primary, OffsetMgrError) else None
            decision.primary[tp] = change._replace(expected=exactly)
            decision.secondary[tp] = PendingChange(
                None if change.after is None else self.cross_cluster_check().adapt(change.after),
                None if isinstance(in_secondary, OffsetMgrError) else in_secondary,
                change.allow_rewind or change.after is None or (pending is not None and pending.may_lower),
                unread or OffsetMgrError(f"group {edit.group}, {tp}", "not written to the secondary yet"),
            )
        return decision

    def _already_holds(self, found: Offset | OffsetMgrError, write: PendingChange) -> bool:
        """Returns whether the secondary already holds the value. A value that the secondary already holds is not
        written to it again (data rule "dual commit: Kafka first")."""
        return not isinstance(found, OffsetMgrError) and same_value(found, write.after, self.secondary.capabilities)

    def _retry(self, changes: Mapping[_Key, PendingChange]) -> dict[str, dict[TopicPartition, OffsetMgrError]]:
        found = scan_store(self.primary, list(dict.fromkeys(group for group, _ in changes)))
        failed: dict[_Key, OffsetMgrError] = {}
        writes: dict[_Key, PendingChange] = {}
        for (group, tp), pending in changes.items():
            current = outcome_of(found[group], tp)
            if isinstance(current, OffsetMgrError):
                failed[group, tp] = current
            elif is_superseded(pending.after, current, may_lower=pending.may_lower):
                self._pending.pop((group, tp), None)
                what = f"group {group}, {tp}: pending change dropped"
                failed[group, tp] = Conflict(what, SUPERSEDED, actual=current)
            else:
                writes[group, tp] = pending
        return _by_group(failed | self._write_secondary(writes, attempts=1))

    def _write_secondary(self, writes: Mapping[_Key, PendingChange], attempts: int) -> dict[_Key, OffsetMgrError]:
        """Writes changes to the secondary, with retries. A change that fails becomes pending or is dropped. Returns the
        errors of the changes that failed."""
        left, failed = dict(writes), dict[_Key, OffsetMgrError]()
        retries = BlockingRetries(backoff=Backoff.fixed(_BACKOFF_S, attempts - 1), clock=self._clock)
        capabilities = self.secondary.capabilities
        while left:
            by_group = _by_group({key: pending.change() for key, pending in left.items()})
            results = edit_store(self.secondary, [GroupEdit(group, changes) for group, changes in by_group.items()])
            again: dict[_Key, PendingChange] = {}
            for (group, tp), pending in left.items():
                error = results[group].outcomes[tp].error
                failed.pop((group, tp), None)
                # A conflict with the value to write: an earlier attempt wrote it, and its response was lost.
                written = isinstance(error, Conflict) and same_value(error.actual, pending.after, capabilities)
                if error is None or written:
                    self._pending.pop((group, tp), None)
                    continue
                failed[group, tp] = error
                if isinstance(error, (Conflict, RewindRefused)):
                    # Another client has changed the secondary in the meantime. A retry could overwrite that change.
                    self._pending.pop((group, tp), None)
                else:
                    self._pending[group, tp] = replace(pending, error=error)
                if error.retriable:
                    again[group, tp] = pending
            left = again
            if left and not retries.pause():
                break
        return failed


def _by_group(values: Mapping[_Key, Value]) -> dict[str, dict[TopicPartition, Value]]:
    found: dict[str, dict[TopicPartition, Value]] = {}
    for (group, tp), value in values.items():
        found.setdefault(group, {})[tp] = value
    return found
