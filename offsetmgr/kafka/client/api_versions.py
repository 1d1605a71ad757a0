"""Reads the features that a server announces in its ApiVersions response, such as offsetmgr's extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from weakref import WeakKeyDictionary

from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Request

_VERSION: Final = 3
"""The first version with features."""

_known: WeakKeyDictionary[BrokerConnection, Mapping[str, int]] = WeakKeyDictionary()


async def features(connection: BrokerConnection, timeout_s: float) -> Mapping[str, int]:
    """Returns the maximum level of each announced feature, by name.

    The function caches the result for each connection. A cache for each address could be wrong, because after a restart
    an older release of the server may listen at the same address. Raises `TimedOut`, `Unreachable`, `ServerError`.
    """
    found = _known.get(connection)
    if found is None:
        found = _known[connection] = await _request_features(connection, timeout_s)
    return found


async def _request_features(connection: BrokerConnection, timeout_s: float) -> Mapping[str, int]:
    low, high = connection.versions.get(ApiKey.API_VERSIONS, (0, 0))
    if not low <= _VERSION <= high:
        return {}
    software = {"client_software_name": "offsetmgr", "client_software_version": "1"}
    answer = await connection.call(Request(ApiKey.API_VERSIONS, _VERSION, software), timeout_s)
    return {feature["name"]: feature["max_version"] for feature in answer.get("supported_features", ())}
