"""Finds the offsets of Kafka groups that the coordinator's list of all offsets leaves out.

The list leaves out two kinds of offsets without an error: first commits that are pending in an open transaction, and
the offsets of topics that the principal may not describe. Before a group is deleted, one of three proofs must show that
its list is complete:

- The coordinator has no authorizer, and the group's partition of ``__consumer_offsets`` has no open transaction.
- The log of this partition, which the principal may read, has no other offset of the group.
- All listed offsets were deleted, and the coordinator then reports the group as DEAD. Coordinators of Kafka 2.4 to 3.9
  keep a group as long as it has an offset, also a pending one. Coordinators of Kafka 4.0 and later keep every group for
  some minutes, so EMPTY proves nothing there. If this proof fails, the deleted offsets are written back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import GateRefused, GroupNotFound, NotAuthorized, OffsetMgrError
from offsetmgr.core.java_hash import java_hash, partition_of_hash
from offsetmgr.core.model import ABSENT, Committed, GroupDescription, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.kafka.client.broker_permissions import has_authorizer
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.fetch import LATEST
from offsetmgr.kafka.client.leader_router import PartitionLeaders
from offsetmgr.kafka.client.log_ranges import list_offsets, partition_counts
from offsetmgr.kafka.groups.lock_membership import delete, non_member
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import UnstableOffset
from offsetmgr.kafka.protocol.releases import DELETES_OFFSETS, REPORTS_TRANSACTIONS, is_before
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC, FetchedGroup
from offsetmgr.stores.conditional_edit import group_id_error

_ACCEPT: Final = Advice("or add {accept_unseen=True}: unseen offsets are then lost, and no undo restores them")
_MAX_NAMED: Final = 200_000
"""The maximum number of partitions that one call of `UnseenOffsets.add_pending` asks for by name."""
_CHECK_S: Final = 5.0
"""The maximum time in seconds for the check of open transactions, which is part of every read of whole groups."""


class UnseenOffsets:
    """Finds unseen offsets in one cluster. Use it in the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leaders = PartitionLeaders(client)
        self._partitions = 0
        """The number of partitions of the offsets topic; 0 if unknown."""
        self._filters: dict[Address, bool] = {}
        """Whether a coordinator may leave out offsets."""
        self.accepted: set[str] = set()
        """The groups that may be deleted with unseen offsets, because the user accepts it."""
        self.unproved: dict[str, dict[TopicPartition, Committed]] = {}
        """The groups that need the third proof, with the offsets that this process has deleted since `reasons`."""

    async def add_pending(
        self, groups: Sequence[str], found: Mapping[str, FetchedGroup | OffsetMgrError], deadline: float
    ) -> None:
        """Adds an error to ``found`` for each partition of these groups whose first commit is pending.

        Asks by name, and only for groups whose partition of the offsets topic has an open transaction. If there are
        many, asks for some of them only in the topics in which they have other commits. Adds nothing if the principal
        may not describe the offsets topic.
        """
        until = min(deadline, asyncio.get_running_loop().time() + _CHECK_S)
        try:
            groups = await self._in_transactions(groups, until)
            counts = await partition_counts(self._client, None, until) if groups else {}
            every = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
            named: dict[str, list[TopicPartition]] = {}
            for at, group in enumerate(groups, 1):
                known = found[group]
                topics = {tp.topic for tp in known.offsets} if isinstance(known, FetchedGroup) else set()
                named[group] = [tp for tp in every if at * len(every) <= _MAX_NAMED or tp.topic in topics]
            answers = await self._client.fetch(named, until) if named else {}
        except OffsetMgrError:
            return
        for group, answer in answers.items():
            known = found[group]
            if isinstance(known, FetchedGroup) and isinstance(answer, FetchedGroup):
                known.errors.update({tp: e for tp, e in answer.errors.items() if isinstance(e, UnstableOffset)})

    async def _in_transactions(self, groups: Sequence[str], deadline: float) -> list[str]:
        """Returns the groups in whose partition of the offsets topic a transaction of any group is open."""
        if not REPORTS_TRANSACTIONS.supported_by((await self._client.any_connection(deadline)).versions):
            return []
        if not self._partitions:
            counts = await partition_counts(self._client, [OFFSETS_TOPIC], deadline)
            self._partitions = counts.get(OFFSETS_TOPIC, 0)
        if not self._partitions:
            return []
        where = {g: TopicPartition(OFFSETS_TOPIC, partition_of_hash(java_hash(g), self._partitions)) for g in groups}
        latest = dict.fromkeys(where.values(), LATEST)
        # The end is read first, so that later commits do not look like open transactions.
        ends = await list_offsets(self._client, self._leaders, latest, deadline)
        stable = await list_offsets(self._client, self._leaders, latest, deadline, read_committed=True)
        return [group for group, tp in where.items() if not _reaches(stable[tp], ends[tp])]

    async def reasons(self, groups: Sequence[str], deadline: float, *, by_deletion: bool) -> dict[str, OffsetMgrError]:
        """Returns, for each group that must not be deleted, the reason: an offset that is not listed, or that no proof
        is possible. With ``by_deletion``, groups for which the third proof is possible have no reason; they are in
        ``unproved`` from now on."""

        async def ask(address: Address, names: list[str]) -> dict[str, bool | OffsetMgrError | None]:
            """Returns whether the third proof is possible; None for a group that does not need another proof."""
            connection = await self._client.node(address).connection(deadline)
            versions = connection.versions
            if address not in self._filters:
                reports = REPORTS_TRANSACTIONS.supported_by(versions)
                self._filters[address] = not reports or await has_authorizer(connection, deadline)
            in_doubt = names if self._filters[address] else await self._in_transactions(names, deadline)
            third = by_deletion and DELETES_OFFSETS.supported_by(versions) and is_before("4.0", versions)
            # Brokers delete the group with the empty id only as a whole, so its deletion proves nothing.
            return {name: third and name != "" if name in in_doubt else None for name in names}

        valid = [group for group in groups if group not in self.accepted and group_id_error(group) is None]
        answers = await self._client.per_group(valid, ask, deadline)
        reasons = {group: answer for group, answer in answers.items() if isinstance(answer, OffsetMgrError)}
        in_doubt = {group: answer for group, answer in answers.items() if isinstance(answer, bool)}
        if not in_doubt or self._client.offsets_topic is None:
            return reasons
        saved, failed = dict[str, Mapping[TopicPartition, bool]](), None
        try:
            saved = await self._client.offsets_topic().partitions_in_log(list(in_doubt), deadline)
        except OffsetMgrError as error:
            failed = error
        # The list is read after the log, so it has every offset that the log has, unless the offset is unseen.
        listed = await self._client.fetch(dict.fromkeys(in_doubt), deadline)
        for group, third in in_doubt.items():
            known = listed[group]
            if isinstance(known, OffsetMgrError):
                reasons[group] = known
            elif failed is not None and third and known.offsets:
                self.unproved[group] = {}
            elif failed is not None:
                reasons[group] = _not_proved(group, failed)
            else:
                shown = {*known.offsets, *known.errors}
                if hidden := {tp: pending for tp, pending in saved[group].items() if tp not in shown}:
                    reasons[group] = _not_listed(group, hidden)
        return reasons

    def remember(self, edit: GroupEdit, result: GroupEditResult) -> None:
        """Keeps the offsets that ``edit`` deleted, in case the third proof of its group fails."""
        for tp, (status, before, _) in result.outcomes.items() if edit.group in self.unproved else ():
            if status is EditStatus.WRITTEN and edit.changes[tp].after is None and isinstance(before, Committed):
                self.unproved[edit.group][tp] = before

    async def delete_by_proof(
        self, group: str, edit: Callable[[list[GroupEdit]], Awaitable[list[GroupEditResult]]], deadline: float
    ) -> None:
        """Makes the coordinator delete a group of ``unproved`` whose listed offsets were deleted. If the coordinator
        keeps the group, writes the offsets back with ``edit`` and raises `GateRefused`."""
        deleted = self.unproved.pop(group)
        state: GroupDescription | OffsetMgrError
        try:
            connection = await self._client.node(await self._client.coordinator(group, deadline)).connection(deadline)
            # With each OffsetDelete the coordinator checks whether the group has an offset, although these are deleted.
            await delete(connection, non_member(group), list(deleted), deadline)
            state = (await self._client.describe([group], deadline))[group]
        except GroupNotFound:
            return
        except OffsetMgrError as error:
            state = error
        why = f"cannot be described after the deletion of its offsets: {state}"
        if isinstance(state, GroupDescription):
            if state.state == "DEAD":
                return
            why = f"still exists ({state.state}) after offsetmgr deleted all offsets that this login sees"
        (back,) = await edit([GroupEdit(group, {tp: Change(one.value(), ABSENT) for tp, one in deleted.items()})])
        restored = "; offsetmgr has committed the deleted offsets again"
        if failures := back.failures:
            first, why_not = next(iter(failures.items()))
            restored = f"; {count_of(len(failures), 'deleted offset')} could not be written back ({first}: {why_not})"
        raise GateRefused(f"group {group!r}", why + restored, Advice("allow Read on {}, {}", OFFSETS_TOPIC, _ACCEPT))


