"""Committed offsets in ZooKeeper: the directory layouts, scans, edits and watches."""
