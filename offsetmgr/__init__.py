"""Inspects, edits and migrates the committed offsets of Kafka consumer groups.

``__all__`` lists the public API. ``import offsetmgr`` is fast, because the module that defines a public name is
imported only when a program first uses that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.core import __version__ as __version__
from offsetmgr.core import lazy_exports, register_scheme

if TYPE_CHECKING:
    from offsetmgr.app.edits import PlannedEdit as PlannedEdit
    from offsetmgr.app.migration import Migration as Migration
    from offsetmgr.app.migration import MigrationConfig as MigrationConfig
    from offsetmgr.app.offset_admin import OffsetAdmin as OffsetAdmin
    from offsetmgr.config.connection import ConnectionConfig as ConnectionConfig
    from offsetmgr.core import errors as errors
    from offsetmgr.core.commit_mode import CommitMode as CommitMode
    from offsetmgr.core.errors import OffsetMgrError as OffsetMgrError
    from offsetmgr.core.log_origin import OffsetTranslation as OffsetTranslation
    from offsetmgr.core.log_origin import TranslationRules as TranslationRules
    from offsetmgr.core.model import ABSENT as ABSENT
    from offsetmgr.core.model import Absent as Absent
    from offsetmgr.core.model import BrokerPartition as BrokerPartition
    from offsetmgr.core.model import Committed as Committed
    from offsetmgr.core.model import OffsetAndMetadata as OffsetAndMetadata
    from offsetmgr.core.model import TopicPartition as TopicPartition
    from offsetmgr.core.offset_store import AheadPolicy as AheadPolicy
    from offsetmgr.core.offset_store import Change as Change
    from offsetmgr.core.offset_store import GroupEdit as GroupEdit
    from offsetmgr.core.offset_store import OffsetStore as OffsetStore
    from offsetmgr.core.offset_store import RunningEdit as RunningEdit
    from offsetmgr.core.scenario import ShiftBy as ShiftBy
    from offsetmgr.core.scenario import ToCurrent as ToCurrent
    from offsetmgr.core.scenario import ToEarliest as ToEarliest
    from offsetmgr.core.scenario import ToLatest as ToLatest
    from offsetmgr.core.scenario import ToOffset as ToOffset
    from offsetmgr.core.scenario import ToOffsets as ToOffsets
    from offsetmgr.core.scenario import ToTime as ToTime
    from offsetmgr.core.selection import GroupSelection as GroupSelection
    from offsetmgr.groups.execute import EditReport as EditReport
    from offsetmgr.kafka.cluster import KafkaCluster as KafkaCluster
    from offsetmgr.manager.offset_manager import OffsetManager as OffsetManager
    from offsetmgr.manager.partitioner import shard_for as shard_for
    from offsetmgr.migration.evidence import EvidenceThresholds as EvidenceThresholds
    from offsetmgr.migration.observation import ObservationWindow as ObservationWindow
    from offsetmgr.migration.plan import PlanOptions as PlanOptions
    from offsetmgr.server.security.credentials import scram_verifier as scram_verifier
    from offsetmgr.stores.uri import open_store as open_store


for _name, _scheme in {
    "zookeeper": ("offsetmgr.stores.uri:ZOOKEEPER", "zookeeper://h1:2181/chroot", "ZooKeeper"),
    "kafka": ("offsetmgr.stores.uri:KAFKA", "kafka://h1:9092", "Kafka"),
    "manager": ("offsetmgr.stores.uri:MANAGER", "manager://h1:9192", "the offset manager"),
    "dual": ("offsetmgr.stores.uri:DUAL", "dual:NAME"),
    "file": ("offsetmgr.stores.uri:FILE", "file:offsets.avro"),
}.items():
    register_scheme(_name, *_scheme)

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
