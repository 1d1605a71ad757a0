"""Migrates committed offsets between stores: a state machine on disk.

plan -> apply -> verify -> finalize | rollback. Ordering contract of the package: **an intent, with its before-images,
is fsynced to the journal before the store is written; its outcome follows.** An operator whose run was killed at any
point runs the same command again and reaches the same end state.

The package uses the `OffsetStore` and `Cluster` protocols and ZooKeeper's registry of consumers, and no concrete store.
"""

from __future__ import annotations
