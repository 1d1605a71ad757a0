"""Makes a scratch ZooKeeper chroot belong to the Kafka cluster of a running broker.

A chroot that no broker uses holds no cluster id, so offsetmgr treats it as another cluster than the broker's. A test
about something else writes the broker's cluster id into the chroot, in the broker's format.
"""

from __future__ import annotations

import json

from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.zookeeper.client.conditional_writes import ensure_nodes
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState


def join_cluster(connect: str, bootstrap: str) -> None:
    """Writes ``/cluster/id`` of the broker at ``bootstrap`` under the chroot of ``connect`` (HOST:PORT/CHROOT)."""
    with KafkaStore(bootstrap) as brokers:
        cluster_id = brokers.log_origin().cluster_id
    assert cluster_id is not None
    hosts, _, chroot = connect.partition("/")
    parts = [part for part in f"{chroot}/cluster".split("/") if part]
    with ZookeeperSession(hosts) as session:
        ensure_nodes(session, ["/" + "/".join(parts[: at + 1]) for at in range(len(parts))])
        path = "/" + "/".join(parts) + "/id"
        if session.get(path) is None:
            node = json.dumps({"version": "1", "id": cluster_id}, separators=(",", ":")).encode()
            outcome = session.transaction([Create(path, node)])
            assert outcome.state is OperationState.COMMITTED, outcome
