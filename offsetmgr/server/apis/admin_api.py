"""The manager's own admin API, which `offsetmgr.kafka.client.managers` calls. The API returns the manager's
status, or one page of a shard's offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from offsetmgr.core.errors import InvalidRequest, OffsetMgrError
from offsetmgr.kafka.client.managers import INSPECT, MAX_DUMP_ROWS, VERSION
from offsetmgr.server.network.requests import NEVER_FLEXIBLE, Api, ApiRequest
from offsetmgr.server.security.authorization import Authorizer, Operation

Dump: TypeAlias = Callable[[int, Sequence[Any] | None, int], Sequence[Mapping[str, Any]]]
"""Returns offsets of a shard in key order, by the number of the shard, the key after which it starts (group, topic,
partition), and the largest number of offsets. Raises `OffsetMgrError` if this process does not hold the shard."""


def admin_api(status: Callable[[], Mapping[str, Any]], dump: Dump, authorizer: Authorizer) -> Api:
    """Creates the admin API's entry for the table of APIs. ``status`` returns the data that `manager status` shows for
    one process, as JSON-compatible types. ``authorizer`` decides who may use an operation on all groups."""

    def handle(request: ApiRequest) -> bytes:
        try:
            question = json.loads(request.frame[request.cursor(flexible=False).at :])
            if not isinstance(question, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise InvalidRequest("admin request", "it is not a JSON object") from None
        needed = Operation.READ if question.get("what") == "dump" else Operation.DESCRIBE
        if not authorizer.allows(request.connection.principal or "", needed, "*", "groups"):
            why = f"this needs the operation {needed.value} on all groups (*)"
            return json.dumps({"error": why, "kind": "not-authorized"}).encode()
        return json.dumps(_result(status, dump, question)).encode()

    return Api(INSPECT, VERSION, VERSION, NEVER_FLEXIBLE, handle)


def _result(status: Callable[[], Mapping[str, Any]], dump: Dump, question: dict[str, Any]) -> Mapping[str, Any]:
    what = question.get("what")
    try:
        if what == "status":
            return status()
        if what == "dump":
            partition, max_rows = question.get("partition"), question.get("most", MAX_DUMP_ROWS)
            after = question.get("after")
            if not isinstance(partition, int) or not isinstance(max_rows, int):
                return {"error": "partition and most are numbers"}
            match after:
                case None | [str(), str(), int()]:
                    pass
                case _:
                    return {"error": "after is [group, topic, partition]"}
            return {"rows": dump(partition, after, max(1, min(max_rows, MAX_DUMP_ROWS)))}
    except OffsetMgrError as error:
        return {"error": str(error)}
    return {"error": f"unknown admin request {what!r}; this manager may be of an older version"}
