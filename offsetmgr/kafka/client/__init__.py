"""Connections to Kafka brokers, and the requests that the stores and commands send over them."""
