"""Builds the table of the APIs that the listener answers itself."""

from __future__ import annotations

from functools import partial
from typing import Final

from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.server.apis import cluster, commit_codec, fetch_codec, groups, list_offsets, offsets, sasl, versions
from offsetmgr.server.apis.api_context import ApiContext, decoded
from offsetmgr.server.network.api import Api, Concurrency
from offsetmgr.server.security.authentication import Authentication

_NEVER_FLEXIBLE: Final = 32767


def listener_apis(context: ApiContext) -> list[Api]:
    """Returns the table. It contains the SASL APIs only if authentication is configured."""
    apis = [*_cluster_apis(context), *_offset_apis(context), *_group_apis(context)]
    return apis if context.authentication is None else [*apis, *_login_apis(context.authentication)]


def _cluster_apis(context: ApiContext) -> list[Api]:
    """APIs about brokers, topics and versions."""
    return [
        Api(
            ApiKey.LIST_OFFSETS,
            "ListOffsets",
            1,
            10,
            6,
            partial(list_offsets.list_offsets, context),
            prepare=list_offsets.prepare,
        ),
        Api(ApiKey.METADATA, "Metadata", 0, 13, 9, partial(cluster.metadata, context), prepare=decoded),
        Api(
            ApiKey.FIND_COORDINATOR,
            "FindCoordinator",
            0,
            6,
            3,
            partial(cluster.find_coordinator, context),
            Concurrency.UNORDERED,
            prepare=decoded,
        ),
        Api(
            ApiKey.API_VERSIONS,
            "ApiVersions",
            versions.MIN_VERSION,
            versions.MAX_VERSION,
            versions.FLEXIBLE,
            partial(versions.api_versions, context),
            before_login=True,
        ),
        Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0, partial(cluster.describe_cluster, context)),
    ]


def _offset_apis(context: ApiContext) -> list[Api]:
    """APIs about committed offsets."""
    return [
        Api(
            ApiKey.OFFSET_COMMIT,
            "OffsetCommit",
            commit_codec.MIN_VERSION,
            commit_codec.MAX_VERSION,
            commit_codec.FLEXIBLE,
            partial(offsets.offset_commit, context),
            Concurrency.COMMITS,
            prepare=partial(offsets.prepare_commit, context),
        ),
        Api(
            ApiKey.OFFSET_FETCH,
            "OffsetFetch",
            fetch_codec.MIN_VERSION,
            fetch_codec.MAX_VERSION,
            fetch_codec.FLEXIBLE,
            partial(offsets.offset_fetch, context),
            Concurrency.FETCHES,
            prepare=offsets.prepare_fetch,
        ),
        Api(
            ApiKey.OFFSET_DELETE,
            "OffsetDelete",
            0,
            0,
            _NEVER_FLEXIBLE,
            partial(offsets.offset_delete, context),
            prepare=decoded,
        ),
    ]


def _group_apis(context: ApiContext) -> list[Api]:
    return [
        Api(
            ApiKey.DESCRIBE_GROUPS,
            "DescribeGroups",
            0,
            6,
            5,
            partial(groups.describe_groups, context),
            prepare=decoded,
        ),
        Api(
            ApiKey.LIST_GROUPS,
            "ListGroups",
            0,
            5,
            groups.LIST_FLEXIBLE,
            partial(groups.list_groups, context),
            prepare=decoded,
        ),
        Api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2, partial(groups.delete_groups, context), prepare=decoded),
    ]


def _login_apis(authentication: Authentication) -> list[Api]:
    return [
        Api(
            ApiKey.SASL_HANDSHAKE,
            "SaslHandshake",
            1,
            1,
            _NEVER_FLEXIBLE,
            partial(sasl.sasl_handshake, authentication),
            before_login=True,
        ),
        Api(
            ApiKey.SASL_AUTHENTICATE,
            "SaslAuthenticate",
            0,
            2,
            2,
            partial(sasl.sasl_authenticate, authentication),
            before_login=True,
        ),
    ]
