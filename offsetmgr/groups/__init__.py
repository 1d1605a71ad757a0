"""The everyday commands as library calls: reset, set, copy, rename, import, delete, lag, diff, describe.

Each function returns its result and prints nothing. The functions depend on the class `OffsetStore`, not
on a concrete store.

Ordering contract of every edit: first the edit is planned, second its before-images are written and fsynced, and third
the store is changed. Each change is conditional on its before-image, so the file of before-images contains exactly the
values that the edit replaced.
"""
