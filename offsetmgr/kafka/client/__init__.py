"""The Kafka client: connections to brokers, routing and retries, and the requests of the stores and commands."""
