"""Checks by evidence whether every member of a group of old consumers commits only to ZooKeeper."""

import os

from offsetmgr import CommitMode, ObservationWindow, OffsetAdmin

store, brokers = f"zookeeper://{os.environ['OFFSETMGR_ZOOKEEPER']}", os.environ["OFFSETMGR_BOOTSTRAP_SERVER"]
with OffsetAdmin(store, bootstrap_server=brokers) as admin:
    report = admin.check_phase("shop", CommitMode.ZOOKEEPER, window=ObservationWindow(duration_s=5))
    print("passed:", report.passed)
    for problem in (*report.problems, *(f"{one.partition}: {one.why}" for one in report.partitions if not one.ok)):
        print(problem)
