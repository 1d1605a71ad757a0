"""The switched store: for each group it uses ZooKeeper, Kafka or both, according to the group's storage mode.

A live migration (`offsetmgr.migration.live`) changes the storage mode in a znode. `mode_listener` follows that znode in
each member, `store` is the offset store, `nodes` and `records` read and write the znodes.
"""
