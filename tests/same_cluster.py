"""Makes a scratch ZooKeeper chroot belong to the Kafka cluster of a running broker.

A chroot that no broker uses holds no cluster id, so offsetmgr treats it as another cluster than the broker's. A test
about something else writes the broker's cluster id into the chroot, in the broker's format.
"""

from __future__ import annotations

import json

from kazoo_client import connected

from offsetmgr.stores.kafka import KafkaStore


def join_cluster(connect: str, bootstrap: str) -> None:
    """Writes ``/cluster/id`` of the broker at ``bootstrap`` under the chroot of ``connect`` (HOST:PORT/CHROOT)."""
    with KafkaStore(bootstrap) as brokers:
        cluster_id = brokers.log_origin().cluster_id
    assert cluster_id is not None
    hosts, _, chroot = connect.partition("/")
    path = "/".join(["", *filter(None, chroot.split("/")), "cluster", "id"])
    with connected(hosts) as client:
        if client.exists(path) is None:
            node = json.dumps({"version": "1", "id": cluster_id}, separators=(",", ":")).encode()
            client.create(path, node, makepath=True)
