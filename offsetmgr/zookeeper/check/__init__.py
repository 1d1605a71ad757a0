"""Finds faults in the groups of old consumers in ZooKeeper.

`facts` defines the state of a group and of the cluster, and `group_reader` reads this state in bulk. `owner_rules`,
`offset_rules` and `group_rules` derive findings from these facts; these modules use no I/O and no clock. `findings`
defines the findings. `zookeeper_check` checks a stream of groups. It checks a group a second time if findings of the
first check may have a temporary cause, such as a rebalance in progress.
"""
