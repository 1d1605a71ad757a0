"""A store that follows the storage mode of its group and writes to ZooKeeper, to both stores, or to Kafka."""
