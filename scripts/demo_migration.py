"""The implementation of `scripts/demo`: an operator's whole migration, on real servers, with the proof at the end.

The demo runs each of the operator's commands as a separate process, and prints it after a ``$``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer

from offsetmgr.sandbox import OldConsumer, create_topic
from offsetmgr.sandbox.broker import BROKER_JARS, DEFAULT_VERSION
from offsetmgr.sandbox.legacy_consumer import JARS as OLD_CONSUMERS

TOPIC: Final = "orders"
PARTITIONS: Final = 8
PER_SECOND: Final = 160
STARTED: Final = time.monotonic()
BOLD, DIM, PLAIN = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "", "")


def chapter(text: str) -> None:
    print(f"\n{BOLD}== {text}{PLAIN}  {DIM}[{time.monotonic() - STARTED:.0f} s]{PLAIN}", flush=True)


def say(text: str) -> None:
    print(f"   {text}", flush=True)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"the demo failed: {what} did not happen within {seconds:g} s")
        time.sleep(0.1)


class Shell:
    """Runs offsetmgr as an operator does, in the demo's own directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # The demo removes its plans, so the user's own operation log must not name them.
        places = {"OFFSETMGR_SANDBOX": str(directory / "sandbox"), "XDG_STATE_HOME": str(directory / "state")}
        self.env = {**os.environ, **places, "NO_COLOR": "1"}

    def run(self, *arguments: str, expect: tuple[int, ...] = (0,), quiet: bool = False) -> int:
        """Runs one command, and prints it and its output. Ends the demo if the exit code is not an expected one."""
        print(f"\n{BOLD}$ offsetmgr {shlex.join(self._short(arguments))}{PLAIN}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "offsetmgr", *arguments],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            check=False,
        )
        if done.returncode not in expect:
            sys.exit(f"the demo failed: exit code {done.returncode}\n{done.stderr or ''}")
        if done.returncode:
            say(f"(exit code {done.returncode})")
        return done.returncode

    def _short(self, arguments: tuple[str, ...]) -> list[str]:
        return [a.replace(sys.executable, "python").replace(f"{self.directory}/", "") for a in arguments]

    def sandbox(self) -> dict[str, str]:
        printed = subprocess.run(
            [sys.executable, "-m", "offsetmgr", "sandbox", "env"],
            env=self.env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        lines = (line.removeprefix("export ") for line in printed.stdout.splitlines() if line.startswith("export "))
        return {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}


class Load:
    """A steady producer of numbered messages: each message's value is its number in the partition."""

    def __init__(self, bootstrap: str, version: str) -> None:
        settings = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
        self._producer = Producer({**settings, **librdkafka_settings(version)})
        self.sent: Counter[int] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(PARTITIONS / PER_SECOND):
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, value=str(self.sent[partition]), partition=partition)
                self.sent[partition] += 1
            self._producer.poll(0)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._producer.flush(30):
            sys.exit("the demo failed: not every message could be produced")

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Fleet:
    """Real old consumers of one group, and a small server through which a shell command restarts one of them.

    The command represents an operator's `ssh HOST systemctl restart app` after a change of the settings.
    """

    def __init__(self, directory: Path, zookeeper: str, group: str, members: int, version: str) -> None:
        self.group = group
        self.members = [
            OldConsumer(
                directory / f"{group}-{n}",
                zookeeper=zookeeper,
                group=group,
                topic=TOPIC,
                auto_commit_interval_ms=500,
                version=version,
            )
            for n in range(members)
        ]
        fleet = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                member, phase = self.rfile.readline().decode().split()
                fleet._restart(member, phase)
                self.wfile.write(b"restarted\n")

        socket = directory / f"{group}.socket"
        self._server = socketserver.ThreadingUnixStreamServer(str(socket), Handler)
        script = directory / f"restart-{group}.py"
        script.write_text(
            "import socket, sys\n"
            "control = socket.socket(socket.AF_UNIX)\n"
            f"control.connect({str(socket)!r})\n"
            "control.sendall(' '.join(sys.argv[1:]).encode() + b'\\n')\n"
            "sys.exit(control.makefile().readline() != 'restarted\\n')\n"
        )
        self.command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{member}} {{phase}}"

    def _restart(self, member_id: str, phase: str) -> None:
        member = next(m for m in self.members if m.member_id == member_id)
        member.stop()
        member.offsets_storage = "zookeeper" if phase == "zookeeper" else "kafka"
        member.dual_commit = phase == "dual"
        member.start()

    def seen(self) -> Counter[tuple[int, int]]:
        """How often each message number of each partition was consumed by this group's old members."""
        return Counter((m.partition, int(m.value or b"-1")) for each in self.members for m in each.messages())

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def __enter__(self) -> Fleet:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.stop()


