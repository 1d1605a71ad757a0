"""The manager's own admin API, which `offsetmgr.kafka.client.manager_admin` calls. The API returns the manager's
status, or one page of a shard's offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from offsetmgr.core.errors import InvalidRequest, OffsetMgrError
from offsetmgr.kafka.client.manager_api import INSPECT, MAX_DUMP_ROWS, VERSION
from offsetmgr.server.network.api import Api, ApiRequest
from offsetmgr.server.security.authorization import Operation

_NEVER_FLEXIBLE: Final = 32767


class AdminBackend(Protocol):
    """The data that the admin API returns."""

    def status(self) -> Mapping[str, Any]:
        """Returns the data that `manager status` shows for one process, as JSON-compatible types."""
        ...

    def dump(self, partition: int, after: Sequence[Any] | None, max_rows: int) -> Sequence[Mapping[str, Any]]:
        """Returns up to ``max_rows`` offsets of a shard in key order, starting after the key ``after`` (group, topic,
        partition). Raises `OffsetMgrError` if this process does not hold the shard."""
        ...


def admin_api(backend: AdminBackend, allowed: Callable[[str | None, Operation], bool]) -> Api:
    """Creates the admin API's entry for the table of APIs. ``allowed`` tests whether a principal may use an operation
    on all groups."""

    def handle(request: ApiRequest) -> bytes:
        try:
            question = json.loads(request.frame[request.body(flexible=False) :])
            if not isinstance(question, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise InvalidRequest("admin request", "it is not a JSON object") from None
        needed = Operation.READ if question.get("what") == "dump" else Operation.DESCRIBE
        if not allowed(request.connection.principal, needed):
            return _answer(
                {"error": f"this needs the operation {needed.value} on all groups (*)", "kind": "not-authorized"}
            )
        return _answer(_result(backend, question))

    return Api(INSPECT, "Inspect", VERSION, VERSION, _NEVER_FLEXIBLE, handle)


def _result(backend: AdminBackend, question: dict[str, Any]) -> Mapping[str, Any]:
    what = question.get("what")
    try:
        if what == "status":
            return backend.status()
        if what == "dump":
            partition, max_rows = question.get("partition"), question.get("most", MAX_DUMP_ROWS)
            if not isinstance(partition, int) or not isinstance(max_rows, int):
                return {"error": "partition and most are numbers"}
            return {"rows": backend.dump(partition, question.get("after"), max(1, min(max_rows, MAX_DUMP_ROWS)))}
    except OffsetMgrError as error:
        return {"error": str(error)}
    return {"error": f"unknown admin request {what!r}; this manager may be of an older version"}


def _answer(found: Mapping[str, Any]) -> bytes:
    return json.dumps(found).encode()
