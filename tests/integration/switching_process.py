"""Runs one live switch in a separate process, which kills or freezes itself after a given step.

Argument: a JSON object with ``zookeeper``, ``bootstrap``, ``group``, ``to``, ``session_ms``, ``signal`` (the signal
that the process sends to itself) and ``at`` (a step of `offsetmgr.migration.live.live_migration.STEPS`, ``begun``
before all of them, or ``recorded`` before the copy).
"""

from __future__ import annotations

import json
import os
import sys

from before_image_callback import BeforeImageCallback

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.migration.live.live_migration import LiveMigration, SwitchSides
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.session import ZookeeperSession


def main(zookeeper: str, bootstrap: str, group: str, to: str, session_ms: int, at: str, signal: int) -> None:
    def reached(step: str) -> None:
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
        if step == at:
            os.kill(os.getpid(), signal)

    with (
        ZookeeperStore(zookeeper) as first,
        KafkaStore(bootstrap) as second,
        KafkaCluster(bootstrap) as cluster,
        ZookeeperSession(zookeeper, session_timeout_ms=session_ms) as session,
    ):
        switch = LiveMigration(
            session,
            group,
            SwitchSides(first, second, cluster),
            who="a test's process",
            images_of=lambda *_: BeforeImageCallback(lambda _: reached("recorded")),
            on_step=reached,
        )
        reached("begun")
        switch.execute(CommitMode(to), wait_s=90)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
