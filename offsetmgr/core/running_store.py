"""`RunningGroupStore`, the interface of stores that edit groups while their consumers run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation
from offsetmgr.core.model import Offset, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult

CLASSIC_HEARTBEAT_S: Final = 3.0
"""The default of ``heartbeat.interval.ms`` of consumers in seconds. Brokers do not know the setting of a consumer."""


class OtherGroupKind(UnsupportedOperation):
    """The group is a share group or a group of the Streams protocol, which offsetmgr does not edit. ``state`` is the
    state of the group, as in `GroupDescription`."""

    state = "UNKNOWN"


class RunningGroup(NamedTuple):
    """A group before an edit: the number of its members, whether it uses the consumer protocol (KIP-848), and the
    interval in seconds in which its members send heartbeats."""

    members: int
    consumer_protocol: bool = False
    heartbeat_s: float = CLASSIC_HEARTBEAT_S


class RunningEditListener(Protocol):
    """Callbacks of `RunningGroupStore.edit_running`. They run in a thread of the store."""

    def on_before(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """Receives the before-images of a group: the offsets at the moment at which its members can no longer commit.
        The store writes nothing before the function has returned. If it raises `OffsetMgrError`, the edit of the group
        fails with this error."""
        ...

    def on_step(self, text: str) -> None:
        """Receives a line that describes the progress."""
        ...


@runtime_checkable
class RunningGroupStore(Protocol):
    """A store that can change the offsets of a group without stopping its consumers."""

    def inspect_running(self, groups: Iterable[str]) -> Iterator[tuple[str, RunningGroup | OffsetMgrError]]:
        """Describes groups before an edit. The error of a group is `UnsupportedOperation` if an edit cannot be exact
        while its members run."""
        ...

    def edit_running(
        self, edits: Iterable[GroupEdit], listener: RunningEditListener, *, wait_s: float, conditional: bool
    ) -> Iterator[GroupEditResult]:
        """Executes edits, one group at a time, and yields one result for each edit. The members leave their group for a
        moment, and continue at the edited offsets.

        If ``conditional`` is True, a change fails with `Conflict` if its ``expected`` differs from the offset at which
        the members were stopped. Otherwise ``expected`` applies only to groups without members. ``wait_s`` is the
        maximum time in seconds for which the store waits until the members are back. `how` of a result describes the
        evidence that the members continue at the new offsets. `atomic` is False if the evidence is incomplete.
        """
        ...
