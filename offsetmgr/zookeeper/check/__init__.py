"""Finds faults in the groups of old consumers in ZooKeeper.

`rules` defines the findings and the facts, which are the state of a group and of the cluster, and derives findings from
these facts; it uses no I/O and no clock. `zookeeper_check` reads the facts in bulk and checks a stream of groups. It
checks a group a second time if findings of the first check may have a temporary cause, such as a rebalance in progress.
"""
