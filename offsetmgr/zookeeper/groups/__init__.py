"""Consumer groups in ZooKeeper: registration, ownership of partitions, rebalancing and topic filters."""
