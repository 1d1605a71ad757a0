"""Migrates committed offsets between stores: a state machine on disk.

The steps are plan, apply, verify, and then finalize or rollback. Ordering contract of the package: **an intent, with
its before-images, is fsynced to the journal before the store is written; its outcome follows.** If a run is killed at
any point, the operator runs the same command again, and it reaches the same end state.

The package uses the `OffsetStore` and `Cluster` protocols and ZooKeeper's registry of consumers, and no concrete store.
"""

from __future__ import annotations
