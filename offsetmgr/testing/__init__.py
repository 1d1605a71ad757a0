"""Test support for users of the library: contracts of stores and logs as tests, a store in memory, and a faulty
store."""
