"""The sandbox: real ZooKeeper servers, Kafka brokers and old high-level consumers as child processes on this machine.

They run the jars of Kafka's and ZooKeeper's releases; nothing is simulated. Only the command line, scripts and tests
import this package.
"""

from offsetmgr.sandbox.broker import KafkaBroker, KraftBroker
from offsetmgr.sandbox.legacy_consumer import ConsumedMessage, OldConsumer
from offsetmgr.sandbox.sandbox import SampleGroup, Sandbox
from offsetmgr.sandbox.tool import java_tool
from offsetmgr.sandbox.topics import create_topic
from offsetmgr.sandbox.zookeeper import ZooKeeperServer

__all__ = [
    "ConsumedMessage",
    "KafkaBroker",
    "KraftBroker",
    "OldConsumer",
    "SampleGroup",
    "Sandbox",
    "ZooKeeperServer",
    "create_topic",
    "java_tool",
]
