"""Encodes and decodes the messages of Kafka's protocol, including the versions of old releases."""
