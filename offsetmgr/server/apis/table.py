"""Builds the table of the APIs that the listener answers itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.server.apis import cluster, commit_codec, fetch_codec, groups, list_offsets, offsets, sasl, versions
from offsetmgr.server.apis.api_context import ApiContext, decoded
from offsetmgr.server.network.requests import NEVER_FLEXIBLE, Api, Concurrency


def listener_apis(context: ApiContext) -> list[Api]:
    """Returns the table. It contains the SASL APIs only if authentication is configured."""

    def api(key: int, low: int, high: int, flexible: int, handle: Callable[..., Any], *rest: Any, **more: Any) -> Api:
        return Api(key, low, high, flexible, partial(handle, context), *rest, **more)

    commits, fetches, unordered = Concurrency.COMMITS, Concurrency.FETCHES, Concurrency.UNORDERED
    prepare_commit = partial(offsets.prepare_commit, context)
    commit_versions = (commit_codec.MIN_VERSION, commit_codec.MAX_VERSION, commit_codec.FLEXIBLE)
    fetch_versions = (fetch_codec.MIN_VERSION, fetch_codec.MAX_VERSION, fetch_codec.FLEXIBLE)
    own_versions = (versions.MIN_VERSION, versions.MAX_VERSION, versions.FLEXIBLE)
    apis = [
        api(ApiKey.LIST_OFFSETS, 1, 10, 6, list_offsets.list_offsets, prepare=list_offsets.prepare),
        api(ApiKey.METADATA, 0, 13, 9, cluster.metadata, prepare=decoded),
        api(ApiKey.FIND_COORDINATOR, 0, 6, 3, cluster.find_coordinator, unordered, prepare=decoded),
        api(ApiKey.API_VERSIONS, *own_versions, versions.api_versions, before_login=True),
        api(ApiKey.DESCRIBE_CLUSTER, 0, 2, 0, cluster.describe_cluster),
        api(ApiKey.OFFSET_COMMIT, *commit_versions, offsets.offset_commit, commits, prepare=prepare_commit),
        api(ApiKey.OFFSET_FETCH, *fetch_versions, offsets.offset_fetch, fetches, prepare=offsets.prepare_fetch),
        api(ApiKey.OFFSET_DELETE, 0, 0, NEVER_FLEXIBLE, offsets.offset_delete, prepare=decoded),
        api(ApiKey.DESCRIBE_GROUPS, 0, 6, 5, groups.describe_groups, prepare=decoded),
        api(ApiKey.LIST_GROUPS, 0, 5, groups.LIST_FLEXIBLE, groups.list_groups, prepare=decoded),
        api(ApiKey.DELETE_GROUPS, 0, 2, 2, groups.delete_groups, prepare=decoded),
    ]
    if context.authentication is None:
        return apis
    handshake = partial(sasl.sasl_handshake, context.authentication)
    authenticate = partial(sasl.sasl_authenticate, context.authentication)
    return [
        *apis,
        Api(ApiKey.SASL_HANDSHAKE, 1, 1, NEVER_FLEXIBLE, handshake, before_login=True),
        Api(ApiKey.SASL_AUTHENTICATE, 0, 2, 2, authenticate, before_login=True),
    ]
