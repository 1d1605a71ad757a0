"""The everyday commands as library calls: reset, set, copy, rename, import, delete, lag, diff, describe.

The calls return values and the command line prints them. They use the `OffsetStore` and `Cluster` protocols and no
concrete store.

Ordering contract of every edit: plan (read and decide), write and fsync the before-images, edit with each change
conditional on its before-image. So the file of before-images contains exactly what the store held.
"""
