"""Who would own what: a group's picture, what could happen to it, and what its members would make of that.

``group_snapshot``, ``changes``, ``predict`` and ``scenario_file`` are pure; ``live_group`` reads a picture from
ZooKeeper. A prediction is what every member computes by itself (`offsetmgr.zookeeper.groups.assignors`); claims,
retries and time play no part in it.
"""
