"""Segments of real brokers: every record equals the one that a consumer reads.

`tests/segments/test_log_entries.py` compares every field of the entries of brokers.
"""

from pathlib import Path
from typing import Final

import pytest
from broker_written_logs import (
    CODECS,
    FAST_CLEANER,
    FORMATS,
    SOAK,
    TRANSACTIONS,
    dumped,
    fields_of,
    topics_of,
    write_all,
)

from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
BROKERS: Final = ("by topic", "0.9.0", "0.10.2", "4.4") if SOAK else ("by topic",)
"""Broker 3.9.1 with inter-broker version 2.8, which writes each format to separate topics; the same broker with an
older version for everything; broker 4.4.0."""


@pytest.mark.parametrize("name", BROKERS)
def test_every_message_equals_the_one_a_consumer_reads(name: str, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    directory = tmp_path / "broker"
    broker: KafkaBroker | KraftBroker
    if name == "4.4":
        magics = [2]
        topics = topics_of({"4.4": 2}, by_topic=False)
        broker = KraftBroker(directory, config=FAST_CLEANER)
    else:
        magics = [0, 1, 2] if name == "by topic" else [FORMATS[name]]
        version = "2.8" if name == "by topic" else name
        topics = topics_of(FORMATS if name == "by topic" else {name: FORMATS[name]}, by_topic=name == "by topic")
        versions = {"inter.broker.protocol.version": version, "log.message.format.version": version}
        chroot = f"{zookeeper.connect}/segments-{version}"
        broker = KafkaBroker(directory, zookeeper=chroot, config={**versions, **FAST_CLEANER})
    with broker:
        found = write_all(broker.bootstrap, directory / "data", tmp_path / "copies", topics)

    assert len(found) == 2 * sum(6 if magic == 2 else 4 for magic in magics)
    for written in found:
        where = written.directory.name
        rows = dumped(written.directory)
        assert list(map(fields_of, rows)) == written.uncommitted, where
        assert {row["magic"] for row in rows} == {written.magic}, where
        assert len(written.segments) > 1, where
        topic, _, number = where.rpartition("-")
        if int(number) < TRANSACTIONS:
            assert CODECS[int(number)] in {row["codec"] for row in rows}, where
        with_gaps = topic.endswith("compact") or int(number) == TRANSACTIONS
        assert (len(rows) <= rows[-1]["offset"]) == with_gaps, f"{where}: compaction and markers leave gaps"
        # A read of committed messages excludes aborted and unstable ones.
        committed = list(map(fields_of, dumped(written.directory, "--isolation-level", "read_committed")))
        assert committed == written.committed, where
        if int(number) == TRANSACTIONS:
            assert 0 < len(committed) < len(written.uncommitted)
