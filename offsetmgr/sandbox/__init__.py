"""Real servers on this machine, as child processes: ZooKeeper, Kafka brokers, and the old high-level consumer.

Nothing here stands in for anything: the jars are the released ones. Only the command line, scripts and tests import
this package.
"""

from offsetmgr.sandbox.broker import KafkaBroker, KraftBroker
from offsetmgr.sandbox.legacy_consumer import Message, OldConsumer
from offsetmgr.sandbox.sandbox import OldGroup, Sandbox
from offsetmgr.sandbox.tool import java_tool
from offsetmgr.sandbox.topics import create_topic
from offsetmgr.sandbox.zookeeper import ZooKeeperServer

__all__ = [
    "KafkaBroker",
    "KraftBroker",
    "Message",
    "OldConsumer",
    "OldGroup",
    "Sandbox",
    "ZooKeeperServer",
    "create_topic",
    "java_tool",
]