class ModernConsumer:
    """A confluent-kafka consumer that takes the group over, in a thread."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.seen: Counter[tuple[int, int]] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "error",
                "client.id": "modern",
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.seen[message.partition() or 0, int(message.value() or b"-1")] += 1
        self._consumer.close()

    def __enter__(self) -> ModernConsumer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def sandbox(shell: Shell, version: str) -> Iterator[tuple[str, str]]:
    shell.run("sandbox", "up", *(() if version == DEFAULT_VERSION else ("--broker-version", version)))
    try:
        found = shell.sandbox()
        yield found["OFFSETMGR_BOOTSTRAP_SERVER"], found["OFFSETMGR_ZOOKEEPER"]
    finally:
        shell.run("sandbox", "down", quiet=True)


def librdkafka_settings(version: str) -> dict[str, str]:
    """librdkafka's settings for brokers that do not report their API versions."""
    if not version.startswith(("0.8", "0.9")):
        return {}
    return {"api.version.request": "false", "broker.version.fallback": "0.8.2.2"}


def prove(name: str, sent: Counter[int], seen: Counter[tuple[int, int]]) -> int:
    """Prints how often a group saw its messages. Returns the number of messages that it lost."""
    everything = {(partition, number) for partition, count in sent.items() for number in range(count)}
    lost = len(everything - set(seen))
    times = Counter(seen[message] for message in everything if message in seen)
    how_often = ", ".join(f"{count} seen {often} time{'s' * (often > 1)}" for often, count in sorted(times.items()))
    say(f"{BOLD}{name}: {len(everything)} messages produced, {lost} lost; {how_often}{PLAIN}")
    return lost


def migrate(shell: Shell, zk: str, kafka: str, fleet: Fleet, name: str) -> str:
    """Plans and applies the first copy of a group's offsets. Returns the plan's file name."""
    plan = f"{name}.json"
    shell.run("migrate", "plan", "--from", zk, "--to", kafka, "--group", fleet.group, "-o", plan)
    shell.run("migrate", "apply", plan, "--yes")
    return plan


def bounce(shell: Shell, fleet: Fleet, servers: tuple[str, ...], phase: str) -> None:
    shell.run(
        "runbook", "bounce", "--group", fleet.group, "--to-phase", phase, "--command", fleet.command, *servers,
        "--quiet", "3", "--execute", "--yes",
    )  # fmt: skip


