"""`MirrorMaker`: a real MirrorMaker 2, which copies topics and consumer groups' offsets to another cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Final, Literal

from offsetmgr.sandbox.java import QUICK_START
from offsetmgr.sandbox.process import ServerProcess

VERSION: Final = "4.1.1"
JARS: Final = "mirror-maker"
_STARTED: Final = re.compile(rb"Started Mirror(Source|Checkpoint)Connector with ")
_POLICIES: Final = {"identity": "IdentityReplicationPolicy", "default": "DefaultReplicationPolicy"}


@dataclass(eq=False, repr=False)
class MirrorMaker(ServerProcess):
    """MirrorMaker 2 of Kafka 4.1 in dedicated mode, as a child process: one direction, with one worker.

    ``source`` and ``target`` are bootstrap servers; the brokers are of release 2.1 or later. ``topics`` and ``groups``
    are regular expressions, separated by commas. With the ``policy`` ``identity`` the copy of a topic keeps the topic's
    name; with ``default`` the name of the copy begins with the alias of the source: ``A.orders``. ``aliases`` are the
    aliases of the source and the target. Every ``interval_s`` seconds MirrorMaker looks for new topics and groups,
    synchronizes the groups' offsets, and stores the positions up to which it has copied. ``config`` contains further
    properties, which override the properties from the other settings, for example
    ``{"B.offset.flush.interval.ms": 60_000}`` (Kafka's default). ``jvm`` are the flags of the JVM. A ``detached``
    MirrorMaker keeps running after this program has ended.

    `start` returns after the connectors have started, and MirrorMaker begins to copy records a few seconds later. The
    positions up to which it has copied are in the target cluster, so a MirrorMaker that was stopped or killed continues
    after `start`.
    """

    directory: Path
    _: KW_ONLY
    source: str
    target: str
    topics: str = ".*"
    groups: str = ".*"
    policy: Literal["identity", "default"] = "identity"
    aliases: tuple[str, str] = ("A", "B")
    interval_s: int = 5
    config: Mapping[str, object] = field(default_factory=dict)
    jvm: Sequence[str] = ("-Xmx512m", *QUICK_START)
    detached: bool = False

    name = "MirrorMaker"
    start_timeout_s = 180.0

    def __post_init__(self) -> None:
        super().__init__(self.directory, detached=self.detached)

    def settings(self) -> dict[str, object]:
        """Returns the properties of MirrorMaker."""
        a, b = self.aliases
        replicated = ("", "offset-syncs.topic.", "checkpoints.topic.", "heartbeats.topic.")
        stores = ("config.storage.", "offset.storage.", "status.storage.")
        periodic = ("sync.group.offsets", "emit.checkpoints", "refresh.topics", "refresh.groups")
        return {
            "clusters": f"{a},{b}",
            f"{a}.bootstrap.servers": self.source,
            f"{b}.bootstrap.servers": self.target,
            f"{a}->{b}.enabled": "true",
            f"{a}->{b}.topics": self.topics,
            f"{a}->{b}.groups": self.groups,
            f"{b}->{a}.enabled": "false",
            # With heartbeats MirrorMaker would also start connectors for the opposite direction.
            "emit.heartbeats.enabled": "false",
            # By default Connect also scans all classes for plugins, which takes a third of the start.
            "plugin.discovery": "service_load",
            "replication.policy.class": "org.apache.kafka.connect.mirror." + _POLICIES[self.policy],
            "sync.group.offsets.enabled": "true",
            f"{b}.offset.flush.interval.ms": self.interval_s * 1000,
            **{f"{prefix}replication.factor": 1 for prefix in (*replicated, *stores)},
            **{f"{prefix}.interval.seconds": self.interval_s for prefix in periodic},
            **self.config,
        }

    def _command(self) -> list[str]:
        file = self._settings_file("mm2.properties", self.settings())
        return self._java([JARS], "org.apache.kafka.connect.mirror.MirrorMaker", file)

    def _is_ready(self) -> bool:
        return set(_STARTED.findall(self.log_of_this_run())) == {b"Source", b"Checkpoint"}
