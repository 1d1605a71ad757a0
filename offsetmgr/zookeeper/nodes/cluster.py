"""The cluster as a whole: its id, its controller, its features, its blocks of producer ids.

Sources: kafka.controller.KafkaController of 0.8 to 1.1, kafka.zk.ZkData since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.zookeeper.nodes.fields import MAX_LONG, Fields, Notes, decoded, listing, small_number, unreadable

CONTROLLER_VERSIONS: Final = (1, 2)

_BARE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_CLUSTER_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,22}", re.ASCII)
"""A UUID in the URL-safe Base64 alphabet without padding."""


@dataclass(frozen=True, slots=True)
class Controller:
    """``/controller``: the broker that is the controller (an ephemeral node of that broker)."""

    broker_id: int
    timestamp_ms: int | None = None
    """Election time, by the broker's clock; None before 0.8.1."""
    kraft_epoch: int | None = None
    """Version 2: epoch of the KRaft controller that has taken over; None if none has."""

    def __str__(self) -> str:
        kraft = "" if self.kraft_epoch is None else f" (KRaft epoch {self.kraft_epoch})"
        return f"broker {self.broker_id}{kraft}"


@dataclass(frozen=True, slots=True)
class Features:
    """``/feature``: the finalized features of the cluster (KIP-584)."""

    enabled: bool
    versions: Mapping[str, Mapping[str, int]]

    def __str__(self) -> str:
        features = " ".join(f"{name}({listing(labels)})" for name, labels in self.versions.items())
        return ("enabled " if self.enabled else "disabled ") + (features or "none")


@dataclass(frozen=True, slots=True)
class ProducerIds:
    """``/latest_producer_id_block``: the block of producer ids that was allocated last, and its broker."""

    broker: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first} to {self.last} for broker {self.broker}"


def parse_controller(path: str, data: bytes, notes: Notes | None = None) -> Controller:
    """JSON, or the bare broker id of the first 0.8 brokers.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    if _BARE_ID.fullmatch(decoded(path, data)):
        return Controller(small_number(path, data, "a broker's id"))
    node = Fields.of(path, data, notes)
    node.version(CONTROLLER_VERSIONS)
    kraft_epoch = node.optional_integer("kraftControllerEpoch", -1)
    controller = Controller(
        node.integer("brokerid"),
        node.optional_integer("timestamp"),
        None if kraft_epoch == -1 else kraft_epoch,
    )
    node.close()
    return controller


def parse_controller_epoch(path: str, data: bytes) -> int:
    """The number of controllers elected so far. Raises `CorruptData`, which names ``path``."""
    return small_number(path, data, "the controller's epoch")


def parse_cluster_id(path: str, data: bytes, notes: Notes | None = None) -> str:
    """The id in ``/cluster/id`` (brokers since 0.10.1): 1 to 22 of ``[a-zA-Z0-9_-]``.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    node = Fields.of(path, data, notes)
    node.version((1,))
    cluster_id = node.text("id")
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise unreadable(path, f"its 'id' {cluster_id!a:.60} is no cluster id: 1 to 22 of [a-zA-Z0-9_-]")
    node.close()
    return cluster_id


def parse_features(path: str, data: bytes, notes: Notes | None = None) -> Features:
    """Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``."""
    node = Fields.of(path, data, notes)
    node.version((1, 2))
    status, listed = node.integer("status", 0, 1), node.get("features")
    if not isinstance(listed, dict):
        raise node.broken("features", "an object")
    versions = Fields(path, listed, None, "features.")
    features = Features(status == 1, {name: versions.integers(name) for name in listed})
    node.close()
    return features


def parse_producer_ids(path: str, data: bytes, notes: Notes | None = None) -> ProducerIds:
    """Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``."""
    node = Fields.of(path, data, notes)
    node.version((1,))
    block = ProducerIds(
        node.integer("broker"), node.integer("block_start", 0, MAX_LONG), node.integer("block_end", 0, MAX_LONG)
    )
    node.close()
    return block
