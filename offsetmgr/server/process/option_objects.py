"""Builds the objects that a manager process needs from `ServeOptions`: configuration, authentication, rules, relay,
TLS."""

from __future__ import annotations

import ssl

from offsetmgr.core.errors import ConfigError
from offsetmgr.kafka.client.security import Security
from offsetmgr.manager.log.kafka import transactional_id_prefix
from offsetmgr.manager.node.node_config import NodeConfig
from offsetmgr.manager.ownership import managers_group
from offsetmgr.manager.runtime.config import ManagerConfig
from offsetmgr.manager.shard import ShardLimits
from offsetmgr.server.network.tls import server_tls
from offsetmgr.server.process.config import ServeOptions
from offsetmgr.server.proxy.proxy import Proxy
from offsetmgr.server.security.authentication import Authentication
from offsetmgr.server.security.authorization import (
    AllowAllAuthorizer,
    Authorizer,
    ReservedGroups,
    load_rules,
)
from offsetmgr.server.security.credentials import load_credentials


def node_config(options: ServeOptions, relay: Proxy | None) -> NodeConfig:
    return NodeConfig(
        options.bootstrap,
        options.connection,
        topic=options.topic,
        partitions=options.partitions,
        replication_factor=options.replication_factor,
        min_insync_replicas=options.min_insync_replicas,
        record_format=options.record_format,
        manager=ManagerConfig(
            limits=ShardLimits(retention_ms=options.retention_ms),
            commit_timeout_s=options.commit_timeout_s,
            standby=options.standby,
            members=None if relay is None else relay.members,
            own_process=True,
        ),
        session_timeout_s=options.session_timeout_s,
        timeout_s=options.connection.timeout_ms / 1000,
    )


def load_authentication(options: ServeOptions) -> Authentication | None:
    return None if options.credentials is None else Authentication(load_credentials(options.credentials))


def load_authorizer(options: ServeOptions) -> Authorizer:
    if options.rules is None:
        return AllowAllAuthorizer()
    if options.credentials is None:
        raise ConfigError("--rules", "contain rules for users, but clients do not log in", "add --credentials FILE")
    return load_rules(options.rules)


def create_proxy(options: ServeOptions, security: Security, authorizer: Authorizer) -> Proxy | None:
    if not options.relay:
        return None
    if options.store is not None:
        return Proxy(options.bootstrap, security, authorizer)
    reserved = ReservedGroups(options.topic, managers_group(options.topic), transactional_id_prefix(options.topic))
    return Proxy(options.bootstrap, security, authorizer, reserved)


def load_tls(options: ServeOptions) -> ssl.SSLContext | None:
    if options.tls_certificate is None:
        return None
    return server_tls(options.tls_certificate, options.tls_key)
