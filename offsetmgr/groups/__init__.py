"""The everyday edits and questions: reset, set, copy, rename, import, delete, lag, diff, describe.

Library calls that return values; the command line only renders them.  They see the `OffsetStore` and `Cluster`
protocols, never a concrete store, and never print, prompt or exit.

Ordering contract of every edit: propose (read, decide) -> before-images written and fsynced -> edit, each change
conditional on its before-image.  So what the before-image file says is what the store held when it was changed.
"""
