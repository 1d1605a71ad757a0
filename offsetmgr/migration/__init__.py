"""Migrates committed offsets between stores. The migration is a state machine whose state is on disk.

The steps are plan, apply, verify, and then finalize or rollback. Ordering contract of the package: **an intent with its
before-images is fsynced to the journal before the store is written; the outcome is appended after the write.** If a run
is killed at any point, running the same command again leads to the same end state.

The package depends on the class `OffsetStore` and on ZooKeeper's consumer registry, not on a concrete store.
"""

from __future__ import annotations
