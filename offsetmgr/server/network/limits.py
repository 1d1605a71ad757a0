"""`ServerLimits`: how much of the machine one client, and all together, may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Times are in seconds, sizes in bytes. Names of Kafka's own settings are given where it has one."""

    request_bytes: int = 8 * 1024 * 1024
    """Of one request (socket.request.max.bytes). Refused by its length field, before anything is allocated."""
    unauthenticated_bytes: int = 64 * 1024
    """Of one request before the login (sasl.server.max.receive.size)."""
    api_versions_bytes: int = 8 * 1024
    """Of an ApiVersions request, which clients send before they log in."""
    names: int = 50_000
    """Of groups in one FindCoordinator, DescribeGroups or DeleteGroups. Kafka's tools name all groups at once."""
    partitions: int = 15_000
    """Of one group in one OffsetCommit, OffsetFetch or OffsetDelete. A broker takes about as many: all offsets of a
    commit must fit into one batch of its message.max.bytes, 1 MiB."""
    answer_bytes: int = 64 * 1024 * 1024
    """Of answers that wait for one connection: no more of its requests are read, or started, while it is more. A single
    answer may be larger."""
    tags: int = 64
    """Tagged fields of one structure in a request."""
    name_bytes: int = 32_767
    """Of a group's name, and of any other string in a request."""
    topic_bytes: int = 249
    """Of a topic's name, as at brokers (org.apache.kafka.common.internals.Topic)."""
    connections: int = 4_000
    """Of all clients together (max.connections)."""
    connections_per_address: int = 2_000
    """Of one host (max.connections.per.ip)."""
    held_bytes: int = 256 * 1024 * 1024
    """Of all requests that have come, whole or in part, and are not answered (queued.max.request.bytes). Connections
    wait for their own answers while it is more; those that only have a large part of a request are cut."""
    in_flight: int = 500
    """Requests of one connection that have not been answered: no more are read until some are."""
    idle_seconds: float = 600.0
    """A connection without requests, and with none in flight, is closed after this time, and one that has taken none of
    the bytes sent to it (connections.max.idle.ms)."""
    request_seconds: float = 60.0
    """From a request's first byte to its last, and a second more for every 16 KiB of it that have come."""
    authentication_seconds: float = 10.0
    """From the connection to the login's end."""
