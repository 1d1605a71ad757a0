"""ZooKeeper: a client, and all data that Kafka and its old consumers store in ZooKeeper.

* `client`: sessions, bulk reads, transactions, leases and ACLs.
* `nodes`: the paths of Kafka's nodes, and parsers for their content.
* `offsets`: committed offsets: layouts, scans, conditional edits and watches.
* `groups`: groups of old consumers: members, partition owners, assignment strategies, and a group member.
* `admin`: requests to the controller: preferred election, reassignment and topic deletion.
* `check`: finds faults in the groups of old consumers (``offsetmgr zk check``).

`offsetmgr.stores.zookeeper` implements the offset store that uses this package.
"""
