"""`Cluster`: topics, log ranges and groups of a Kafka cluster. It uses offsetmgr's own client."""
