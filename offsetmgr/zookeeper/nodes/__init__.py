"""What Kafka's nodes in ZooKeeper say, in both eras (0.7, and 0.8 and later): typed, parsed, no I/O.

A parser takes the node's path (for its errors), its bytes, and an optional list of `Notes`:

* without the list it is strict, for decisions: a version that it does not know is `UnknownVersion`;
* with it, it is tolerant, for showing: what it does not know (a version, a field) becomes a note beside the value.

Whatever cannot be understood at all is `Unreadable` either way. Every error names the node; no error quotes a value
that may be a secret. ``str()`` of a value is the line that people are shown.
"""

from offsetmgr.zookeeper.nodes.admin import (
    PartitionList,
    Reassignments,
    TopicNames,
    parse_preferred_election,
    parse_reassignments,
    parse_topic_deletions,
)
from offsetmgr.zookeeper.nodes.brokers import Broker, Endpoint, parse_broker
from offsetmgr.zookeeper.nodes.cluster import (
    Controller,
    Features,
    ProducerIds,
    parse_cluster_id,
    parse_controller,
    parse_controller_epoch,
    parse_features,
    parse_producer_ids,
)
from offsetmgr.zookeeper.nodes.configs import ConfigChange, EntityConfig, parse_config, parse_config_change
from offsetmgr.zookeeper.nodes.consumers import ConsumerRegistration, OwnerThread, parse_owner, parse_registration
from offsetmgr.zookeeper.nodes.fields import Notes
from offsetmgr.zookeeper.nodes.topics import (
    PartitionState,
    TopicAssignment,
    parse_isr_change,
    parse_log_dir_event,
    parse_partition_count,
    parse_partition_state,
    parse_topic,
)

__all__ = [
    "Broker",
    "ConfigChange",
    "ConsumerRegistration",
    "Controller",
    "Endpoint",
    "EntityConfig",
    "Features",
    "Notes",
    "OwnerThread",
    "PartitionList",
    "PartitionState",
    "ProducerIds",
    "Reassignments",
    "TopicAssignment",
    "TopicNames",
    "parse_broker",
    "parse_cluster_id",
    "parse_config",
    "parse_config_change",
    "parse_controller",
    "parse_controller_epoch",
    "parse_features",
    "parse_isr_change",
    "parse_log_dir_event",
    "parse_owner",
    "parse_partition_count",
    "parse_partition_state",
    "parse_preferred_election",
    "parse_producer_ids",
    "parse_reassignments",
    "parse_registration",
    "parse_topic",
    "parse_topic_deletions",
]
