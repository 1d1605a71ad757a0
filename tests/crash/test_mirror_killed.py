"""A mirror process that is killed (SIGKILL) repeatedly under load: its target never goes back, and ends equal to the
source."""

import logging
import os
import random
import signal
import time
from pathlib import Path

import pytest
from processes import run_command, start_command
from repeated import repeated

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.stores.uri import open_store

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

KILLS = 50 if os.environ.get("OFFSETMGR_SOAK") else 3
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
GROUPS = 4
PARTITIONS = 3


def offsets(store: OffsetStore, groups: list[str]) -> dict[tuple[str, TopicPartition], int]:
    found: dict[tuple[str, TopicPartition], int] = {}
    for group in store.scan(groups):
        assert group.error is None, group.error
        assert not group.errors
        found.update({(group.name, tp): c.offset for tp, c in group.offsets.items() if isinstance(c, Committed)})
    return found


@pytest.mark.parametrize("direction", ["to-kafka", "to-zookeeper"])
def test_a_mirror_killed_under_load_loses_nothing_and_lowers_nothing(
    direction, zookeeper, kafka, make_topic, unique, tmp_path
):
    logging.getLogger(__name__).info("seed %d, %d kills", SEED, KILLS)
    chance = random.Random(SEED)
    topic = make_topic(unique, PARTITIONS)
    groups = [f"{unique}-{n}" for n in range(GROUPS)]
    uris = [f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{kafka.bootstrap}"]
    from_, to = uris if direction == "to-kafka" else reversed(uris)
    command = ["migrate", "mirror", "--yes", "--from", from_, "--to", to, "--group", f"{unique}-*"]
    command += ["--settle", "100", "--interval", "100"]
    with open_store(from_) as source, open_store(to) as target, open_store(to) as observed:
        at = dict.fromkeys(groups, 0)
        seen: dict[tuple[str, TopicPartition], int] = {}
        samples = 0

        def load() -> None:
            group = chance.choice(groups)
            at[group] += chance.randint(1, 5)
            source.commit(
                group, {TopicPartition(topic, p): OffsetAndMetadata(at[group] + p) for p in range(PARTITIONS)}
            )

        def watch() -> None:
            nonlocal samples
            now = offsets(observed, groups)
            lower = {key: (offset, now.get(key)) for key, offset in seen.items() if now.get(key, -1) < offset}
            assert not lower, f"went lower: {lower}"
            seen.update(now)
            samples += 1

        for group in groups:
            source.commit(group, {TopicPartition(topic, p): OffsetAndMetadata(p) for p in range(PARTITIONS)})
        with repeated(load, watch):
            kill_again_and_again(command, chance, tmp_path, lambda: dict(seen))
        run_command(*command, "--once")
        assert offsets(target, groups) == offsets(source, groups)
        assert samples > KILLS


def kill_again_and_again(command: list[str], chance: random.Random, directory: Path, seen) -> None:
    """Starts the mirror and kills it, `KILLS` times: sometimes early, mostly some time after the target changed."""
    for life in range(KILLS):
        before = seen()
        early = chance.random() < 0.3
        log_file = directory / f"{life}.log"
        with log_file.open("w") as log:
            mirror = start_command(*command, stdout=log, stderr=log)
            try:
                deadline = time.monotonic() + (chance.uniform(0.3, 1.0) if early else 60)
                while time.monotonic() < deadline and (early or seen() == before):
                    assert mirror.poll() is None, log_file.read_text()
                    time.sleep(0.02)
                if not early:
                    assert seen() != before, log_file.read_text()
                    time.sleep(chance.uniform(0, 0.3))  # a random moment of the kill
            finally:
                mirror.send_signal(signal.SIGKILL)
                mirror.wait()
