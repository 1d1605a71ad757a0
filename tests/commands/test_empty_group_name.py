"""The empty group name, which brokers accept: it is read, edited, exported, migrated and deleted like any other."""

import json

import pytest
from processes import Commands

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("server", ["kafka", "kraft"])
def test_the_group_without_a_name_is_a_group(server: str, request, zookeeper, make_topic, unique, tmp_path) -> None:
    broker: KafkaBroker = request.getfixturevalue(server)
    topic = make_topic(unique, 2, bootstrap=broker.bootstrap)
    uri, run = f"kafka://{broker.bootstrap}", Commands(tmp_path).run
    with open_store(uri) as store:
        for group in ("", unique):
            store.commit(group, {TopicPartition(topic, n): OffsetAndMetadata(0) for n in range(2)})
    # No group can have this name in ZooKeeper, which the settings may name all the same.
    here = ("--store", uri, "--zookeeper", f"{zookeeper.connect}/kafka")
    do = ("--execute", "--yes")
    try:
        assert {"group": ""} in json.loads(run("groups", "list", *here, "--format", "json").stdout)
        rows = json.loads(run("offsets", "get", "--group", "", *here, "--format", "json").stdout)
        assert [(row["group"], row["partition"], row["offset"]) for row in rows] == [("", 0, 0), ("", 1, 0)]
        assert "EMPTY" in run("groups", "describe", "--group", "", *here).stdout
        both = ("--group", "", "--group", unique)
        assert "exported 4 offsets of 2 groups" in run("offsets", "export", "all.avro", *both, *here).stderr
        text = run("offsets", "export", "all.csv", *both, *here, code=1).stderr
        assert "exported 2 offsets of 1 group" in text
        assert "error: group '': CSV cannot contain a name that is empty" in text
        run("offsets", "set", "--group", "", "--topic", f"{topic}:0", "--to-offset", "3", *do, *here)
        run("offsets", "import", "all.avro", "--group", "", "--allow-rewind", *do, *here)
        run("migrate", "plan", "--from", uri, "--to", uri, "--group", "", "--rename", f"={unique}-b", "-o", "p.json")
        run("migrate", "apply", "p.json", "--yes")
        run("groups", "copy", "", f"{unique}-c", *do, *here)
        for group in (f"{unique}-b", f"{unique}-c"):
            rows = json.loads(run("offsets", "get", "--group", group, *here, "--format", "json").stdout)
            assert [row["offset"] for row in rows] == [0, 0]
    finally:
        run("groups", "delete", "--group", "", *do, *here)
    assert {"group": ""} not in json.loads(run("groups", "list", *here, "--format", "json").stdout)
