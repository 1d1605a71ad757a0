"""Kafka's on-disk log as bytes: what is in a segment file, and in the answer to a Fetch, which is a slice of one.

Pure: no sockets and no files are opened in here.
"""
