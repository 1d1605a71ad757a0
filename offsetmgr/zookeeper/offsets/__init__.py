"""Committed offsets in ZooKeeper: directory layouts, scans, edits and watches."""
