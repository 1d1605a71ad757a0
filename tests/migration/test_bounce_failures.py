"""A rolling bounce of a real group of two: it stops at the first failure, and resumes there."""

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo_client import connected
from old_consumers import old_member
from processes import run_command, start_command, wait_for
from repeated import repeated
from stalling_proxy import StallingProxy
from steady_load import Load

from offsetmgr.sandbox import KafkaBroker, OldConsumer

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


@dataclass
class Group:
    """Two members (one with a configured consumer.id), a topic of three partitions, the last one without traffic."""

    directory: Path
    kafka: KafkaBroker
    name: str
    members: list[OldConsumer]

    def ids(self) -> list[str]:
        return sorted(self.czxids())

    def czxids(self) -> dict[str, int]:
        """The members, each with the transaction of its registration."""
        path = f"/consumers/{self.name}/ids"
        with connected(self.kafka.zookeeper) as client:
            return {member: client.get(f"{path}/{member}")[1].czxid for member in client.get_children(path)}

    def restart(self, member_id: str, storage: str, dual: bool) -> None:
        member = next(m for m in self.members if m.member_id == member_id)
        member.stop()
        member.offsets_storage = "kafka" if storage == "kafka" else "zookeeper"
        member.dual_commit = dual
        member.start()

    def restart_members(self) -> None:
        """Restarts the members named by the files in ``orders``, which the bounce's commands write."""
        for order in sorted((self.directory / "orders").glob("*.order")):
            member, phase = order.read_text().split()
            self.restart(member, "zookeeper" if phase == "zookeeper" else "kafka", phase == "dual")
            order.rename(order.with_suffix(".done"))
        time.sleep(0.05)

    def command(self, phase: str = "{phase}") -> str:
        """The command that requests a member's restart and waits until the member has restarted."""
        script = self.directory / "restart.sh"
        script.write_text(
            'cd "$(dirname "$0")"/orders; n=$(date +%s%N); echo "$1 $2" > $n.part; mv $n.part $n.order\n'
            "while [ ! -e $n.done ]; do sleep 0.1; done\n"
        )
        return f"sh {shlex.quote(str(script))} {{member}} {phase}"

    def arguments(self, *arguments: str) -> list[str]:
        servers = ["--zookeeper", self.kafka.zookeeper, "--bootstrap-server", self.kafka.bootstrap]
        return ["runbook", *arguments, "--group", self.name, "--poll", "0.15", *servers]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(*self.arguments(*arguments), code=None, cwd=self.directory)

    def migrate(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command("migrate", *arguments, cwd=self.directory)

    def status(self, *options: str) -> dict[str, Any]:
        (row,) = json.loads(self.migrate("status", "p.json", "--format", "json", *options).stdout)
        return dict(row)

    def bounce(self, to: str, command: str, *more: str) -> list[str]:
        """The arguments of a bounce that is executed."""
        options = ["--window", "30", "--quiet", "1.5", "--accept-idle", "--execute", "--yes"]
        return ["bounce", "--to-phase", to, "--command", command, *options, *more]


@pytest.fixture
def group(kafka: KafkaBroker, make_topic: Callable[..., str], unique: str, tmp_path: Path) -> Iterator[Group]:
    topic = make_topic(f"t-{unique[-30:]}", 3)
    name = f"g-{unique[-30:]}"
    members = [
        old_member(tmp_path / f"m{n}", kafka.zookeeper, name, topic, auto_commit_interval_ms=300, consumer_id=fixed)
        for n, fixed in enumerate(["fixed", None])
    ]
    (tmp_path / "orders").mkdir()
    result = Group(tmp_path, kafka, name, members)
    try:
        # The range assignment gives partitions 0 and 1 to one member and 2 to the other: each must have traffic.
        with repeated(result.restart_members), Load(kafka.bootstrap, topic, (0, 2)):
            for member in members:
                member.start()
            yield result
    finally:
        for member in members:
            member.stop()


def test_a_bounce_stops_at_the_first_failure_and_resumes_there(group: Group) -> None:
    fixed, generated = f"{group.name}_fixed", next(i for i in group.ids() if not i.endswith("_fixed"))
    before = group.czxids()

    # The runbook: JSON with the baseline, and Markdown with the same steps.
    written = group.run("write", "--to", "kafka", "-o", "runbook.json", "-o", "runbook.md")
    assert written.returncode == 0, written.stderr
    assert f"{fixed} has a configured consumer.id" in written.stderr
    (book,) = json.loads((group.directory / "runbook.json").read_text())["runbooks"]
    assert [m["id"] for m in book["baseline"]["members"]] == sorted(before)
    assert book["from"]["phase"] == "zookeeper"
    assert book["from"]["known"] == "seen"
    assert [step["settings"] for step in book["steps"] if step["settings"]] == [
        ["offsets.storage=kafka", "dual.commit.enabled=true"],
        ["offsets.storage=kafka", "dual.commit.enabled=false"],
    ]
    page = (group.directory / "runbook.md").read_text()
    assert f"`{generated}`" in page
    assert "## Bounce 2 of 2: dual -> kafka" in page
    again = group.run("write", "--to", "kafka", "-o", "runbook.json")
    assert (again.returncode, "a baseline must not be overwritten" in again.stderr) == (2, True)

    # Before the bounce the check lists both members.
    check = ["check", "--phase", "dual", "--baseline", "runbook.json", "--quiet", "1.5", "--accept-idle"]
    refused = group.run(*check, "--window", "3", "--format", "json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["not_bounced"] == sorted(before)

    # A dry run prints the commands and restarts no member.
    dry = group.run("bounce", "--to-phase", "dual", "--command", group.command())
    assert dry.returncode == 0, dry.stderr
    assert f"restart.sh {fixed} dual" in dry.stdout
    assert "nothing was executed" in dry.stderr
    assert group.czxids() == before

    # A direct change to Kafka is refused.
    direct = group.run(*group.bounce("kafka", group.command()))
    assert direct.returncode == 1
    assert direct.stderr.splitlines()[-2].startswith("error: bounce zookeeper -> kafka directly: ")

    # A failed command stops the bounce before it restarts the next member.
    failed = group.run(*group.bounce("dual", "echo no {member}; exit 7"))
    assert (failed.returncode, f"the command for {fixed}: exit code 7" in failed.stderr) == (1, True)
    state = group.directory / f"bounce-{group.name}-dual.json"
    assert [s["status"] for s in json.loads(state.read_text())["bounces"][0]["steps"]] == ["command-failed", "pending"]
    assert f"no {fixed}" in state.with_suffix(".log").read_text()
    assert group.czxids() == before

    # A member that returns with the wrong settings fails its gate; the bounce does not restart the other member.
    wrong = group.run(*group.bounce("dual", group.command("zookeeper")))
    assert wrong.returncode == 1
    assert f"the gate after {fixed} is closed" in wrong.stderr
    assert "commits to ZooKeeper alone" in wrong.stderr
    assert [s["status"] for s in json.loads(state.read_text())["bounces"][0]["steps"]] == ["returned", "pending"]
    now = group.czxids()
    assert (now[generated], now[fixed] != before[fixed]) == (before[generated], True)

    # After a manual fix the bounce resumes: it checks the first gate again and restarts only the second member.
    group.restart(fixed, "kafka", dual=True)
    by_hand = group.czxids()[fixed]
    # One member commits to both stores, the other one to ZooKeeper alone: the bounce may go back but not to kafka.
    on = group.run("bounce", "--to-phase", "kafka", "--command", group.command(), "--accept-idle", "--quiet", "1.5")
    assert (on.returncode, f"NO  {generated} (seen)" in on.stderr) == (1, True), on.stderr
    back = group.run(
        "bounce", "--to-phase", "zookeeper", "--command", group.command(), "--accept-idle", "--quiet", "1.5"
    )
    assert (back.returncode, back.stdout.count("pending")) == (0, 2), back.stderr
    resumed = group.run(*group.bounce("dual", group.command()))
    assert resumed.returncode == 0, resumed.stderr
    assert group.czxids()[fixed] == by_hand
    assert generated not in group.ids()
    passed = group.run(*check, "--window", "30")
    assert passed.returncode == 0, passed.stdout
    assert passed.stdout.startswith(f"phase dual of group {group.name}: PASSED")
    finished = group.run(*group.bounce("dual", group.command()))
    assert (finished.returncode, "the group is in this phase already" in finished.stderr) == (1, True)

    # After a kill during a command it resumes without restarting a member twice. Ctrl-C stops it between steps.
    orders = group.directory / "orders"
    done = len(list(orders.glob("*.done")))
    killed = start_command(*group.arguments(*group.bounce("kafka", group.command())), cwd=group.directory)
    wait_for(lambda: list(orders.glob("*.order")), "the first command has begun")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(90)
    interrupted = start_command(*group.arguments(*group.bounce("kafka", group.command())), cwd=group.directory)
    assert interrupted.stderr is not None
    for line in interrupted.stderr:
        if "watching its commits" in line:
            interrupted.send_signal(signal.SIGINT)
            break
    rest = interrupted.stderr.read()
    assert interrupted.wait(60) == 130, rest
    assert "the same command line resumes" in rest
    wait_for(lambda: not list(orders.glob("*.order")), "the restart is marked as done")
    assert len(list(orders.glob("*.done"))) == done + 1
    ended = group.run(*group.bounce("kafka", group.command(), "--reason", "ticket 7"))
    assert ended.returncode == 0, ended.stderr
    bounces = json.loads(run_command("edits", "list", "--group", group.name, "--format", "json").stdout)
    assert {one["operation"] for one in bounces} == {"runbook bounce"}
    assert [one["outcome"] for one in bounces[-3:]] == ["unknown", "interrupted", "done"]
    assert bounces[-1]["reason"] == "ticket 7"
    assert len(list(orders.glob("*.done"))) == done + 2


def test_the_status_follows_a_group_back_through_an_outage(group: Group) -> None:
    # Given a group that was moved to Kafka and finalized
    sides = ("--from", f"zookeeper://{group.kafka.zookeeper}", "--to", f"kafka://{group.kafka.bootstrap}")
    group.migrate("plan", *sides, "--group", group.name, "-o", "p.json")
    group.migrate("apply", "p.json", "--yes")
    for to in ("dual", "kafka"):
        moved = group.run(*group.bounce(to, group.command(), "--plan", "p.json"))
        assert moved.returncode == 0, moved.stderr
    group.migrate("finalize", "p.json", "--yes", "--accept-idle", "--window", "30")
    assert (group.status()["state"], group.status("--window", "10")["state"]) == ("finalized", "finalized")

    # When ZooKeeper stops answering on the way back: for some seconds in the first step, and for good in the second
    hosts, _, chroot = group.kafka.zookeeper.partition("/")
    proxy = StallingProxy(hosts)
    back = ["--plan", "p.json", "--from-phase", "kafka", "--timeout", "2000", "--window", "40"]
    words = group.arguments(*group.bounce("dual", group.command(), "--state", "back.json", *back))
    words[words.index("--zookeeper") + 1] = f"{proxy.address}/{chroot}"
    try:
        process = start_command(*words, cwd=group.directory)
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("step "):
                proxy.stall()
            if line.startswith("step 1 of 2"):
                threading.Timer(5, proxy.resume).start()
        assert process.wait(300) == 1

        # Then it says how far it is, and the status of the group is not "finalized"
        assert any("; trying again for up to 40 s" in line for line in lines), lines
        halfway = f"bounce kafka -> dual of group {group.name}: 1 of 2 steps done; step 2, "
        assert any(line.startswith(halfway) and line.endswith(": not begun\n") for line in lines), lines
        (resume,) = [line.removeprefix("resume: ") for line in lines if line.startswith("resume: ")]
        assert group.status()["state"] == "kafka"
        assert group.status()["blocked_by"].startswith(halfway)
        assert "--state" in group.status()["next"]

        # And the printed line resumes it after the outage
        proxy.resume()
        done = len(list((group.directory / "orders").glob("*.done")))
        resumed = run_command(*shlex.split(resume)[1:], cwd=group.directory)
        assert len(list((group.directory / "orders").glob("*.done"))) == done + 1, resumed.stderr
    finally:
        proxy.close()
    for shown in (group.status(), group.status("--window", "10")):
        assert (shown["state"], "commit as phase dual does" in shown["blocked_by"]) == ("dual", True), shown
    assert "dual" in group.migrate("status", "p.json", "--format", "markdown").stdout
    ended = group.run(*group.bounce("zookeeper", group.command(), "--plan", "p.json", "--from-phase", "dual"))
    assert ended.returncode == 0, ended.stderr
    for shown in (group.status(), group.status("--window", "10")):
        assert (shown["state"], "commit as phase zookeeper does" in shown["blocked_by"]) == ("zookeeper", True), shown
    assert "went back to phase zookeeper on" in group.migrate("finalize", "p.json", "--yes", "--window", "1").stderr
