"""Previews a rebalance: a snapshot of a group, possible changes, and the assignment that its members would compute.

``group_snapshot``, ``changes``, ``predict`` and ``scenario_file`` are pure; ``live_group`` reads a snapshot from
ZooKeeper. A prediction contains only the assignment that every member computes
(`offsetmgr.zookeeper.groups.assignors`); it ignores claims, retries and timing.
"""
