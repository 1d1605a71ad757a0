"""`PeerLiveness`: decides from the results of TCP connections whether the process of another manager is dead. Pure.

A manager keeps an idle connection to each other manager, at the address for clients. When a process dies, its operating
system closes its connections and refuses new ones, because no process listens at the port any more. Both together are
the proof: the peer has closed an established connection, and several attempts to connect again, spread over a moment,
were all refused. Everything else decides nothing, and the coordinator's session timeout applies:

- A frozen process and a cut network close and refuse nothing. Connections to them time out.
- A manager that closes idle connections, or has too many of them, still accepts new ones.
- A port that has refused connections from the start may be misconfigured, or blocked for this process.

The proof can be wrong if the address is not the manager's own: a proxy or a load balancer in front of the manager may
close and refuse connections while the manager is alive. Therefore a removed manager is still prevented from answering
with outdated offsets (`lease`). It rejoins at once; until the address accepts connections again, it is not removed a
second time.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

REFUSALS: Final = 3
"""The number of consecutive refused connections that prove the death."""
REFUSAL_INTERVAL_S: Final = 0.1
"""The pause between two attempts to connect to a peer that has closed its connection."""
_MIN_REFUSED_S: Final = (REFUSALS - 1) * REFUSAL_INTERVAL_S * 0.9
"""The minimum time from the first to the last of the refused connections."""


class ConnectionAttempt(Enum):
    """The result of an attempt to connect to a peer."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNDECIDED = "undecided"
    """The attempt timed out, or the host is unreachable or has no address."""


class PeerLiveness:
    """The state of one peer. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._lost = False
        """Whether the peer has closed an established connection and has accepted no other connection since."""
        self._refusals = 0
        self._refused_since = 0.0

    @property
    def suspected(self) -> bool:
        """Whether the peer has closed its connection, so that the next attempts to connect decide."""
        return self._lost

    def on_attempt(self, result: ConnectionAttempt, now: float) -> None:
        """Records the result of an attempt to connect that ended at ``now``."""
        if result is ConnectionAttempt.REFUSED:
            if self._refusals == 0:
                self._refused_since = now
            self._refusals += 1
            return
        self._refusals = 0
        if result is ConnectionAttempt.ACCEPTED:
            self._lost = False

    def on_closed(self, *, by_peer: bool) -> None:
        """Records that the established connection has ended. ``by_peer`` is False if it ended for another reason, such
        as an unreachable host; then refused connections prove nothing until the peer has accepted one again."""
        self._lost = by_peer
        self._refusals = 0

    def dead(self, now: float) -> bool:
        """Returns whether the process of the peer is dead."""
        return self._lost and self._refusals >= REFUSALS and now - self._refused_since >= _MIN_REFUSED_S
