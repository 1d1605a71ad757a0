"""Previews a rebalance: the assignment that the members of a group would compute after a change.

`live_group` reads a snapshot of a group from ZooKeeper, and `snapshot_file` saves and loads it. `changes` applies a
change to a snapshot, and `predict` computes the new assignment. All modules except `live_group` are pure. A prediction
contains only the assignment, which is computed with `offsetmgr.zookeeper.groups.assignors`. It does not simulate
claims, retries and timing.
"""
