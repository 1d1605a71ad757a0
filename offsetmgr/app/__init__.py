"""The entry points of a program: `OffsetAdmin` for one store, `Migration` for a move between two stores.

`offsetmgr` exports both. `connections` opens the stores, clusters and sessions that settings select, also those of a
migration's source and target. The command line uses this module, too.
"""
