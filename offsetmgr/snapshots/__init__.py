"""Snapshot files: the offsets of many groups at one moment, in several file formats.

Each format has a module that implements `offsetmgr.snapshots.base.Format`; `offsetmgr.snapshots.registry` selects the
format by name, suffix or content. The package reads and writes byte streams; it opens no files and uses no store.
"""