def _reaches(stable: int | OffsetMgrError, end: int | OffsetMgrError) -> bool:
    """Returns whether all records before ``end`` are stable. An error means that this is unknown."""
    return isinstance(stable, int) and isinstance(end, int) and stable >= end


def _not_listed(group: str, hidden: Mapping[TopicPartition, bool]) -> GateRefused:
    """``hidden`` has, for each partition, whether its offset is pending in an open transaction."""
    named = list_of([f"{tp} (pending in a transaction)" if hidden[tp] else str(tp) for tp in sorted(hidden)], 3)
    why = f"has {count_of(len(hidden), 'offset')} that its coordinator does not show to this login: {named}"
    hint = Advice("end the transactions and allow Describe on the topics, {}", _ACCEPT)
    return GateRefused(f"group {group!r}", why, hint)


def _not_proved(group: str, error: OffsetMgrError) -> GateRefused:
    why = f"may have offsets that its coordinator does not show, and {OFFSETS_TOPIC} cannot be read: {error}"
    if isinstance(error, NotAuthorized):
        why = "may have offsets in topics that this login may not describe: brokers with an authorizer leave them out"
    hint = Advice("allow Read on the topic {}, which shows all offsets, {}", OFFSETS_TOPIC, _ACCEPT)
    return GateRefused(f"group {group!r}", why, hint)
