"""Finds faults in the groups of old consumers in ZooKeeper.

`facts` defines the state of a group and of the cluster, and `group_reader` reads this state in bulk. `owner_rules`,
`offset_rules` and `group_rules` derive findings from these facts (pure: no I/O, no clock), and `findings` defines the
findings. `log_ranges` caches log ranges. `zookeeper_check` checks a stream of groups; it checks a group a second time
if a rebalance in progress could have caused the findings.
"""
