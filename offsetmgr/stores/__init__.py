"""Offset stores: ZooKeeper, Kafka, offsetmgr's managers, snapshot files, and pairs of stores.

Each store implements `offsetmgr.core.offset_store.OffsetStore`. `uri.open_store` opens the store of a URI. The URI's
scheme (`uri.Scheme`) determines the kind of store: `uri` defines the schemes of single stores and that of pairs of
stores. `cross_cluster_check` decides whether offsets of one store may be written to another.
"""
