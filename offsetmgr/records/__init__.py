"""Encodes and decodes the records of an offsets topic, in offsetmgr's Avro format or Kafka's `__consumer_offsets`
format.

The package is pure: it connects to no server and keeps no state except caches.
"""
