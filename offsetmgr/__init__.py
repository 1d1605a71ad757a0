"""Inspects, edits and migrates the committed offsets of Kafka consumer groups.

``__all__`` lists the public API. ``import offsetmgr`` is fast, because the module that defines a public name is
imported only when a program first uses that name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.core.scheme_table import register_scheme
from offsetmgr.core.version import __version__ as __version__

if TYPE_CHECKING:
    from offsetmgr.config.connection import ConnectionConfig as ConnectionConfig
    from offsetmgr.core import errors
    from offsetmgr.core.errors import OffsetMgrError as OffsetMgrError
    from offsetmgr.core.model import ABSENT as ABSENT
    from offsetmgr.core.model import Absent as Absent
    from offsetmgr.core.model import BrokerPartition as BrokerPartition
    from offsetmgr.core.model import Committed as Committed
    from offsetmgr.core.model import OffsetAndMetadata as OffsetAndMetadata
    from offsetmgr.core.model import TopicPartition as TopicPartition
    from offsetmgr.manager.embedded import OffsetManager as OffsetManager
    from offsetmgr.stores.uri import open_store as open_store


for _name, _location in {
    "zookeeper": "offsetmgr.stores.schemes:ZOOKEEPER",
    "kafka": "offsetmgr.stores.schemes:KAFKA",
    "manager": "offsetmgr.stores.schemes:MANAGER",
    "file": "offsetmgr.stores.schemes:FILE",
    "dual": "offsetmgr.stores.dual_scheme:DUAL",
    "switched": "offsetmgr.stores.switched.scheme:SWITCHED",
}.items():
    register_scheme(_name, _location)

_MODULE_OF: Final = {
    "ABSENT": "offsetmgr.core.model",
    "Absent": "offsetmgr.core.model",
    "Committed": "offsetmgr.core.model",
    "ConnectionConfig": "offsetmgr.config.connection",
    "OffsetAndMetadata": "offsetmgr.core.model",
    "OffsetManager": "offsetmgr.manager.embedded",
    "OffsetMgrError": "offsetmgr.core.errors",
    "BrokerPartition": "offsetmgr.core.model",
    "TopicPartition": "offsetmgr.core.model",
    "open_store": "offsetmgr.stores.uri",
}

__all__ = [  # noqa: RUF022 - the data types first, then stores, manager and errors
    "ABSENT",
    "Absent",
    "Committed",
    "OffsetAndMetadata",
    "BrokerPartition",
    "TopicPartition",
    "ConnectionConfig",
    "open_store",
    "OffsetManager",
    "OffsetMgrError",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("offsetmgr.core.errors")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'offsetmgr' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
