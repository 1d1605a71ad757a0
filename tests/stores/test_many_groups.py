"""Behaviour that depends on a very large number of groups."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.servers

DESCRIBE = """
import sys
from offsetmgr.kafka.cluster import KafkaCluster
with KafkaCluster(sys.argv[1]) as cluster:
    found = cluster.describe_groups(f"{sys.argv[2]}-{n}" for n in range(20_000))
print(len(found), {getattr(group, "state", group) for group in found.values()})
"""


def test_twenty_thousand_groups_can_be_described(kafka, unique):
    # In a separate process, because librdkafka aborts the process if one request names all groups.
    command = [sys.executable, "-c", DESCRIBE, kafka.bootstrap, unique]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "20000 {'DEAD'}\n", "")
