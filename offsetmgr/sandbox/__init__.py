"""The sandbox: real ZooKeeper servers, Kafka brokers, old consumers and MirrorMaker as child processes on this machine.

They run the jars of Kafka's and ZooKeeper's releases; nothing is simulated. Only the command line, scripts and tests
import this package.
"""

from offsetmgr.sandbox.broker import KafkaBroker as KafkaBroker
from offsetmgr.sandbox.broker import KraftBroker as KraftBroker
from offsetmgr.sandbox.legacy_consumer import ConsumedMessage as ConsumedMessage
from offsetmgr.sandbox.legacy_consumer import OldConsumer as OldConsumer
from offsetmgr.sandbox.mirror_maker import MirrorMaker as MirrorMaker
from offsetmgr.sandbox.sandbox import SampleGroup as SampleGroup
from offsetmgr.sandbox.sandbox import Sandbox as Sandbox
from offsetmgr.sandbox.tool import java_tool as java_tool
from offsetmgr.sandbox.topics import create_topic as create_topic
from offsetmgr.sandbox.zookeeper import ZooKeeperServer as ZooKeeperServer
