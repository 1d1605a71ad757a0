"""A simulated group coordinator for the managers' group. It behaves like Kafka's (GroupCoordinator.scala), also in its
failures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.protocol.frames import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import decode_request

if TYPE_CHECKING:
    from simulated_group import World

SESSION_TIMEOUT_S: Final = 10.0
REBALANCE_TIMEOUT_S: Final = 30.0

Reply = Callable[..., None]


@dataclass
class SimulatedMember:
    metadata: bytes
    last_heartbeat: float
    joining: Reply | None = None
    syncing: Reply | None = None
    assignment: bytes = b""


class Coordinator:
    """One broker's group coordinator, for one group."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"broker-{number}"
        self.address = Address(self.name, 9092)
        self.stopped = False
        self.loading = False
        self.leads = False
        self.zombie = False
        self.queue: list[Callable[[], None]] = []
        self.received: dict[str, list[bytes]] = {}
        """All metadata of each member id."""
        self.stored: dict[str, Any] = {}
        self._forget()

    def _forget(self) -> None:
        self.state = "Empty"
        self.generation = 0
        self.leader: str | None = None
        self.members: dict[str, SimulatedMember] = {}
        self.pending: set[str] = set()
        self.round = -1
        self.unsynced: set[str] = set()

    # --- the broker ---------------------------------------------------------------------------------

    def load(self) -> None:
        self._forget()
        self.loading, self.leads, self.zombie = True, True, False

    def lead(self, stored: dict[str, Any]) -> None:
        self.loading, self.leads = False, True
        self.stored = stored
        if stored:
            self.state, self.generation, self.leader = "Stable", stored["generation"], stored["leader"]
            for member_id, (metadata, assignment) in stored["members"].items():
                self.members[member_id] = SimulatedMember(metadata, self.world.now, assignment=assignment)
                self._watch(member_id)
            if not self.members:
                self.state = "Empty"

    def stop(self) -> None:
        self.stopped = True

    def wake(self, *, zombie: bool) -> None:
        """Resumes the broker. A zombie still acts as the coordinator for a few seconds."""
        self.stopped = False
        self.zombie = zombie
        if zombie:
            self.world.after(self.world.random.uniform(0, 3), self.resign)
        elif self.world.active is not self:
            self.queue.clear()
            self.resign()
        waiting, self.queue = self.queue, []
        for work in waiting:
            work()

    def resign(self) -> None:
        if self.world.active is self:
            return
        for member in self.members.values():
            for reply in (member.joining, member.syncing):
                if reply:
                    reply(error_code=ErrorCode.NOT_COORDINATOR)
        self._forget()
        self.leads = self.zombie = False

    def receive(self, request: Request | EncodedRequest, reply: Reply) -> None:
        if self.stopped:
            self.queue.append(lambda: self.receive(request, reply))
            return
        if not self.leads:
            reply(error_code=ErrorCode.NOT_COORDINATOR)
        elif self.loading:
            codes: dict[int, int] = {ApiKey.HEARTBEAT: 0, ApiKey.SYNC_GROUP: ErrorCode.REBALANCE_IN_PROGRESS}
            reply(error_code=codes.get(request.api_key, 14))
        else:
            handlers: dict[int, Callable[[Mapping[str, Any], Reply], None]] = {
                ApiKey.JOIN_GROUP: self._on_join_group,
                ApiKey.SYNC_GROUP: self._on_sync_group,
                ApiKey.HEARTBEAT: self._on_heartbeat,
                ApiKey.LEAVE_GROUP: self._on_leave_group,
                ApiKey.OFFSET_COMMIT: self._on_offset_commit,
            }
            if isinstance(request, EncodedRequest):  # OffsetCommit
                message: Mapping[str, Any] = decode_request(request.api_key, request.version, request.body, 0)
            else:
                message = request.message
            handlers[request.api_key](message, reply)

    def repeat_metadata(self) -> None:
        """A member without the managers' secret repeats earlier metadata of a manager under the id of this manager."""
        if self.members:
            member_id = self.world.random.choice([*self.members])
            metadata = self.world.random.choice(self.received[member_id])
            self.world.log(f"metadata of {member_id} is repeated")
            self._on_join_group({"member_id": member_id, "protocols": [{"metadata": metadata}]}, lambda **_: None)

    # --- the group ----------------------------------------------------------------------------------

    def _on_join_group(self, request: Mapping[str, Any], reply: Reply) -> None:
        member_id, metadata = request["member_id"], request["protocols"][0]["metadata"]
        if member_id:
            self.received.setdefault(member_id, []).append(metadata)
        if not member_id:
            member_id = f"m{next(self.world._numbers)}"
            self.pending.add(member_id)
            self.world.after(SESSION_TIMEOUT_S, lambda: self._drop_pending(member_id))
            reply(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        elif member_id in self.pending:
            self.pending.discard(member_id)
            self.members[member_id] = SimulatedMember(metadata, self.world.now, joining=reply)
            self._watch(member_id)
            self._prepare()
            self._maybe_complete()
        elif member_id not in self.members:
            reply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            member = self.members[member_id]
            same = member.metadata == metadata and (self.state == "Completing" or member_id != self.leader)
            if self.state in ("Completing", "Stable") and same:
                reply(**self._joined(member_id))
                return
            member.metadata, member.joining = metadata, reply
            self._prepare()
            self._maybe_complete()

    def _on_sync_group(self, request: Mapping[str, Any], reply: Reply) -> None:
        member = self.members.get(request["member_id"])
        if member is None:
            reply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        elif request["generation_id"] != self.generation:
            reply(error_code=ErrorCode.ILLEGAL_GENERATION)
        elif self.state == "Preparing":
            reply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        elif self.state == "Stable":
            member.last_heartbeat = self.world.now
            self._watch(request["member_id"])
            reply(error_code=0, assignment=member.assignment)
        else:
            member.syncing = reply
            self.unsynced.discard(request["member_id"])
            if request["member_id"] == self.leader:
                found = {a["member_id"]: a["assignment"] for a in request["assignments"]}
                generation = self.generation
                self.world.after(self.world.latency(), lambda: self._store(generation, found))

    def _store(self, generation: int, assignments: dict[str, bytes]) -> None:
        """Completes the rebalance after the assignment is replicated, unless another broker leads the partition now."""
        if self.stopped:
            self.queue.append(lambda: self._store(generation, assignments))
            return
        if self.zombie or self.state != "Completing" or self.generation != generation:
            return
        self.state = "Stable"
        for member_id, member in self.members.items():
            member.assignment = assignments.get(member_id, b"")
        self._persist()
        for member_id, member in self.members.items():
            member.last_heartbeat = self.world.now
            self._watch(member_id)
            if member.syncing:
                member.syncing(error_code=0, assignment=member.assignment)
                member.syncing = None

    def _persist(self) -> None:
        self.stored = {
            "generation": self.generation,
            "leader": self.leader,
            "members": {m: (member.metadata, member.assignment) for m, member in self.members.items()},
        }

    def _on_heartbeat(self, request: Mapping[str, Any], reply: Reply) -> None:
        member = self.members.get(request["member_id"])
        if member is None:
            reply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        elif request["generation_id"] != self.generation:
            reply(error_code=ErrorCode.ILLEGAL_GENERATION)
        else:
            member.last_heartbeat = self.world.now
            self._watch(request["member_id"])
            reply(error_code=ErrorCode.REBALANCE_IN_PROGRESS if self.state == "Preparing" else 0)

    def _on_leave_group(self, request: Mapping[str, Any], reply: Reply) -> None:
        for identity in request["members"]:
            self._remove(identity["member_id"])
        reply(error_code=0)

    def _on_offset_commit(self, request: Mapping[str, Any], reply: Reply) -> None:
        """Responds after the commit is replicated. A broker that is no longer the coordinator can replicate nothing."""
        member = self.members.get(request["member_id"])
        if member is None:
            reply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        elif request["generation_id_or_member_epoch"] != self.generation:
            reply(error_code=ErrorCode.ILLEGAL_GENERATION)
        elif self.state == "Completing":
            reply(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            member.last_heartbeat = self.world.now
            self._watch(request["member_id"])
            self.world.after(self.world.latency(), lambda: self._replicated(reply))

    def _replicated(self, reply: Reply) -> None:
        if self.stopped:
            self.queue.append(lambda: self._replicated(reply))
        elif self.world.active is self:
            reply(error_code=0)
        else:
            reply(error_code=ErrorCode.NOT_COORDINATOR)

    def _watch(self, member_id: str) -> None:
        self.world.after(SESSION_TIMEOUT_S, lambda: self._expire(member_id))

    def _expire(self, member_id: str) -> None:
        if self.stopped:
            self.queue.append(lambda: self._expire(member_id))
            return
        member = self.members.get(member_id)
        is_silent = member and self.world.now >= member.last_heartbeat + SESSION_TIMEOUT_S
        if member and is_silent and not (member.joining or member.syncing):
            self._remove(member_id)

    def _drop_pending(self, member_id: str) -> None:
        if member_id in self.pending:
            self.pending.discard(member_id)
            self._maybe_complete()

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self.world.log(f"{self.name} removes {member_id} in {self.state} {self.generation}")
        for reply in (member.joining, member.syncing):
            if reply:
                reply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        if self.state in ("Stable", "Completing"):
            self._prepare()
        self._maybe_complete()

    def _prepare(self) -> None:
        if self.state == "Preparing":
            return
        for member in self.members.values():
            if member.syncing:
                member.syncing(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
                member.syncing = None
        self.state = "Preparing"
        number = self.round = next(self.world._numbers)
        self.world.after(REBALANCE_TIMEOUT_S, lambda: self._force(number))

    def _force(self, number: int) -> None:
        if self.stopped:
            self.queue.append(lambda: self._force(number))
        elif self.state == "Preparing" and self.round == number:
            self._complete()

    def _maybe_complete(self) -> None:
        if self.state == "Preparing" and not self.pending and all(m.joining for m in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        late = [m for m, member in self.members.items() if not member.joining]
        if late:
            self.world.log(f"{self.name} removes the late members {late}")
        for member_id in late:
            del self.members[member_id]
        self.generation += 1
        if not self.members:
            self.state, self.leader = "Empty", None
            if not self.zombie:
                self._persist()
            return
        self.state = "Completing"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        self.unsynced = set(self.members)
        number = self.round
        self.world.after(REBALANCE_TIMEOUT_S, lambda: self._expire_unsynced(number))
        for member_id, member in self.members.items():
            assert member.joining
            member.joining(**self._joined(member_id))
            member.joining = None
            member.last_heartbeat = self.world.now
            self._watch(member_id)

    def _expire_unsynced(self, number: int) -> None:
        if self.stopped:
            self.queue.append(lambda: self._expire_unsynced(number))
        elif self.state == "Completing" and self.round == number:
            for member_id in self.unsynced:
                self.world.log(f"{self.name} removes {member_id}, which has not synced")
                self.members.pop(member_id, None)
            self._prepare()
            self._maybe_complete()

    def _joined(self, member_id: str) -> dict[str, Any]:
        members = self.members.items() if member_id == self.leader else ()
        return {
            "error_code": 0,
            "member_id": member_id,
            "generation_id": self.generation,
            "leader": self.leader,
            "members": [{"member_id": m, "metadata": member.metadata} for m, member in members],
        }
