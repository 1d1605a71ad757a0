"""The offset manager. It appends the commits of the groups that it owns to a log, and serves fetches from memory.

`shard` is the pure core. One shard holds the offsets of one partition of the log. `ownership` decides which shard
groups this process owns. `runtime` runs the shards on an event loop, and their I/O in threads. `log` is the offsets
topic, and `node` assembles all of these into one process.
"""
