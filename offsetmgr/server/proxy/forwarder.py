"""Forwards requests to the real broker unread. `API_RESOURCES` has the forwarded APIs and their
versions.

`RequestFilter` checks each request before it is forwarded. The filter rejects requests for the managers' own topic,
group and transactional ids, and requests of admin APIs that no rule allows.

The responses of the forwarded versions contain no broker addresses, and the requests of these versions do not concern a
group's offsets. If the relay forwarded unknown APIs or versions, clients might bypass the relay. For a forwarded API,
the ApiVersions response lists only versions that the relay forwards and the broker supports, so clients use no other
versions.

The relay deliberately does not forward:

- offsets in transactions: AddOffsetsToTxn (25), TxnOffsetCommit (28);
- group protocols with their own offsets or membership: KIP-848's (68, 69), share groups (76 to 79, 90 to 92), streams
  groups (88, 89, 93). Without these APIs, clients use the classic protocol or report an error;
- APIs between brokers and controllers;
- APIs that would grant access with the manager's principal: ACLs, SCRAM users, delegation tokens, transaction markers,
  and the cluster's voters, controllers and features.

The relay does not forward the later versions of some APIs:

- Produce from 10 on and Fetch from 16 on: their responses contain a new leader's real address (KIP-951);
- EndTxn from 5 on: the relay reports no finalized features, so clients use the transaction protocol that preceded
  KIP-890;
- AddPartitionsToTxn from 4 on: only brokers send these versions;
- InitProducerId from 6 on (KIP-939);
- DescribeQuorum from 2 on: the responses contain the controllers' addresses.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import INT16
from offsetmgr.server.network.requests import Answer, ApiRequest, HandlerResult
from offsetmgr.server.proxy.api_resources import API_RESOURCES
from offsetmgr.server.proxy.request_filter import RequestFilter
from offsetmgr.server.proxy.upstream import UpstreamConnection

_PRODUCE_FLEXIBLE: Final = 9


def forward(request_filter: RequestFilter, request: ApiRequest) -> HandlerResult:
    """Forwards a request of a logged-in connection. Raises `InvalidRequest` if the relay does not forward its API or
    version."""
    api = API_RESOURCES.get(request.api_key)
    if api is None or request.version > api.highest:
        raise InvalidRequest(f"API {request.api_key} version {request.version}", "is not supported by the relay")
    return request_filter.filter(request, partial(_forward, request))


def _forward(request: ApiRequest, upstream: UpstreamConnection) -> HandlerResult:
    if request.api_key == ApiKey.PRODUCE and not _expects_response(request):
        upstream.send_oneway(request)
        return None if upstream.capacity is None else _after_backpressure(upstream)
    return upstream.forward(request)


async def _after_backpressure(upstream: UpstreamConnection) -> Answer:
    while (capacity := upstream.capacity) is not None:
        await capacity
    return None


def _expects_response(request: ApiRequest) -> bool:
    """Whether the broker responds to this Produce request. The broker does not respond if acks=0."""
    cursor = request.cursor(flexible=request.version >= _PRODUCE_FLEXIBLE)
    if request.version >= 3:
        cursor.nullable_string()  # transactional id
    return cursor.number(INT16) != 0
