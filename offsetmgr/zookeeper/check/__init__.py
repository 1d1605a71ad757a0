"""Finds faults in the groups of old consumers in ZooKeeper: facts in, findings out.

`findings` holds the results, `facts` the known state of a group and of the cluster. `owner_rules`, `offset_rules` and
`group_rules` decide (pure: no I/O, no clock). `group_reader` reads facts in bulk. `run` streams groups through both and
checks a second time if a rebalance under way would look the same.
"""
