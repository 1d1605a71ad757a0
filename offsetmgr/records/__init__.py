"""Keys and values of the offsets topic as bytes: offsetmgr's Avro format and Kafka's `__consumer_offsets` format.

The package is pure: it connects to no server and keeps no state.
"""
