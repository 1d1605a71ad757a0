"""The offsets topic as a log: partitions with atomic appends.

`base` defines the log; `kafka` implements it on a topic, `memory` for tests and simulations.
"""
