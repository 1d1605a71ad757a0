"""Moves a group back by ten records while its consumers run."""

import os

from offsetmgr import OffsetAdmin, RunningEdit, ShiftBy

with OffsetAdmin(f"kafka://{os.environ['OFFSETMGR_BOOTSTRAP_SERVER']}", running=RunningEdit(on_step=print)) as admin:
    report = admin.plan_reset("shop-copy", ShiftBy(-10)).execute(reason="reprocess the last ten records")
    print(report.written, "written;", report.evidence)
