"""`RunningGroupStore`, the interface of stores that edit groups while their consumers run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol, runtime_checkable

from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation
from offsetmgr.core.model import Offset, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult

CLASSIC_HEARTBEAT_S: Final = 3.0
"""The default of ``heartbeat.interval.ms`` of consumers in seconds. Brokers do not know the setting of a consumer."""


WAIT_S: Final = 30.0
"""The maximum time in seconds for which an edit waits until the members of a group are back."""


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


class RunningEdit(NamedTuple):
    """How to edit groups whose consumers run. The consumers leave their group for some seconds, and continue at the new
    offsets.

    ``on_step`` receives a line of text about each step. ``wait_s`` is the time in seconds for which an edit waits until
    the consumers are back. If ``conditional`` is True, the edit of a group fails if its members have committed since
    the plan was made.

    Example::

        from offsetmgr import OffsetAdmin, RunningEdit, ToEarliest

        with OffsetAdmin("kafka://h1:9092", running=RunningEdit(on_step=print)) as admin:
            report = admin.plan_reset("shop", ToEarliest(), topics="orders").execute()
            for group, seen in report.evidence.items():
                print(group, seen)
            for path in report.before_images:
                admin.plan_undo(path, allow_rewind=True).execute()
    """

    on_step: Callable[[str], None] = lambda _text: None
    wait_s: float = WAIT_S
    conditional: bool = False


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
