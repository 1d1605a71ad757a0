"""A Kafka client for operations that Kafka's client libraries do not support: offset requests for many groups at once,
and the group lock.

The library kio provides the schemas of the requests and responses; only `protocol.schema_codec` uses them. The client
uses asyncio. For synchronous callers, `client.client.ClientThread` runs the client in an event loop in a background
thread.
"""
