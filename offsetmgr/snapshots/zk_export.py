"""The line format of Kafka's old tools ExportZkOffsets and ImportZkOffsets:
``/consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET``.

ImportZkOffsets (0.10.2) stops silently at the first empty line; this reader skips empty lines. ImportZkOffsets splits a
line at its first colon, so the writer rejects names with colons. The ExportZkOffsets of Kafka 0.7 wrote
``BROKER-PARTITION`` instead of ``PARTITION``, and byte positions instead of offsets. The reader accepts these lines as
well.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from offsetmgr.core.model import BrokerPartition
from offsetmgr.core.offset_store import GroupOffsets, PartitionKinds
from offsetmgr.core.selection import MAX_PARTITION
from offsetmgr.snapshots.base import (
    BadLine,
    number,
    offset_number,
)
from offsetmgr.snapshots.line_formats import LineFormat, NameCheck

_PLAIN: Final = re.compile(
    rb"()/consumers/([ -.0-~]+)/offsets/()([ -.0-~]+)/(0|[1-9][0-9]{0,8}):(0|[1-9][0-9]{0,17})\r?\n?"
)
_ANY: Final = re.compile(r"/consumers/([^/]+)/offsets/([^/]+)/([^/:]*):([^/:]*)")


class ZkExportFormat(LineFormat):
    """The format of ExportZkOffsets: each line has a znode path (without the chroot) and an offset."""

    name = "zk"
    groups_in = "lines"
    capabilities = replace(LineFormat.capabilities, partitions=PartitionKinds.ALL)
    title = "ExportZkOffsets' format"
    forbidden = "/:"
    plain = _PLAIN

    def _text(self, group: GroupOffsets, names: NameCheck) -> str:
        prefix = f"/consumers/{names.require_valid('group', group.name)}/offsets/"
        names.topics(group.offsets, str)
        return "".join([f"{prefix}{tp[0]}/{tp[1]}:{found[0]}\n" for tp, found in sorted(group.offsets.items())])

    def parse(self, line: str) -> tuple[str, str, int, int]:
        found = _ANY.fullmatch(line)
        if not found:
            raise BadLine("not of the form /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET")
        group, topic, partition, offset = found.groups()
        value = offset_number(offset)
        if "-" in partition[1:]:
            of_broker = BrokerPartition.parse(partition)
            if of_broker is None:
                raise BadLine("BROKER-PARTITION of Kafka 0.7 goes up to 65534-32767, without leading zeros")
            return group, topic, of_broker, value
        return group, topic, number(partition, MAX_PARTITION, "partition"), value
