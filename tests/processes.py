"""Runs offsetmgr's commands as processes, for tests of the whole command line, and waits for conditions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from forked_commands import ForkedCommand, fits

from offsetmgr.core.errors import PartialFailure
from offsetmgr.groups.last_writes import CLOCK_MARGIN_MS

OFFSETMGR = (sys.executable, "-m", "offsetmgr")
DEADLINE_S = 300


def on_a_full_disk(kib: int) -> tuple[str, ...]:
    """The program that runs a command whose files cannot grow beyond ``kib`` KiB: a larger write writes the part that
    fits, and fails."""
    return ("bash", "-c", f'ulimit -f {kib}; exec "$@"', "bash", *OFFSETMGR)


def pass_margin() -> None:
    """Waits until a commit is later than all earlier ones by more than the margin of the stores' clocks."""
    passed = time.monotonic() + 2 * CLOCK_MARGIN_MS / 1000
    wait_for(lambda: time.monotonic() > passed, "the margin has passed")


def wait_for(condition: Callable[[], object], description: str, seconds: float = 180) -> None:
    """Waits until the condition is true. Each pause is longer than the poll before it, because some conditions read
    much, and the servers and consumers that the test waits for need the processors."""
    deadline = time.monotonic() + seconds
    began = time.monotonic()
    while not _is_true(condition):
        assert time.monotonic() < deadline, f"{description}: not within {seconds} s"
        time.sleep(min(max(0.02, 4 * (time.monotonic() - began)), 1))
        began = time.monotonic()


def until(condition: Callable[[], object], seconds: float = 300) -> None:
    wait_for(condition, "the condition", seconds)


def _is_true(condition: Callable[[], object]) -> bool:
    """Returns False also if a condition cannot read an offset: the first commit of an old consumer to Kafka is -1."""
    try:
        return bool(condition())
    except PartialFailure:
        return False


def fails(error: type[Exception] | tuple[type[Exception], ...], call: Callable[..., object], *arguments: Any) -> bool:
    """Returns whether the call raises this error."""
    try:
        call(*arguments)
    except error:
        return True
    return False


def close_consumers(consumers: Iterable[Consumer]) -> None:
    """Closes consumers of groups with several members. If an assignment arrives meanwhile, ``rd_kafka_consumer_close``
    may never return; such a consumer is left to the end of its session."""
    closing = [threading.Thread(target=consumer.close, daemon=True) for consumer in consumers]
    for thread in closing:
        thread.start()
    deadline = time.monotonic() + 60
    for thread in closing:
        thread.join(max(deadline - time.monotonic(), 0))


def own_environment(home: Path | None = None) -> dict[str, str]:
    """This process's environment without the settings of offsetmgr. Configuration and state are in ``home``."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("OFFSETMGR_")}
    directories = {"XDG_CONFIG_HOME": str(home / "config"), "XDG_STATE_HOME": str(home / "state")} if home else {}
    return found | directories


def start_command(
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    program: Sequence[str] = (),
    text: bool = True,
    **options: Any,
) -> subprocess.Popen[Any]:
    """Starts a command, or another ``program`` with these arguments, with the ``options`` of `subprocess.Popen`, an
    empty stdin, and pipes for stdout and stderr. ``environ``: its whole environment, `own_environment` by default."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    env = own_environment() if environ is None else dict(environ)
    if not program and options.keys() <= {"cwd", *pipes} and fits(env):
        return ForkedCommand(arguments, env=env, text=text, **pipes | options)
    return subprocess.Popen([*(program or OFFSETMGR), *arguments], env=env, text=text, **pipes | options)


def run_command(*arguments: str, code: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; see `start_command`. ``code`` is the expected exit code, or None for any."""
    return finish(start_command(*arguments, **options), code)


def finish(process: subprocess.Popen[str], code: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Waits until a command ends with the exit code (None: any)."""
    with process:
        out, err = process.communicate(timeout=DEADLINE_S)
    assert code is None or process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def running_program(command: Sequence[str], log: Path) -> Iterator[None]:
    """A program that runs meanwhile, with its output in a file."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def process_state(pid: int) -> str:
    """The state of the main thread, by proc(5): "R" if it runs, "S" if it waits, "T" if a signal has stopped it."""
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]


def is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Whether every partition of a topic has a leader."""
    found = admin.list_topics(topic, timeout=60).topics[topic]
    return found.error is None and [p.leader >= 0 for p in found.partitions.values()] == [True] * partitions


def create_topic(bootstrap: str, name: str, partitions: int, replicas: int = 1) -> str:
    """Creates a topic and waits until all its partitions have leaders."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replicas)], operation_timeout=30)[name].result(60)
    wait_for(lambda: is_led(admin, name, partitions), f"{name} has leaders")
    return name


def delete_topic(admin: AdminClient, topic: str) -> None:
    """Deletes a topic and waits until it is gone from the broker's metadata, which a KRaft broker updates after the
    controller has responded."""
    admin.delete_topics([topic])[topic].result(60)
    wait_for(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is deleted")


def set_topic(admin: AdminClient, topic: str, settings: Mapping[str, str]) -> None:
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(90)


def fill(bootstrap: str, topic: str, *counts: int) -> None:
    """Writes this many records to the partitions 0, 1 and so on of a topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5})
    for partition, count in enumerate(counts):
        for number in range(count):
            producer.produce(topic, str(number), partition=partition)
    assert producer.flush(60) == 0


def produce(bootstrap: str, topic: str, values: Iterable[str | bytes], **settings: str) -> None:
    """Writes records with these values to partition 0 of a topic."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0


def wait_for_login(bootstrap: str, settings: Mapping[str, str]) -> None:
    """Waits until the brokers accept these credentials: new SCRAM credentials reach the brokers with a delay."""

    def accepted() -> bool:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
        try:
            return bool(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            return False

    wait_for(accepted, "the brokers accept the credentials")


@dataclass
class Commands:
    """Runs commands in ``directory``, which also holds their configuration and state.

    ``environ`` is added to their environment.
    """

    directory: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, program: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
        """Starts a command, or another ``program`` with these arguments."""
        own = {"XDG_CONFIG_HOME": str(self.directory), "XDG_STATE_HOME": str(self.directory / "state")}
        environ = {**own_environment(), **own, **self.environ}
        return start_command(*arguments, environ=environ, program=program, cwd=self.directory, **options)

    def run(self, *arguments: str, code: int | None = 0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end. ``code`` is the expected exit code, or None for any."""
        return finish(self.start(*arguments, **options), code)

    def timed(self, *arguments: str, code: int | None = 0) -> tuple[subprocess.CompletedProcess[str], float]:
        """Like `run`; also returns the duration in seconds."""
        began = time.monotonic()
        return self.run(*arguments, code=code), time.monotonic() - began
