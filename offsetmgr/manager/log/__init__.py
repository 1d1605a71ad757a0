"""The log of the offset manager: partitions to which one append writes atomically.

`base` defines the interface. `kafka` implements it on the offsets topic, `memory` in memory for tests and simulations.
"""
