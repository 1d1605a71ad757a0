"""Offset stores: ZooKeeper, Kafka, offsetmgr's managers, snapshot files, and pairs of stores.

Each store implements `offsetmgr.core.offset_store.OffsetStore`. `uri.open_store` opens the store of a URI. The URI's
scheme (`scheme.Scheme`) names the store: `schemes` has those of single stores, `dual_scheme` and `switched.scheme` have
those of pairs. `cross_cluster_check` decides whether offsets of one store may be written to another.
"""
