"""The ZooKeeper client: connections and sessions, bulk reads, transactions and ACLs."""
