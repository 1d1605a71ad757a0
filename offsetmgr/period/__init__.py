"""The period coordinator: members process event time in periods, and a period closes when every partition finished it.

`schedule`, `barrier`, `leader_decision`, `records`, `job_records`, `node_codec`, `legacy_nodes` and `status` are pure:
they perform no I/O and read no clock. `member_state` performs no I/O either, but several threads share its state.
`idle_partitions` sends requests to Kafka. The remaining modules access ZooKeeper.

Ordering contract: a partition is reported as finished with a period only after the results of that period's records are
durable. A period closes only after the reports of all its partitions are in ZooKeeper. Members see the next period only
after the previous period has closed.
"""
