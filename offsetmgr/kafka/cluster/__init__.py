"""`Cluster`: topics, log ranges and groups of a Kafka cluster. It uses librdkafka and offsetmgr's own client."""
