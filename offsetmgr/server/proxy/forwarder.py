"""`Forwarder`: forwards requests to the real broker unread, and lists the forwarded APIs with their versions.

`RequestScreen` looks at each request first: it refuses what touches the managers' own topic, group and transactional
ids, and admin APIs that the rules do not allow.

A request is forwarded only if it is in `FORWARDED`, in a version whose answer is known to name no broker's address and
whose question is known to be none about a group's offsets: an API or a version that is newer than this list could lead
clients past us.  ApiVersions names what both this list and the broker know, so clients ask for nothing else.

Left out on purpose:

- offsets in transactions: AddOffsetsToTxn (25), TxnOffsetCommit (28);
- the group protocols that carry offsets or membership of their own: KIP-848's (68, 69), share groups (76 to 79, 90 to
  92), streams groups (88, 89); clients then use the classic protocol, or report the missing API;
- APIs between brokers and controllers;
- APIs that grant access with the manager's principal: ACLs, SCRAM users, delegation
  tokens, markers of other people's transactions, and the cluster's own voters and features.

And highest versions: Produce below 10 and Fetch below 16, since later ones tell a new leader's real address (KIP-951);
EndTxn below 5 and Produce below 12, since no finalized features are named and so transactions are those of before
KIP-890; AddPartitionsToTxn below 4, which only brokers send; InitProducerId below 6 (KIP-939); DescribeQuorum below 2,
which tells controllers' addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.primitives import INT16, Cursor
from offsetmgr.server.network.api import Answer, ApiRequest, HandlerResult
from offsetmgr.server.proxy.request_screen import RequestScreen
from offsetmgr.server.proxy.upstream import UpstreamConnection

FORWARDED: Final[Mapping[int, tuple[str, int]]] = {
    0: ("Produce", 9),
    1: ("Fetch", 15),
    2: ("ListOffsets", 11),
    19: ("CreateTopics", 7),
    20: ("DeleteTopics", 6),
    21: ("DeleteRecords", 2),
    22: ("InitProducerId", 5),
    23: ("OffsetForLeaderEpoch", 4),
    24: ("AddPartitionsToTxn", 3),
    26: ("EndTxn", 4),
    32: ("DescribeConfigs", 4),
    33: ("AlterConfigs", 2),
    34: ("AlterReplicaLogDirs", 2),
    35: ("DescribeLogDirs", 4),
    37: ("CreatePartitions", 3),
    43: ("ElectLeaders", 2),
    44: ("IncrementalAlterConfigs", 1),
    45: ("AlterPartitionReassignments", 1),
    46: ("ListPartitionReassignments", 0),
    48: ("DescribeClientQuotas", 1),
    49: ("AlterClientQuotas", 1),
    55: ("DescribeQuorum", 1),
    61: ("DescribeProducers", 0),
    65: ("DescribeTransactions", 0),
    66: ("ListTransactions", 2),
    71: ("GetTelemetrySubscriptions", 0),
    72: ("PushTelemetry", 0),
    74: ("ListConfigResources", 1),
    75: ("DescribeTopicPartitions", 0),
}
"""Name and highest version of each API that is forwarded."""

_PRODUCE_FLEXIBLE: Final = 9


def common(broker: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """The versions of forwarded APIs that a broker speaks too."""
    return {
        key: (broker[key][0], min(broker[key][1], highest))
        for key, (_, highest) in FORWARDED.items()
        if key in broker and broker[key][0] <= highest
    }


class Forwarder:
    """See `ForwardingHandler`."""

    def __init__(self, screen: RequestScreen) -> None:
        self._screen = screen

    def handle(self, request: ApiRequest) -> HandlerResult:
        _, highest = FORWARDED.get(request.api_key, ("", -1))
        if request.version > highest:
            raise InvalidRequest(f"API {request.api_key} version {request.version}", "is not spoken here")
        return self._screen.screened(request, partial(_forward, request))


def _forward(request: ApiRequest, upstream: UpstreamConnection) -> HandlerResult:
    if request.api_key == ApiKey.PRODUCE and not _wants_answer(request):
        upstream.post(request)
        return None if upstream.backpressure() is None else _after_backpressure(upstream)
    return upstream.forward(request)


async def _after_backpressure(upstream: UpstreamConnection) -> Answer:
    while (capacity := upstream.backpressure()) is not None:
        await capacity
    return None


def _wants_answer(request: ApiRequest) -> bool:
    """Whether a Produce request asks for acknowledgement: brokers do not answer those with acks=0."""
    flexible = request.version >= _PRODUCE_FLEXIBLE
    cursor = Cursor(request.frame, request.body(flexible=flexible), flexible=flexible)
    if request.version >= 3:
        cursor.nullable_string()  # transactional id
    return cursor.number(INT16) != 0
