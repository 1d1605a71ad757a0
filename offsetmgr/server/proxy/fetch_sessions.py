"""`FetchSessions`: the fetch sessions (KIP-227) that brokers gave to clients of the relay; pure.

A broker stores the topics of a session, and reads them for any client that names the session's id. A client that named
the session of a replica, or of a tool that reads the offsets topic, would receive that topic's records. So the relay
forwards only ids from responses to its own clients; their sessions contain only topics that the relay has allowed.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from offsetmgr.kafka.protocol.primitives import INT16, Cursor
from offsetmgr.server.network.api import ApiRequest

_FIRST: Final = 7
_FLEXIBLE: Final = 12
_WITHOUT_REPLICA: Final = 15
_BEFORE_SESSION: Final = 13
"""Size of the wait time, minimum and maximum bytes and isolation level; before version 15 the replica's id is in front
of them."""
_RESPONSE_BODY: Final = 8
_MOST: Final = 100_000


class Session(NamedTuple):
    """The session fields of a Fetch."""

    id: int
    epoch: int

    @property
    def begins(self) -> bool:
        """Whether the client asks for a new session."""
        return self.epoch == 0


class FetchSessions:
    """The sessions of all brokers, each by its node id (None: the manager's own port)."""

    def __init__(self) -> None:
        self._given: dict[tuple[int | None, int], None] = {}

    def note(self, node_id: int | None, session_id: int) -> None:
        """Records an id that a broker returned to a client; beyond a limit the oldest are forgotten."""
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
    """The session's id in a whole response (length field first); 0 if there is none. Raises `InvalidRequest`."""
    cursor = Cursor(frame, _RESPONSE_BODY, flexible=version >= _FLEXIBLE)
    cursor.tags()
    cursor.int32()  # throttle time
    cursor.number(INT16)
    return cursor.int32()
