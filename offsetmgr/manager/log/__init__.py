"""The offsets topic as the offset manager sees it: partitions to append to, all or nothing, and to read.

`base` says what a log promises; `kafka` keeps the promise on a real topic, `memory` for tests and simulations.
"""
