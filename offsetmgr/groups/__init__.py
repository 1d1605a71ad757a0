"""The everyday commands as library calls: reset, set, copy, rename, import, delete, lag, diff, describe.

The calls return values, and the command line prints them. They use the `OffsetStore` and `Cluster` protocols and no
concrete store.

Ordering contract of every edit: first plan it (read and decide), then write and fsync the before-images, then edit the
store, with each change conditional on its before-image. So the file of before-images contains exactly what the edit
replaced.
"""
