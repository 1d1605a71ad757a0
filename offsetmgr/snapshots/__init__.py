"""Snapshot files: offsets of many groups at one moment, in the formats that people already have.

One module a format, all behind `offsetmgr.snapshots.base.Format`; `offsetmgr.snapshots.registry` picks one by name,
suffix or content.  Nothing in this room opens a path, knows a store or talks to a server: it turns streams of bytes
into groups and back.
"""
