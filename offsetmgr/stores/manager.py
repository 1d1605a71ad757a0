"""`ManagerStore`: committed offsets in offsetmgr's own offset managers, over Kafka's protocol.

Managers announce their protocol extensions. If the address belongs to a broker, the store works without conditional
commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, ServerError, UnsupportedOperation, value_of
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import ABSENT, NO_OFFSET, TopicPartition
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    StoreIdentity,
)
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.client import Client, NotAMember, features
from offsetmgr.kafka.client.connection import BrokerConnection, Security, remaining
from offsetmgr.kafka.client.groups import commit_if, list_manager_groups
from offsetmgr.kafka.protocol.requests import (
    CONDITIONAL_FEATURE,
    DROPS_LEADER_EPOCH,
    DROPS_METADATA,
    LOG_FEATURE,
    MANAGER_API_VERSIONS,
    STORE_FEATURE,
    FetchedGroup,
)
from offsetmgr.stores.protocol_edits import (
    COMPARED_FIELDS,
    ProtocolEdits,
    ProtocolStore,
    StoreThread,
    decide,
    edit_each,
    group_id_error,
)


class ManagerStore(ProtocolStore["ManagerEdits"]):
    """The groups that the offset manager at an address serves: the groups in the managers' offsets topic, or the groups
    of another store."""

    kind = "manager"

    def _new_thread(self, security: Security, timeout_s: float) -> StoreThread[ManagerEdits]:
        return StoreThread(Client(self._bootstrap, security, MANAGER_API_VERSIONS), ManagerEdits, timeout_s)

    @property
    def capabilities(self) -> Capabilities:
        """Returns the capabilities that the server announces. Only the first call requests them. Raises `Unreachable`,
        `TimedOut`.

        Each edit checks the capabilities of its group's coordinator again, because the coordinator may run an older
        release than the server that announced these capabilities.
        """
        offered = self._offered
        return Capabilities(
            metadata=DROPS_METADATA not in offered,
            leader_epoch=DROPS_LEADER_EPOCH not in offered,
            commit_timestamp=False,
            conditional="version" if CONDITIONAL_FEATURE in offered else "none",
        )

    def identity(self) -> StoreIdentity:
        """Returns an id that consists of the cluster id and the managers' offsets topic. If the manager serves another
        store, the kind of that store replaces the topic in the id."""
        return self._identity

    @cached_property
    def _identity(self) -> StoreIdentity:
        thread = self.store_thread()
        cluster_id, _ = thread.run(thread.client.cluster)
        topic = next((n.removeprefix(LOG_FEATURE) for n in self._offered if n.startswith(LOG_FEATURE)), "")
        kind = self.served_store() or ""
        how = "cluster id and offsets topic" if topic else "cluster id and kind of store" if kind else "cluster id"
        store_id = "/".join(part for part in (cluster_id, topic or kind) if part)
        return StoreIdentity("manager", store_id, f"{how}, as the server reports")

    def served_store(self) -> str | None:
        """Returns the kind of the store whose groups the manager serves; None if the manager has its own offsets topic.
        Raises `Unreachable`, `TimedOut`."""
        return next((n.removeprefix(STORE_FEATURE) for n in self._offered if n.startswith(STORE_FEATURE)), None)

    def groups(self) -> Iterator[str]:
        thread = self.store_thread()
        yield from thread.run(lambda deadline: list_manager_groups(thread.client, deadline))

    @cached_property
    def _offered(self) -> dict[str, int]:
        """The features that the server announces."""
        thread = self.store_thread()

        async def ask(connection: BrokerConnection, until: float) -> dict[str, int]:
            return dict(await features(connection, remaining(until)))

        return thread.run(lambda deadline: thread.client.ask_any(ask, deadline))


# Edits of an offset manager's groups by conditional commits. An edit reads the offsets, decides, and sends a commit
# on the condition that the offsets have not changed since the read. If the manager rejects the condition, the edit
# reads and decides again. The manager checks the condition and appends in one step, and a commit in flight makes the
# condition fail (see `offsetmgr.kafka.protocol.requests`), so an edit is atomic for each partition,
# including deletions. If the server does not announce conditional commits (a broker, an older manager, or a store
# without them), the edit compares the offsets just before the write instead, and its result reports that.

CONDITIONAL: Final = "the manager compared"
"""The value of `GroupEditResult.how` for conditional commits."""
_NOT_WRITTEN: Final = "nothing had to be written"


class ManagerEdits(ProtocolEdits):
    """Reads and edits of the groups of offset managers."""

    async def _edit_conditionally(self, edits: list[GroupEdit], deadline: float) -> list[GroupEditResult]:
        valid_groups = [edit.group for edit in edits if edit.changes and group_id_error(edit.group) is None]
        fetched = await self._client.fetch(dict.fromkeys(valid_groups), deadline)

        async def one(edit: GroupEdit) -> GroupEditResult:
            return await self._edit_group(edit, value_of(fetched[edit.group]), deadline)

        return await edit_each(edits, one)

    async def _edit_group(self, edit: GroupEdit, current: FetchedGroup, deadline: float) -> GroupEditResult:
        progress = _EditProgress(edit)
        retries = Retries(deadline)
        while True:
            progress.decide(current)
            if not progress.todo:
                break
            try:
                values = {tp: edit.changes[tp].after for tp in progress.todo}
                outcomes, retried = await commit_if(self._client, edit.group, values, progress.conditions, deadline)
                if not progress.apply_responses(outcomes, repeated=retried):
                    break
                if not await retries.pause():
                    progress.fail_remaining_as_conflicts()
                    break
                current = await self.fetch(edit.group, progress.todo, deadline)
            except UnsupportedOperation:
                return await self._compare_and_write(edit, deadline, None)
            except NotAMember:
                progress.fail(await self._group_active_error(edit.group, deadline))
                break
            except OffsetMgrError as error:
                progress.fail(error)
                break
        return GroupEditResult(edit.group, progress.result(), how=CONDITIONAL if progress.written else _NOT_WRITTEN)


class _EditProgress:
    """The state of one edit: the outcomes so far, and the partitions that must still be written, each with its
    condition."""

    def __init__(self, edit: GroupEdit) -> None:
        self._group, self._changes, self._whole = edit.group, edit.changes, edit.whole
        self._outcomes: dict[TopicPartition, ChangeOutcome] = {}
        self._current = FetchedGroup({}, {})
        self._in_doubt: set[TopicPartition] = set()
        """Partitions for which an earlier attempt may have succeeded although its response was lost."""
        self.todo: Sequence[TopicPartition] = list(edit.changes)
        self.written = False

    @property
    def conditions(self) -> dict[TopicPartition, int]:
        offsets = self._current.offsets
        return {tp: offsets[tp].offset if tp in offsets else NO_OFFSET for tp in self.todo}

    def decide(self, current: FetchedGroup) -> None:
        """Decides again on the remaining partitions, given the current offsets of the group."""
        for tp in [tp for tp in self.todo if tp in self._in_doubt]:
            found = current.offsets.get(tp, ABSENT)
            if tp not in current.errors and same_value(found, self._changes[tp].after, COMPARED_FIELDS):
                self._outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN, self._current.offsets.get(tp, ABSENT))
        changes: Mapping[TopicPartition, Change] = {
            tp: self._changes[tp] for tp in self.todo if tp not in self._outcomes
        }
        decided = decide(self._group, changes, current, whole=self._whole and not self.written)
        self._outcomes |= decided.outcomes
        self._current, self.todo = current, decided.todo

    def apply_responses(self, results: Mapping[TopicPartition, OffsetMgrError | None], *, repeated: bool) -> bool:
        """Records the manager's responses. Returns whether a condition failed, so that the edit must read and decide
        again; ``repeated`` means that the client sent the request more than once."""
        again: list[TopicPartition] = []
        for tp in self.todo:
            error = results.get(tp, ServerError(str(tp), "the manager's response does not contain it"))
            if isinstance(error, Conflict):
                again.append(tp)
                if repeated:
                    self._in_doubt.add(tp)
                continue
            self.written = self.written or error is None
            self._set(tp, error)
        self.todo = again
        return bool(again)

    def fail(self, error: OffsetMgrError) -> None:
        for tp in self.todo:
            self._set(tp, error)

    def fail_remaining_as_conflicts(self) -> None:
        for tp in self.todo:
            self._set(tp, Conflict(str(tp), "other clients kept changing it", "try again when the group is quiet"))

    def result(self) -> dict[TopicPartition, ChangeOutcome]:
        """Returns the outcomes in the order of the changes."""
        return {tp: self._outcomes[tp] for tp in self._changes}

    def _set(self, tp: TopicPartition, error: OffsetMgrError | None) -> None:
        status = EditStatus.WRITTEN if error is None else EditStatus.FAILED
        self._outcomes[tp] = ChangeOutcome(status, self._current.offsets.get(tp, ABSENT), error)
