"""A running group with consumers under load, and the commands that edit it, also with a fault at one step."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from committed_offsets import offsets
from processes import finish, own_environment, process_state, start_command, until
from running_consumers import Deliveries, RdkafkaMember
from steady_load import Load

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import GroupDescription, TopicPartition
from offsetmgr.stores.kafka import KafkaStore

FAULTY = Path(__file__).with_name("faulty_edit.py")
PARTITIONS = 2
RECORDS_PER_S = 50


class RunningGroup:
    """A group that consumes the topic of the same name, and a state directory for the commands."""

    def __init__(self, bootstrap: str, group: str, home: Path) -> None:
        self.bootstrap, self.group = bootstrap, group
        self.deliveries = Deliveries()
        self._environ = own_environment(home)
        self._environ.pop("PYTHONSAFEPATH", None)  # the programs import helpers from their own directory

    def edit(self, command: str, *options: str, partition: int = 0) -> list[str]:
        """The arguments of an edit of one partition."""
        edit = ["offsets", command, "--group", self.group, "--topic", f"{self.group}:{partition}", *options]
        return [*edit, "--running", "--execute", "--yes", "--bootstrap-server", self.bootstrap]

    def reset(self, offset: int, partition: int = 0) -> list[str]:
        return self.edit("reset", "--to-offset", str(offset), partition=partition)

    def start(self, *arguments: str, program: Sequence[str] = ()) -> subprocess.Popen[str]:
        return start_command(*arguments, environ=self._environ, program=program)

    def start_faulty(self, step: str, number: signal.Signals, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command that sends itself a signal at a step; see `faulty_edit`."""
        return self.start(*arguments, program=(sys.executable, str(FAULTY), step, number.name))

    def start_frozen(self, step: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command, which stops itself at a step until it receives SIGCONT, and waits until it has stopped."""
        process = self.start_faulty(step, signal.SIGSTOP, *arguments)
        until(lambda: process_state(process.pid) == "T")
        return process

    def run(self, *arguments: str, code: int | None = 0) -> tuple[str, str]:
        """Runs a command. Returns its stdout and stderr."""
        return self.finish(self.start(*arguments), code)

    @staticmethod
    def finish(process: subprocess.Popen[str], code: int | None = 0) -> tuple[str, str]:
        done = finish(process, code)
        return done.stdout, done.stderr

    def operations(self) -> list[dict[str, Any]]:
        return list(json.loads(self.run("edits", "list", "--format", "json")[0]))

    def coordinator(self) -> int:
        """The number of the group's coordinator among the bootstrap servers, from 1 on; 0 if it is unknown."""
        found = self._described()
        addresses = self.bootstrap.split(",")
        return addresses.index(found.coordinator) + 1 if found and found.coordinator in addresses else 0

    def await_members(self, number: int, seconds: float = 120) -> None:
        """Waits until the group is stable with this number of consumers, and without an edit."""

        def free() -> bool:
            found = self._described()
            if found is None or found.state != "STABLE" or found.edited_by is not None:
                return False
            return len(found.members) == number

        try:
            until(free, seconds)
        except AssertionError as error:
            raise AssertionError(f"not {number} members after {seconds:g} s: {self._described()}") from error

    def is_edited(self) -> bool:
        """Whether an edit is a member of the group now. Fails while the coordinator moves."""
        found = self._described()
        assert found is not None
        return found.edited_by is not None

    def _described(self) -> GroupDescription | None:
        """The description of the group; None while its coordinator moves."""
        with KafkaStore(self.bootstrap) as store:
            thread = store.store_thread()
            try:
                found = thread.run(lambda deadline: thread.client.describe([self.group], deadline))[self.group]
            except OffsetMgrError:
                return None
        return found if isinstance(found, GroupDescription) else None

    def await_progress(self, seconds: float = 120) -> None:
        """Waits until the group receives new records of every partition."""
        since = time.time()

        def progressed() -> bool:
            new = [one for one in self.deliveries.found if one.at > since]
            return {one.partition for one in new} == set(range(PARTITIONS))

        until(progressed, seconds)

    def await_commits(self) -> None:
        """Waits until the group has committed in every partition again."""
        before = self._committed()
        until(lambda: all(offset != before.get(tp) for tp, offset in self._committed().items()))

    def _committed(self) -> dict[TopicPartition, int]:
        with KafkaStore(self.bootstrap) as store:
            return offsets(store.fetch(self.group))

    def await_record(self, partition: int, offset: int, since: float) -> None:
        """Waits until the group receives this record after ``since``."""
        until(
            lambda: any(
                (one.partition, one.offset) == (partition, offset) for one in self.deliveries.found if one.at > since
            )
        )

    def check_nothing_lost(self) -> None:
        for partition in range(PARTITIONS):
            offsets = {one.offset for one in self.deliveries.found if one.partition == partition}
            assert offsets == set(range(max(offsets) + 1)), f"{self.group}-{partition} has gaps"


@contextmanager
def running_group(
    bootstrap: str, group: str, home: Path, members: int = 2, **config: Any
) -> Iterator[tuple[RunningGroup, list[RdkafkaMember]]]:
    """Yields a group whose consumers have all received records, and the consumers."""
    home.mkdir(parents=True, exist_ok=True)
    found = RunningGroup(bootstrap, group, home)
    with Load(bootstrap, group, [*range(PARTITIONS)] * 2, 2 * PARTITIONS / RECORDS_PER_S):
        consumers = [
            RdkafkaMember(bootstrap, group, group, found.deliveries, name=f"member-{n}", **config)
            for n in range(members)
        ]
        try:
            until(lambda: {one.member for one in found.deliveries.found} == {one.name for one in consumers})
            until(lambda: len(found.deliveries.found) > 100)
            yield found, consumers
        finally:
            for one in consumers:
                one.stop()
