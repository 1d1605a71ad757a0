"""`create_topic`: creates a topic with the command-line tool of the brokers' release."""

from __future__ import annotations

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox.broker import BROKER_JARS, DEFAULT_VERSION
from offsetmgr.sandbox.tool import java_tool


def create_topic(
    topic: str, partitions: int, *, zookeeper: str, bootstrap: str, version: str = DEFAULT_VERSION, replicas: int = 1
) -> None:
    """Creates a topic unless it exists. ``zookeeper`` is the connect string of the brokers' ZooKeeper, and ``version``
    is the release of the brokers.

    Raises `SandboxError`.
    """
    arguments = ["--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", str(replicas)]
    if version == DEFAULT_VERSION:
        main, where = "org.apache.kafka.tools.TopicCommand", ["--bootstrap-server", bootstrap, "--if-not-exists"]
    else:
        main, where = "kafka.admin.TopicCommand", ["--zookeeper", zookeeper]
    done = java_tool(BROKER_JARS[version], main, [*where, *arguments])
    output = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode and not any("already exists" in line for line in output):
        raise SandboxError(f"cannot create topic {topic}", output[0] if output else "Kafka's tool printed no reason")
