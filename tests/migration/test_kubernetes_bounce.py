"""`runbook bounce --kubernetes` with real consumers as the pods of a stand-in for a cluster."""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo_client import connected
from kubectl_stand_in import Workload
from old_consumers import old_member
from processes import Commands, wait_for
from steady_load import Load

from offsetmgr.sandbox import KafkaBroker, OldConsumer

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
PARTITIONS = 4
DUAL = ["OFFSETS_STORAGE=kafka", "DUAL_COMMIT_ENABLED=true"]


@dataclass
class Group:
    """A group whose members are the pods of a workload, under load."""

    name: str
    kafka: KafkaBroker
    workload: Workload
    commands: Commands
    sent: Counter[int]

    def bounce(self, to: str, start: str, *options: str, code: int = 0) -> str:
        servers = ("--zookeeper", self.kafka.zookeeper, "--bootstrap-server", self.kafka.bootstrap)
        arguments = ("--group", self.name, "--to-phase", to, "--from-phase", start, "--poll", "0.1")
        where = ("--kubernetes", self.workload.name, "--namespace", "prod")
        done = self.commands.run("runbook", "bounce", *arguments, *where, *options, *servers, code=code)
        return done.stdout + done.stderr

    def members(self) -> set[str]:
        with connected(self.kafka.zookeeper) as client:
            return set(client.get_children(f"/consumers/{self.name}/ids"))

    def consumed(self) -> Counter[tuple[int, int]]:
        return Counter((m.partition, int(m.value or b"-1")) for pod in self.workload.consumers for m in pod.messages())


@pytest.fixture(params=["deployment", "statefulset"])
def group(request, kafka, make_topic, unique, tmp_path):
    name = f"g-{unique[-8:]}"
    topic = make_topic(f"t-{unique[-30:]}", PARTITIONS)

    def make(directory: Path) -> OldConsumer:
        return old_member(directory, kafka.zookeeper, name, topic, auto_commit_interval_ms=300)

    environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    workload = Workload(tmp_path, f"{request.param}/{name}", make)
    with workload, Load(kafka.bootstrap, topic, range(PARTITIONS)) as load:
        found = Group(name, kafka, workload, Commands(tmp_path, environ), load.sent)
        wait_for(lambda: len(found.consumed()) > 50, "the pods consume")
        yield found


def test_a_workload_is_bounced_to_kafka_and_no_message_is_lost_or_repeated(group: Group) -> None:
    workload, before = group.workload, group.members()
    kubectl = f"kubectl --namespace prod set env {workload.name} {' '.join(DUAL)}"
    status = f"kubectl --namespace prod rollout status {workload.name} --timeout=600s"
    planned = group.bounce("dual", "zookeeper")
    assert f"{kubectl} && {status}" in planned
    assert "nothing was executed" in planned
    assert workload.asked == []
    tested = group.bounce("dual", "zookeeper", "--test-command", f"kubectl auth can-i patch {workload.name}")
    assert "2 members tested, 0 failed; nothing was restarted" in tested
    assert workload.asked == [["auth", "can-i", "patch", workload.name]]
    assert group.members() == before
    done = group.bounce("dual", "zookeeper", "--execute", "--yes")
    assert f"bounce zookeeper -> dual of group {group.name}: done" in done
    assert workload.asked[1:] == [
        ["--namespace", "prod", "set", "env", workload.name, *DUAL],
        ["--namespace", "prod", "rollout", "status", workload.name, "--timeout=600s"],
    ]
    after = group.members()
    assert len(after) == 2
    assert not after & before
    assert all(member in done for member in after)

    # The settings of phase kafka are in a ConfigMap that a command of the user writes.
    for pod_template in (workload.revisions[-1],):
        pod_template.clear()
    workload.config = {"offsets.storage": "kafka", "dual.commit.enabled": "false"}
    done = group.bounce("kafka", "dual", "--configure", "echo {group} {settings} > config", "--execute", "--yes")
    assert f"bounce dual -> kafka of group {group.name}: done" in done
    assert (workload.directory / "config").read_text() == (
        f"{group.name} offsets.storage=kafka dual.commit.enabled=false\n"
    )
    assert workload.asked[-2][2:] == ["rollout", "restart", workload.name]
    wait_for(lambda: len(group.consumed()) >= sum(group.sent.values()) - 50, "the pods consume all messages")
    assert set(group.consumed().values()) == {1}


def test_a_stuck_rollout_names_the_way_back_and_resumes(group: Group) -> None:
    workload, before = group.workload, group.members()
    workload.stuck = True
    options = ("--command-timeout", "2", "--execute", "--yes")
    failed = group.bounce("dual", "zookeeper", *options, code=1)
    assert f"the command for {workload.name}: exit code 1" in failed
    undo = f"kubectl --namespace prod rollout undo {workload.name}"
    assert f"the way back: {undo} && kubectl --namespace prod rollout status {workload.name}" in failed
    log = (workload.directory / f"bounce-{group.name}-dual.log").read_text()
    assert "error: timed out waiting for the condition" in log
    assert group.members() == before
    group.commands.run("-c", undo, program=("sh",))
    wait_for(lambda: len(workload.revisions) == 3, "the rollout is undone")
    assert group.members() == before
    resumed = group.bounce("dual", "zookeeper", "--execute", "--yes")
    assert f"bounce zookeeper -> dual of group {group.name}: done" in resumed
    state = json.loads((workload.directory / f"bounce-{group.name}-dual.json").read_text())
    (step,) = state["bounces"][0]["steps"]
    assert (step["member"], sorted(step["workload_members"])) == (workload.name, sorted(before))
    assert set(step["successors"]) == group.members()
