"""The coordinator of a running group is killed in the middle of an edit, and another broker takes its place.

The matrix kills it at the steps of `IN_MATRIX`, and `scripts/soak` at every step.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from processes import wait_for
from running_group import PARTITIONS, running_group
from three_kraft_brokers import three_kraft_brokers

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.matrix]

STEPS = {
    "classic": "LEAVE_GROUP:1 SYNC_GROUP:1 <OFFSET_COMMIT:1 OFFSET_COMMIT:1 JOIN_GROUP:3 OFFSET_FETCH:2",
    "consumer": "CONSUMER_GROUP_HEARTBEAT:3 LEAVE_GROUP:1 <OFFSET_COMMIT:1 OFFSET_COMMIT:1 OFFSET_FETCH:2",
}
IN_MATRIX = ("LEAVE_GROUP:1", "<OFFSET_COMMIT:1", "JOIN_GROUP:3")
OFFSETS_PARTITIONS = 8  # those of the sandbox


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.soak)])
def test_an_edit_survives_the_death_of_the_coordinator(protocol: str, unique: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"group.protocol": "consumer"} if protocol == "consumer" else {}
    steps = [step for step in STEPS[protocol].split() if os.environ.get("OFFSETMGR_SOAK") or step in IN_MATRIX]
    written = 0
    with three_kraft_brokers(tmp_path / "brokers", {}) as brokers:
        topic = NewTopic(unique, num_partitions=PARTITIONS, replication_factor=3)
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([topic])[unique].result(60)
        leaders = dict.fromkeys(range(OFFSETS_PARTITIONS), 2)
        with running_group(brokers.bootstrap, unique, tmp_path / "home", **config) as (running, _members):
            for number, step in enumerate(steps):
                # Broker 1 is also the controller.
                wait_for(
                    lambda: brokers.move_leaders("__consumer_offsets", leaders) and running.coordinator() == 2,
                    "broker 2 is the coordinator",
                )
                running.await_members(2)
                offset, began = 3 + number, time.time()
                process = running.start_frozen(step, *running.reset(offset))
                assert brokers.restart_one(2)
                os.kill(process.pid, signal.SIGCONT)
                _, errors = running.finish(process, code=None)
                sys.stdout.write(f"{protocol} {step}: exit code {process.returncode}: {errors.splitlines()[-3:]}\n")
                if process.returncode == 0:
                    written += 1
                    running.await_record(0, offset, began)
                else:
                    assert "error: " in errors, errors
                brokers.await_restart()
                running.await_members(2)
                running.await_progress()
                running.check_nothing_lost()
                assert running.operations()[-1]["outcome"] == ("done" if process.returncode == 0 else "failed")
    assert written >= len(steps) - 1
