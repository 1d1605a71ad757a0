"""`FetchSessions`: the fetch sessions (KIP-227) that clients opened through the relay. Pure.

A broker stores the topics of a session, and returns their records to any client that sends the session's id. Sessions
of replicas, and of tools that read the offsets topic, contain the offsets topic. A client that sent the id of such a
session would receive the records of the offsets topic. Sessions of other clients contain topics that the client may not
be allowed to read. So the relay forwards only session ids that a broker returned to the same principal through the
relay: these sessions contain only allowed topics.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from offsetmgr.kafka.protocol.schema_codec import INT16
from offsetmgr.server.network.requests import ApiRequest, ClientSession
from offsetmgr.server.proxy.response_rewrite import response_body

_FIRST: Final = 7
_FLEXIBLE: Final = 12
_WITHOUT_REPLICA: Final = 15
_BEFORE_SESSION: Final = 13
"""Size of the fields in front of the session: wait time, minimum and maximum bytes, isolation level. Before version 15,
the replica's id precedes these fields."""
_MAX_SESSIONS: Final = 100_000


class Session(NamedTuple):
    """The session id and epoch in a Fetch request. With epoch 0, the client asks for a new session."""

    id: int
    epoch: int


class FetchSessions:
    """The known sessions, each with its principal. A session is identified by the session id, and by the node id of the
    port to which the client is connected (None for the manager's own port)."""

    def __init__(self) -> None:
        self._known: dict[tuple[int | None, int], str | None] = {}

    def record(self, client: ClientSession, session_id: int) -> None:
        """Records a session id from a broker's response. If too many sessions are known, removes the least recently
        recorded session."""
        if session_id:
            self._known.pop((client.node_id, session_id), None)
            self._known[client.node_id, session_id] = client.principal
            if len(self._known) > _MAX_SESSIONS:
                del self._known[next(iter(self._known))]

    def is_known(self, client: ClientSession, session_id: int) -> bool:
        """Whether the session belongs to the client's principal."""
        key = (client.node_id, session_id)
        return key in self._known and self._known[key] == client.principal


def session_of(request: ApiRequest) -> Session | None:
    """Reads the session of a Fetch request; None for versions without sessions. Raises `InvalidRequest`."""
    version = request.version
    if version < _FIRST:
        return None
    cursor = request.cursor(flexible=version >= _FLEXIBLE)
    cursor.take(_BEFORE_SESSION if version >= _WITHOUT_REPLICA else _BEFORE_SESSION + 4)
    return Session(cursor.int32(), cursor.int32())


def session_in(version: int, frame: bytes) -> int:
    """Reads the session id from the first bytes of a Fetch response (with its length field); 0 if the response belongs
    to no session. Raises `InvalidRequest`."""
    cursor = response_body(frame, flexible=version >= _FLEXIBLE)
    cursor.int32()  # throttle time
    cursor.number(INT16)
    return cursor.int32()
