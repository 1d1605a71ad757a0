"""Consumers for Python programs. Each name of this package is imported from its module when a program first uses the
name.

`SimpleConsumer` reads partitions at given offsets, and commits offsets only when the caller requests it.
`ZookeeperConsumer` is a member of a group of old high-level consumers. The members of such a group register themselves
and the partitions that they own in ZooKeeper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetmgr.core import lazy_exports

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

if not TYPE_CHECKING:  # a type checker would accept every name of a module that defines __getattr__
    __all__, __getattr__, __dir__ = lazy_exports(__name__)
