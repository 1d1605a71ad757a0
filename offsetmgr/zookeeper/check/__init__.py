"""What is wrong with the groups of old consumers in ZooKeeper: facts in, findings out.

`findings` are the values, `facts` what is known of a group and of the cluster; `owner_rules`, `offset_rules` and
`group_rules` decide (pure: no I/O, no clock). `reading` reads facts in bulk, and `run` streams groups through both,
looking twice where a rebalance under way would look the same.
"""
