"""Saves every group of ZooKeeper to a file, and plans to restore the file."""

import os

from offsetmgr import OffsetAdmin

with OffsetAdmin(f"zookeeper://{os.environ['OFFSETMGR_ZOOKEEPER']}") as admin:
    saved = admin.write_snapshot("groups.avro", overwrite=True)
    print(saved.offsets, "offsets of", saved.groups, "groups")
    print(admin.plan_import("groups.avro").counts.unchanged, "are as in the file")
