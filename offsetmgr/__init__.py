"""Inspects, edits and migrates the committed offsets of Kafka consumer groups.

``__all__`` lists the public API. ``import offsetmgr`` is fast, because the module that defines a public name is
imported only when a program first uses that name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.core.lazy_exports import lazy_exports
from offsetmgr.core.scheme_table import register_scheme
from offsetmgr.core.version import __version__ as __version__

if TYPE_CHECKING:
    from offsetmgr.app.migration import Migration as Migration
    from offsetmgr.app.migration import MigrationConfig as MigrationConfig
    from offsetmgr.app.offset_admin import OffsetAdmin as OffsetAdmin
    from offsetmgr.app.planned_edit import EditReport as EditReport
    from offsetmgr.app.planned_edit import PlannedEdit as PlannedEdit
    from offsetmgr.config.connection import ConnectionConfig as ConnectionConfig
    from offsetmgr.core import errors
    from offsetmgr.core.commit_mode import CommitMode as CommitMode
    from offsetmgr.core.errors import OffsetMgrError as OffsetMgrError
    from offsetmgr.core.log_origin import OffsetTranslation as OffsetTranslation
    from offsetmgr.core.model import ABSENT as ABSENT
    from offsetmgr.core.model import Absent as Absent
    from offsetmgr.core.model import BrokerPartition as BrokerPartition
    from offsetmgr.core.model import Committed as Committed
    from offsetmgr.core.model import OffsetAndMetadata as OffsetAndMetadata
    from offsetmgr.core.model import TopicPartition as TopicPartition
    from offsetmgr.core.offset_store import Change as Change
    from offsetmgr.core.offset_store import GroupEdit as GroupEdit
    from offsetmgr.core.offset_store import OffsetStore as OffsetStore
    from offsetmgr.core.selection import GroupSelection as GroupSelection
    from offsetmgr.groups.reset import ShiftBy as ShiftBy
    from offsetmgr.groups.reset import ToCurrent as ToCurrent
    from offsetmgr.groups.reset import ToEarliest as ToEarliest
    from offsetmgr.groups.reset import ToLatest as ToLatest
    from offsetmgr.groups.reset import ToOffset as ToOffset
    from offsetmgr.groups.reset import ToOffsets as ToOffsets
    from offsetmgr.groups.reset import ToTime as ToTime
    from offsetmgr.groups.running_groups import RunningEdit as RunningEdit
    from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster as KafkaCluster
    from offsetmgr.manager.embedded import OffsetManager as OffsetManager
    from offsetmgr.manager.partitioner import shard_for as shard_for
    from offsetmgr.migration.evidence import EvidenceThresholds as EvidenceThresholds
    from offsetmgr.migration.group_observer import ObservationWindow as ObservationWindow
    from offsetmgr.migration.plan import AheadPolicy as AheadPolicy
    from offsetmgr.migration.plan import PlanOptions as PlanOptions
    from offsetmgr.server.security.credentials import scram_verifier as scram_verifier
    from offsetmgr.stores.uri import open_store as open_store


for _name, _location in {
    "zookeeper": "offsetmgr.stores.schemes:ZOOKEEPER",
    "kafka": "offsetmgr.stores.schemes:KAFKA",
    "manager": "offsetmgr.stores.schemes:MANAGER",
    "file": "offsetmgr.stores.schemes:FILE",
    "dual": "offsetmgr.stores.dual_scheme:DUAL",
}.items():
    register_scheme(_name, _location)

_MODULE_OF: Final = {
    "ABSENT": "core.model",
    "Absent": "core.model",
    "AheadPolicy": "migration.plan",
    "BrokerPartition": "core.model",
    "CommitMode": "core.commit_mode",
    "Committed": "core.model",
    "ConnectionConfig": "config.connection",
    "EditReport": "app.planned_edit",
    "EvidenceThresholds": "migration.evidence",
    "Migration": "app.migration",
    "MigrationConfig": "app.migration",
    "ObservationWindow": "migration.group_observer",
    "OffsetAdmin": "app.offset_admin",
    "OffsetAndMetadata": "core.model",
    "OffsetManager": "manager.embedded",
    "OffsetMgrError": "core.errors",
    "Change": "core.offset_store",
    "GroupEdit": "core.offset_store",
    "GroupSelection": "core.selection",
    "KafkaCluster": "kafka.cluster.kafka_cluster",
    "OffsetStore": "core.offset_store",
    "OffsetTranslation": "core.log_origin",
    "PlanOptions": "migration.plan",
    "PlannedEdit": "app.planned_edit",
    "RunningEdit": "groups.running_groups",
    "ShiftBy": "groups.reset",
    "ToCurrent": "groups.reset",
    "ToEarliest": "groups.reset",
    "ToLatest": "groups.reset",
    "ToOffset": "groups.reset",
    "ToOffsets": "groups.reset",
    "ToTime": "groups.reset",
    "TopicPartition": "core.model",
    "open_store": "stores.uri",
    "scram_verifier": "server.security.credentials",
    "shard_for": "manager.partitioner",
}

__all__ = [  # noqa: RUF022 - in the order of docs/reference/api.md
    "OffsetAdmin",
    "PlannedEdit",
    "EditReport",
    "RunningEdit",
    "GroupSelection",
    "ToEarliest",
    "ToLatest",
    "ToCurrent",
    "ToOffset",
    "ToOffsets",
    "ToTime",
    "ShiftBy",
    "Migration",
    "MigrationConfig",
    "PlanOptions",
    "AheadPolicy",
    "OffsetTranslation",
    "CommitMode",
    "ObservationWindow",
    "EvidenceThresholds",
    "open_store",
    "OffsetStore",
    "GroupEdit",
    "Change",
    "KafkaCluster",
    "ConnectionConfig",
    "TopicPartition",
    "BrokerPartition",
    "OffsetAndMetadata",
    "Committed",
    "Absent",
    "ABSENT",
    "OffsetManager",
    "shard_for",
    "scram_verifier",
    "OffsetMgrError",
    "errors",
]

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    _defined, __dir__ = lazy_exports(__name__, _MODULE_OF)

    def __getattr__(name: str) -> Any:
        if name == "errors":
            return import_module("offsetmgr.core.errors")
        return _defined(name)
