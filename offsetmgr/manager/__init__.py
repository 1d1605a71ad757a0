"""The offset manager: it owns the offsets of a set of groups, appends their commits to a log, and serves fetches from
memory.

`shard` is the pure core, with one shard for each partition of the log. `runtime` runs the shards of the shard groups
that this process owns, and has the threads.
"""