def demo(directory: Path, version: str) -> int:  # noqa: PLR0915
    shell = Shell(directory)
    old = version if version in OLD_CONSUMERS else "0.10.2.2"
    modern_clients = not librdkafka_settings(version)
    print(f"{BOLD}offsetmgr: one live group moves from ZooKeeper to Kafka, another comes back; nothing is lost{PLAIN}")
    chapter(f"real servers: ZooKeeper 3.8, Kafka {version} (fetched once, then kept in the cache)")
    with sandbox(shell, version) as (bootstrap, zookeeper), ExitStack() as stack:
        zk, kafka = f"zookeeper://{zookeeper}", f"kafka://{bootstrap}"
        servers = ("--zookeeper", zookeeper, "--bootstrap-server", bootstrap)
        create_topic(TOPIC, PARTITIONS, zookeeper=zookeeper, bootstrap=bootstrap, version=version)
        load = stack.enter_context(Load(bootstrap, version))
        chapter(f"a steady producer, and two groups of real {old} consumers with their offsets in ZooKeeper")
        shop = stack.enter_context(Fleet(directory, zookeeper, "shop", 3, old))
        bill = stack.enter_context(Fleet(directory, zookeeper, "bill", 1, old))
        wait_for(lambda: min(len(shop.seen()), len(bill.seen())) > 200, "both groups consume")
        shell.run("groups", "describe", "--group", "shop", *servers)

        chapter("group shop: plan and first copy. The plan is frozen, and only apply changes offsets")
        plan = migrate(shell, zk, kafka, shop, "shop")
        shell.run("migrate", "status", plan)

        chapter(
            "steps 1 and 2 of the documented procedure: offsets.storage=kafka, dual.commit.enabled=true, rolling bounce"
        )
        shell.run("runbook", "write", "--group", "shop", "--to", "kafka", *servers, "-o", "shop-runbook.md")
        bounce(shell, shop, servers, "dual")
        chapter("in the dual phase both stores agree: the copy verifies")
        shell.run("migrate", "verify", plan)

        chapter("steps 3 and 4: dual.commit.enabled=false, rolling bounce")
        bounce(shell, shop, servers, "kafka")
        shell.run("migrate", "finalize", plan, "--yes")

        modern_seen: Counter[tuple[int, int]] = Counter()
        if modern_clients:
            chapter("cutover: the old consumers stop, and a modern one continues in the same group")
            shop.stop()
            modern = stack.enter_context(ModernConsumer(bootstrap, "shop"))
            modern_seen = modern.seen
            wait_for(lambda: len(modern_seen) > 200, "the modern consumer consumes")
        else:
            chapter("the old consumers continue with their offsets in Kafka: these brokers support no modern ones")
            before = len(shop.seen())
            wait_for(lambda: len(shop.seen()) > before + 200, "group shop consumes with its offsets in Kafka")
        shell.run("groups", "describe", "--group", "shop", "--bootstrap-server", bootstrap)

        chapter("group bill: a copy, which the operator rolls back; then to the dual phase and back again")
        plan = migrate(shell, zk, kafka, bill, "bill")
        shell.run("migrate", "rollback", plan, "--yes")
        bounce(shell, bill, servers, "dual")
        bounce(shell, bill, servers, "zookeeper")
        before = len(bill.seen())
        wait_for(lambda: len(bill.seen()) > before + 100, "group bill consumes from ZooKeeper again")

        chapter("the proof: every message number of both groups")
        load.end()
        sent = load.sent
        total = sum(sent.values())
        wait_for(
            lambda: len(shop.seen() + modern_seen) >= total and len(bill.seen()) >= total, "the last is consumed", 30
        )
        way = "ZooKeeper -> dual -> Kafka" + (" -> modern consumer" if modern_clients else "")
        lost = prove(f"shop ({way})", sent, shop.seen() + modern_seen)
        lost += prove("bill (ZooKeeper -> dual -> ZooKeeper)", sent, bill.seen())
    print(f"\n{BOLD}{lost} lost messages; {time.monotonic() - STARTED:.0f} s{PLAIN}")
    return 1 if lost else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="An operator's whole migration, on real servers.")
    parser.add_argument(
        "--broker-version", choices=[*BROKER_JARS], default=DEFAULT_VERSION, help="the brokers' release"
    )
    version = parser.parse_args().broker_version
    # The name is short, because this directory contains Unix sockets, and their paths have a maximum length.
    directory = Path(tempfile.mkdtemp(prefix="offsetmgr-demo-"))
    try:
        return demo(directory, version)
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
