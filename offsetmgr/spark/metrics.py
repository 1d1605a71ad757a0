"""Prometheus metrics of the committers and period jobs of this process, in the default registry."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

COMMITS: Final = Counter("offsetmgr_spark_commits", "Commits of finished micro-batches", ["group"])
FAILURES: Final = Counter("offsetmgr_spark_commit_failures", "Attempts to commit that failed", ["group"])
FAILING: Final = Gauge("offsetmgr_spark_failing", "1 while commits fail permanently or repeatedly", ["group"])
FINISHED: Final = Gauge("offsetmgr_spark_finished_batch", "The newest finished micro-batch", ["group", "query"])
PERIOD_RECORDS: Final = Counter("offsetmgr_spark_period_records", "Records of published periods", ["job", "kind"])
