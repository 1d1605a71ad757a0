"""Commands at a broker whose responses differ as those of managed services do."""

import contextlib
import socket
import struct
from typing import Any

import pytest
from processes import create_topic, fill
from stalling_proxy import StallingProxy

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import decode_response, encode_response, request_is_flexible

pytestmark = pytest.mark.servers


class EventHubs(StallingProxy):
    """A proxy in front of a broker. Groups without members are Dead, and the offsets topic and the ACLs are hidden."""

    def __init__(self, address: str) -> None:
        self._sent: dict[tuple[socket.socket, bytes], tuple[int, int]] = {}
        super().__init__(address)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source.makefile("rb") as stream:
            while size := stream.read(4):
                frame = stream.read(*struct.unpack(">i", size))
                if (request := self._sent.pop((source, frame[:4]), None)) is None:
                    self._sent[target, frame[4:8]] = struct.unpack_from(">hh", frame)
                else:
                    frame = self._changed(frame, *request)
                target.sendall(struct.pack(">i", len(frame)) + frame)
        super()._forward(source, target)  # the end of the connection

    def _changed(self, frame: bytes, key: int, version: int) -> bytes:
        if key not in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.API_VERSIONS):
            return frame
        head = 5 if request_is_flexible(key, version) and key != ApiKey.API_VERSIONS else 4
        found: dict[str, Any] = dict(decode_response(key, version, frame, head))
        for node in (found, *found.get("brokers", ()), *found.get("coordinators", ())):
            node |= {"port": int(self.address.rpartition(":")[2])} if "port" in node else {}  # noqa: PLW2901
        for group in found.get("groups", ()):
            group["group_state"] = group["group_state"].replace("Empty", "Dead")
        for topic in found.get("topics", ()):
            topic |= {"error_code": 3, "partitions": []} if topic["name"] == "__consumer_offsets" else {}  # noqa: PLW2901
        apis = [api for api in found.get("api_keys", ()) if api["api_key"] != ApiKey.DESCRIBE_ACLS]
        return frame[:head] + encode_response(key, version, {**found, "api_keys": apis})


def test_a_dead_group_with_offsets_is_edited_but_its_state_proves_nothing(kafka, cli, unique) -> None:
    partition = TopicPartition(create_topic(kafka.bootstrap, unique, 1), 0)
    fill(kafka.bootstrap, unique, 9)
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        store.commit(unique, {partition: OffsetAndMetadata(4)})
    at, do = ["--bootstrap-server", EventHubs(kafka.bootstrap).address], ["--execute", "--yes"]

    assert cli.rows("groups", "list", "--group", unique, "--state", *at) == [{"group": unique, "state": "EMPTY"}]
    cli("offsets", "reset", unique, "--all-topics", "--to-earliest", *do, *at)
    refused = cli("groups", "delete", unique, *do, *at, "--timeout", "2000", code=1).stderr

    assert "__consumer_offsets cannot be read: the brokers do not list the topic to this login" in refused
    assert [row["offset"] for row in cli.rows("offsets", "get", unique, *at)] == [0]
    checks = {row["check"]: row for row in cli.rows("doctor", unique, *at)}
    assert "--accept-unseen" in checks["permissions on __consumer_offsets"]["fix"]
    assert checks["permissions on groups"]["result"] == "ok"
    cli("groups", "delete", unique, *do, *at, "--accept-unseen")
