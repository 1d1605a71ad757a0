"""The session with ZooKeeper: connections, transactions, bulk requests and ACLs."""
