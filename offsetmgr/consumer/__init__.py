"""Consumers for Python programs. Each name of this package is imported from its module when a program first uses the
name.

`SimpleConsumer` reads partitions at given offsets, and commits offsets only when the caller requests it.
`ZookeeperConsumer` is a member of a group of old high-level consumers. The members of such a group register themselves
and the partitions that they own in ZooKeeper.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from offsetmgr.consumer.highlevel import ZookeeperConsumer as ZookeeperConsumer
    from offsetmgr.consumer.settings import ConsumerSettings as ConsumerSettings
    from offsetmgr.consumer.simple import FetchResult as FetchResult
    from offsetmgr.consumer.simple import SimpleConsumer as SimpleConsumer
    from offsetmgr.consumer.streams import MessageStream as MessageStream
    from offsetmgr.consumer.streams import StreamMessage as StreamMessage
    from offsetmgr.kafka.client.fetch import EARLIEST as EARLIEST
    from offsetmgr.kafka.client.fetch import LATEST as LATEST
    from offsetmgr.segments.batch_reader import Record as Record

_MODULES: Final = {
    "ConsumerSettings": "offsetmgr.consumer.settings",
    "EARLIEST": "offsetmgr.kafka.client.fetch",
    "FetchResult": "offsetmgr.consumer.simple",
    "LATEST": "offsetmgr.kafka.client.fetch",
    "StreamMessage": "offsetmgr.consumer.streams",
    "MessageStream": "offsetmgr.consumer.streams",
    "Record": "offsetmgr.segments.batch_reader",
    "SimpleConsumer": "offsetmgr.consumer.simple",
    "ZookeeperConsumer": "offsetmgr.consumer.highlevel",
}

__all__ = [
    "EARLIEST",
    "LATEST",
    "ConsumerSettings",
    "FetchResult",
    "MessageStream",
    "Record",
    "SimpleConsumer",
    "StreamMessage",
    "ZookeeperConsumer",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
