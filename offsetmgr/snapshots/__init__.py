"""Snapshot files: offsets of many groups at one moment, in established formats.

Each format has a module that implements `offsetmgr.snapshots.base.Format`; `offsetmgr.snapshots.registry` selects one
by name, suffix or content. The package converts streams of bytes; it opens no path and knows no store.
"""
