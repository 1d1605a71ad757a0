"""The use case of ``offsetmgr cluster``: the brokers of a cluster, their releases and capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.kafka.client.topics import ClusterBroker as ClusterBroker


def describe(connections: Connections) -> list[ClusterBroker]:
    """Returns every broker of the selected cluster, sorted by id. Raises `UsageError` if no brokers are known, and
    `Unreachable` or `TimedOut` if no broker responds."""
    return connections.cluster("cluster describe").describe_brokers()
