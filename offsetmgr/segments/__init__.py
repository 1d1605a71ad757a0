"""Kafka's log on disk: messages and batches, segments with their indexes, and the directory of a partition.

`batch_reader`, `compression` and `batch_builder` are pure: they convert bytes, and also work on Fetch responses. The
other modules read files, or write to directories that no running broker uses.
"""
