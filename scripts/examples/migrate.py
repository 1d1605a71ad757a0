"""Migrates a group from ZooKeeper to Kafka, verifies the result, and rolls it back."""

import os

from offsetmgr import Migration, PlanOptions

source = f"zookeeper://{os.environ['OFFSETMGR_ZOOKEEPER']}"
target = f"kafka://{os.environ['OFFSETMGR_BOOTSTRAP_SERVER']}"
options = PlanOptions(groups=("shop",), rename={"shop": "shop-migrated"})
with Migration.plan(source, target, "shop.plan", options) as migration:
    print(migration.summary.writes, "planned,", migration.apply().written, "written")
    print("verified:", migration.verify().summary.ok, "rolled back:", migration.rollback().ok)
