"""The period coordinator: a slice of event time closes only when every partition has finished it.

`schedule`, `barrier`, `leader_decision`, `records` and `legacy_nodes` are pure: same input, same output, no I/O, no
clock. The other modules use ZooKeeper.

Ordering contract: a partition is reported as finished only after its work of that period is durable; a period closes
only after every report of it is in ZooKeeper; members see the next one only after that.
"""
