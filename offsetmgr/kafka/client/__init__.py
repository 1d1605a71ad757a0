"""Connections to Kafka brokers and the requests that the tools send over them."""
