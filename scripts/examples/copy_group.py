"""Copies a group of old consumers from ZooKeeper to a new group in Kafka."""

import os

from offsetmgr import OffsetAdmin

with OffsetAdmin(f"zookeeper://{os.environ['OFFSETMGR_ZOOKEEPER']}") as admin:
    plan = admin.plan_copy("shop", "shop-copy", to=f"kafka://{os.environ['OFFSETMGR_BOOTSTRAP_SERVER']}")
    print(plan.counts.writes, "offsets to write,", plan.problems or "no problems")
    print(plan.execute().ok)
