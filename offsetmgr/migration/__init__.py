"""Moving committed offsets between stores: a state machine on disk.

plan -> apply -> verify -> finalize | rollback.  The ordering contract of the whole package: **an intent, with its
before-images, is fsynced to the journal before the store is written; its outcome follows.**  Whoever is killed at any
point runs the same command again and comes to the same end.

Nothing in this package knows a concrete store: it sees the `OffsetStore` and `Cluster` protocols and ZooKeeper's
registry of consumers.
"""

from __future__ import annotations
