"""Kafka's log on disk: messages and batches, segments with their indexes, and a partition's directory of them.

`batches`, `compression` and `writing` are pure: bytes in, bytes out, and a Fetch's answer is such bytes too. The other
modules read files, or write into directories that are no running broker's; nothing in here opens a socket.
"""
