"""Parses the nodes that describe the cluster: its id, controller, features and producer id blocks.

Sources: kafka.controller.KafkaController of Kafka 0.8 to 1.1, and kafka.zk.ZkData of later releases.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.field_reader import MAX_LONG
from offsetmgr.zookeeper.nodes.fields import Fields, Notes, corrupt, decoded, format_features, parse_number

_BARE_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_CLUSTER_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,22}", re.ASCII)
"""A UUID in the URL-safe Base64 alphabet without padding."""


@dataclass(frozen=True, slots=True)
class Controller:
    """``/controller``: the broker that is the controller. The node is ephemeral and belongs to the ZooKeeper session of
    this broker."""

    broker_id: int
    timestamp_ms: int | None = None
    """The time of the election, by the broker's clock; None before Kafka 0.8.1."""
    kraft_epoch: int | None = None
    """The epoch of the KRaft controller, if a KRaft controller has taken over (only in version 2 of the format);
    otherwise None."""

    def __str__(self) -> str:
        kraft = "" if self.kraft_epoch is None else f" (KRaft epoch {self.kraft_epoch})"
        return f"broker {self.broker_id}{kraft}"


def parse_controller(path: str, data: bytes, notes: Notes | None = None) -> Controller:
    """Parses ``/controller``: a JSON object, or, as written by the first brokers of Kafka 0.8, only the broker id.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    if _BARE_ID.fullmatch(decoded(path, data)):
        return Controller(parse_number(path, data, "a broker's id"))
    with Fields.versioned(path, data, notes, 1, 2) as node:
        kraft_epoch = node.optional_integer("kraftControllerEpoch", -1)
        return Controller(
            node.integer("brokerid"), node.optional_integer("timestamp"), None if kraft_epoch == -1 else kraft_epoch
        )


def parse_controller_epoch(path: str, data: bytes, notes: Notes | None = None) -> int:  # noqa: ARG001
    """Parses ``/controller_epoch``, the number of controller elections so far. Raises `CorruptData`, which names
    ``path``."""
    return parse_number(path, data, "the controller's epoch")


def parse_cluster_id(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/cluster/id``, which brokers since Kafka 0.10.1 write. A cluster id has 1 to 22 characters of
    ``[a-zA-Z0-9_-]``.

    Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``.
    """
    with Fields.versioned(path, data, notes, 1) as node:
        cluster_id = node.text("id")
        if not _CLUSTER_ID.fullmatch(cluster_id):
            why = f"its 'id' {cluster_id!a:.60} is not a cluster id (1 to 22 characters of a-z, A-Z, 0-9, _ and -)"
            raise corrupt(path, why)
        return cluster_id


def parse_features(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/feature``, the finalized features of the cluster (KIP-584). Raises `CorruptData` and, without
    ``notes``, `UnknownVersion`; both name ``path``."""
    with Fields.versioned(path, data, notes, 1, 2) as node:
        status, versions = node.integer("status", 0, 1), node.versions_of_features()
        if versions is None:
            raise node.invalid("features", "an object")
        return f"{'enabled' if status else 'disabled'} {format_features(versions) or 'none'}"


def parse_producer_ids(path: str, data: bytes, notes: Notes | None = None) -> str:
    """Parses ``/latest_producer_id_block``: the last allocated block of producer ids, and the broker to which it was
    allocated. Raises `CorruptData` and, without ``notes``, `UnknownVersion`; both name ``path``."""
    with Fields.versioned(path, data, notes, 1) as node:
        first, last = (node.integer(name, 0, MAX_LONG) for name in ("block_start", "block_end"))
        return f"{first} to {last} for broker {node.integer('broker')}"
