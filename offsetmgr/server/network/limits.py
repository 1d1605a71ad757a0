"""`ServerLimits`: the resources that one client, and all clients together, may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Times are in seconds, sizes in bytes. The corresponding Kafka settings are in parentheses."""

    request_bytes: int = 8 * 1024 * 1024
    """Size of one request (socket.request.max.bytes). The length field is checked before memory is allocated."""
    unauthenticated_bytes: int = 64 * 1024
    """Size of one request before the login (sasl.server.max.receive.size)."""
    api_versions_bytes: int = 8 * 1024
    """Size of an ApiVersions request, which clients send before they log in."""
    names: int = 50_000
    """Groups in one FindCoordinator, DescribeGroups or DeleteGroups. Kafka's tools name all groups at once."""
    partitions: int = 15_000
    """Partitions of one group in one OffsetCommit, OffsetFetch or OffsetDelete. A broker has a similar limit, because
    all offsets of a commit must fit into one record batch of at most message.max.bytes (1 MiB)."""
    answer_bytes: int = 64 * 1024 * 1024
    """Size of the responses that wait to be sent on one connection. At this size the server neither reads nor starts
    further requests of the connection. A single response may be larger."""
    tags: int = 64
    """Number of tagged fields of one structure in a request."""
    name_bytes: int = 32_767
    """Size of a group's name, and of any other string in a request."""
    topic_bytes: int = 249
    """Size of a topic's name. Brokers have the same limit (org.apache.kafka.common.internals.Topic)."""
    connections: int = 4_000
    """Connections of all clients together (max.connections)."""
    connections_per_address: int = 2_000
    """Connections of one host (max.connections.per.ip)."""
    held_bytes: int = 256 * 1024 * 1024
    """Size of all unanswered requests, complete or incomplete (queued.max.request.bytes). Above this size, the server
    does not read from connections that have an unanswered complete request. It closes connections whose only request is
    large and incomplete."""
    in_flight: int = 500
    """Unanswered requests of one connection. At this number the server stops reading from the connection."""
    idle_seconds: float = 600.0
    """Time after which the server closes an idle connection (connections.max.idle.ms). A connection is idle if it has
    no request in flight and receives no request, or if the client does not read its responses."""
    request_seconds: float = 60.0
    """Maximum time from the first byte of a request to its last byte. The client gets an additional second for every 16
    KiB that it has sent."""
    authentication_seconds: float = 10.0
    """Maximum time from the opening of the connection to the end of the login."""
