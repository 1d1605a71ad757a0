"""Groups of old consumers in ZooKeeper: registrations, subscriptions, partition owners, rebalances and topic
filters."""
