"""The settings of librdkafka for readers of an offsets topic, with the reasons.

``properties`` are the user's settings (addresses, TLS, SASL, sockets) under librdkafka's names. The user's settings
cannot override the settings on which the guarantees of the readers depend.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from offsetmgr.kafka.librdkafka import librdkafka_settings

SILENT: Final = logging.getLogger("offsetmgr.librdkafka")
"""Receives the log messages of librdkafka. The log messages are not needed, because the client raises every relevant
error."""

_QUICK_RECONNECT: Final = {"reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "500"}
_NO_LOG: Final = {"log_level": 0}


def loader_settings(bootstrap: str, properties: Mapping[str, str], group: str) -> dict[str, Any]:
    """Returns the settings of a consumer that reads whole partitions and therefore prefetches a large amount of
    data."""
    return {
        **_QUICK_RECONNECT,
        "socket.nagle.disable": "true",
        **librdkafka_settings(properties),
        **_NO_LOG,
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "isolation.level": "read_committed",
        # Markers and aborted records may follow the last record. Only the end-of-partition event reports the offset
        # after them.
        "enable.partition.eof": "true",
        # If the log no longer contains the start offset, the consumer checks the reason; librdkafka must not choose an
        # offset.
        "auto.offset.reset": "error",
        "allow.auto.create.topics": "false",
        # A record that is damaged on a broker's disk must not be returned.
        "check.crcs": "true",
        # The end-of-partition event comes with the first empty fetch, which a broker answers after this time.
        "fetch.wait.max.ms": 50,
        "fetch.error.backoff.ms": 50,
        "max.poll.interval.ms": 86_400_000,
        "fetch.message.max.bytes": 4 << 20,
        "fetch.max.bytes": 64 << 20,
        "receive.message.max.bytes": 128 << 20,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": 128 << 10,
        "fetch.queue.backoff.ms": 5,
    }
