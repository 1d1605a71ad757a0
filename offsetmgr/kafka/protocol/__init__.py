"""The bytes of the Kafka protocol: primitives, schemas, and the layouts of old releases."""
