"""Prints the lag of each group in ZooKeeper, in records."""

import os

from offsetmgr import OffsetAdmin

store, brokers = f"zookeeper://{os.environ['OFFSETMGR_ZOOKEEPER']}", os.environ["OFFSETMGR_BOOTSTRAP_SERVER"]
with OffsetAdmin(store, bootstrap_server=brokers) as admin:
    for group in admin.lag():
        print(group.name, "lag:", group.total)  # it is None if one lag is unknown
