"""The partition of a group is the one that Kafka's coordinator uses.

data/JavaHashes.java has printed the vectors with Java's and Kafka's own classes. Those of group-15838, group-23757, "",
polygenelubricants and group-🚀-ü were also seen in ``__consumer_offsets`` of broker 3.9.1.
"""

from pathlib import Path

import pytest
from memory_log import MemoryLog
from runtimes import Lease

from offsetmgr.manager.runtime import ManagerRuntime
from offsetmgr.records.avro import AvroRecordFormat

DATA = Path(__file__).parents[1] / "data"
VECTORS = [line.rsplit(" ", 3) for line in (DATA / "java_hashes.txt").read_text().splitlines()]


def text_of(units: str) -> str:
    """Decodes UTF-16 code units in hex and their number of repetitions, such as ``0067003a`` or ``d83dde00*1000``."""
    hexadecimal, _, times = units.partition("*")
    return bytes.fromhex(hexadecimal).decode("utf-16-be", "surrogatepass") * int(times or 1)


def shard_for(group: str, partitions: int) -> int:
    return ManagerRuntime(MemoryLog(partitions), AvroRecordFormat(), Lease()).partition_of(group)


@pytest.mark.parametrize(("units", "of_50", "of_7"), [(units, a, b) for units, _, a, b in VECTORS])
def test_the_partition_of_a_group_is_that_of_java(units: str, of_50: str, of_7: str) -> None:
    group = text_of(units)
    assert shard_for(group, 50) == int(of_50)
    assert shard_for(group, 7) == int(of_7)
