"""Creates topics with the tool of the brokers' own release."""

from __future__ import annotations

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox.broker import BROKER_JARS, DEFAULT_VERSION
from offsetmgr.sandbox.tool import java_tool


def create_topic(
    topic: str, partitions: int, *, zookeeper: str, bootstrap: str, version: str = DEFAULT_VERSION, replicas: int = 1
) -> None:
    """Creates a topic unless it exists. ``zookeeper`` is the brokers' connect string, ``version`` their release.

    Raises `SandboxError`.
    """
    arguments = ["--create", "--topic", topic, "--partitions", str(partitions), "--replication-factor", str(replicas)]
    if version == DEFAULT_VERSION:
        main, where = "org.apache.kafka.tools.TopicCommand", ["--bootstrap-server", bootstrap, "--if-not-exists"]
    else:
        main, where = "kafka.admin.TopicCommand", ["--zookeeper", zookeeper]
    done = java_tool(BROKER_JARS[version], main, [*where, *arguments])
    said = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode and not any("already exists" in line for line in said):
        raise SandboxError(f"cannot create topic {topic}", said[0] if said else "Kafka's tool did not say why")
