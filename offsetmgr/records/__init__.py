"""Keys and values of the offsets topic, as bytes: offsetmgr's own Avro form, and Kafka's `__consumer_offsets` form.

Nothing in here talks to a server or keeps state; only `model`, `errors` and `clock` may be imported.
"""
