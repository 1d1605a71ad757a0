"""`FetchSessions`: the fetch sessions (KIP-227) that brokers gave to clients of the relay; pure.

A broker keeps the topics of a session, and reads them for whoever names the session's id.  A client that named the
session of a replica or of a tool that reads the offsets topic would be given that topic's records.  So the relay passes
on only ids that it has seen in answers to its own clients; their sessions hold what the relay has let pass.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from offsetmgr.kafka.protocol.primitives import INT16, Cursor
from offsetmgr.server.network.api import ApiRequest

_FIRST: Final = 7
_FLEXIBLE: Final = 12
_WITHOUT_REPLICA: Final = 15
_BEFORE_SESSION: Final = 13
"""Bytes of wait, least and most bytes, isolation level; before version 15 the replica's id stands before them."""
_RESPONSE_BODY: Final = 8
_MOST: Final = 100_000


class Session(NamedTuple):
    """What a Fetch says of its session."""

    id: int
    epoch: int

    @property
    def begins(self) -> bool:
        """Whether the client asks for a new session."""
        return self.epoch == 0


class FetchSessions:
    """Of all brokers, each by its node id (None: the manager's own port)."""

    def __init__(self) -> None:
        self._given: dict[tuple[int | None, int], None] = {}

    def note(self, node_id: int | None, session_id: int) -> None:
        """A broker has answered a client with this id; the oldest are forgotten once there are many."""
        if session_id:
            self._given.pop((node_id, session_id), None)
            self._given[node_id, session_id] = None
            if len(self._given) > _MOST:
                del self._given[next(iter(self._given))]

    def given(self, node_id: int | None, session_id: int) -> bool:
        return (node_id, session_id) in self._given


def session_of(request: ApiRequest) -> Session | None:
    """None for versions without sessions. Raises `InvalidRequest`."""
    version = request.version
    if version < _FIRST:
        return None
    flexible = version >= _FLEXIBLE
    cursor = Cursor(request.frame, request.body(flexible=flexible), flexible=flexible)
    cursor.take(_BEFORE_SESSION if version >= _WITHOUT_REPLICA else _BEFORE_SESSION + 4)
    return Session(cursor.int32(), cursor.int32())


def session_in(version: int, frame: bytes) -> int:
    """The session's id in a whole answer (length field first); 0 for none. Raises `InvalidRequest`."""
    cursor = Cursor(frame, _RESPONSE_BODY, flexible=version >= _FLEXIBLE)
    cursor.tags()
    cursor.int32()  # throttle time
    cursor.number(INT16)
    return cursor.int32()
