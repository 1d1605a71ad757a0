"""Resets a group to the start of its logs, and undoes the reset."""

import os

from offsetmgr import OffsetAdmin, ToEarliest

with OffsetAdmin(f"kafka://{os.environ['OFFSETMGR_BOOTSTRAP_SERVER']}") as admin:
    plan = admin.plan_reset("shop-copy", ToEarliest())
    for group in plan:
        for change in group.changes:
            print(group.name, change.partition, change.before, "->", change.after, change.note)
    report = plan.execute()
    print(report.written, "written; undone:", admin.plan_undo(report.before_images[0]).execute().ok)
