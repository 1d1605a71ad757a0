"""The offset manager: owns the offsets of a set of groups, appends their commits to a log, answers from memory.

`shard` is the pure core: one shard a partition of the log. `runtime` runs the shards of the shard groups that this
process owns, and is the only module with threads. Nothing in here knows a concrete log, a socket or Kafka's wire
format.
"""
