"""scripts/mechanisms.py finds a second copy of a mechanism that has a home."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import mechanisms

RETRY = """
async def ask():
    while True:
        try:
            return await send()
        except OSError:
            await asyncio.sleep({pause})
"""
EXEMPTED = {
    "retry loop": RETRY.format(pause="0.5"),
    "member that exists as long as its ZooKeeper session": "lease = SessionLease(session, wake)\n",
    "outcome of a ZooKeeper transaction": "unknown = OperationState.UNKNOWN\n",
    "request for log ranges": "found = LogRange(1, 2)\n",
    "cache of log ranges": "class Logs:\n    known: dict[TopicPartition, LogRange | OffsetMgrError]\n",
    "count with a noun": "ending = '' if one else 's'\n",
    "fsync": "os.fsync(1)\n",
    "typed fields of JSON objects": "json.loads(data)\n",
}
"""Mechanism with exemptions -> the source of an exempted module."""


def trees(**sources: str) -> dict[str, ast.Module]:
    """Modules by path, with every module that the check exempts, so that no exemption matches nothing."""
    found: dict[str, str] = {}
    for mechanism in mechanisms.MECHANISMS:
        for name in mechanism.elsewhere:
            found[name] = found.get(name, "") + EXEMPTED[mechanism.name]
    found |= {f"{name}.py": text for name, text in sources.items()}
    return {name: ast.parse(text) for name, text in found.items()}


def test_a_loop_that_sleeps_after_an_error_is_a_retry_loop() -> None:
    (line,) = mechanisms.findings(trees(client=RETRY.format(pause="0.5")))
    assert line == "offsetmgr/client.py:3: retry loop outside core/retry.py"


def test_a_loop_that_yields_to_other_tasks_is_no_retry_loop() -> None:
    assert list(mechanisms.findings(trees(client=RETRY.format(pause="0")))) == []


def test_a_rewind_is_rejected_in_one_place() -> None:
    (line,) = mechanisms.findings(trees(store="def check():\n    raise errors.RewindRefused('group g', 'why')"))
    assert line == "offsetmgr/store.py:2: evaluation of a conditional change outside core/evaluation.py"


def test_a_file_is_flushed_to_disk_in_one_place() -> None:
    (line,) = mechanisms.findings(trees(plan="import os\nos.fsync(descriptor)"))
    assert line == "offsetmgr/plan.py:2: fsync outside core/atomic_file.py"


@pytest.mark.parametrize(
    "copy",
    [
        EXEMPTED["cache of log ranges"],
        "def __init__(self):\n    self._known: dict[TopicPartition, LogRange | OffsetMgrError] = {}",
    ],
)
def test_log_ranges_are_cached_in_one_place(copy: str) -> None:
    (line,) = mechanisms.findings(trees(lag=copy))
    assert line == "offsetmgr/lag.py:2: cache of log ranges outside core/log_range_cache.py"


def test_log_ranges_are_requested_in_one_place() -> None:
    (line,) = mechanisms.findings(trees(reader="found = LogRange(starts[0], ends[0])"))
    assert line == "offsetmgr/reader.py:1: request for log ranges outside kafka/client/log_ranges.py"


def test_data_sources_have_one_base() -> None:
    (line,) = mechanisms.findings(trees(table="class LogReader(DataSourceReader):\n    pass"))
    assert line == "offsetmgr/table.py:1: data source of Spark outside spark/data_source_api.py"


def test_a_count_has_its_noun_from_one_place() -> None:
    (line,) = mechanisms.findings(trees(output="note(f\"{number} group{'s' if number > 1 else ''}\")"))
    assert line == "offsetmgr/output.py:1: count with a noun outside core/plurals.py"


def test_requests_of_group_members_have_one_place() -> None:
    (line,) = mechanisms.findings(trees(member="send(Request(ApiKey.HEARTBEAT, 3, message))"))
    assert line == "offsetmgr/member.py:1: request of a group member outside kafka/groups/member_requests.py"


def test_the_state_of_a_transaction_is_interpreted_in_one_place() -> None:
    (line,) = mechanisms.findings(trees(store="if outcome.state is OperationState.UNKNOWN:\n    session.sync()"))
    assert line == (
        "offsetmgr/store.py:1: outcome of a ZooKeeper transaction outside zookeeper/client/conditional_writes.py"
    )


def test_a_session_with_a_lease_belongs_to_one_kind_of_member() -> None:
    (line,) = mechanisms.findings(trees(watcher="lease = SessionLease(session, wake)"))
    assert line.startswith("offsetmgr/watcher.py:1: member that exists as long as its ZooKeeper session outside ")


def test_only_the_schema_codec_uses_the_schemas_of_kafkas_messages() -> None:
    (line,) = mechanisms.findings(trees(client="from kio.schema.metadata.v8.response import MetadataResponse"))
    assert line.startswith("offsetmgr/client.py:1: use of the schemas of Kafka's messages outside kafka/protocol/")
    assert list(mechanisms.findings(trees(client="import kio.static"))) == []


def test_typed_fields_are_read_in_one_place() -> None:
    (line,) = mechanisms.findings(trees(nodes="def decode(data):\n    return json.loads(data)"))
    assert line == "offsetmgr/nodes.py:2: typed fields of JSON objects outside core/field_reader.py"


def test_variable_length_numbers_are_encoded_in_one_place() -> None:
    (line,) = mechanisms.findings(trees(records="while number >= 0x80:\n    number >>= 7"))
    assert line == "offsetmgr/records.py:2: variable-length numbers outside core/varint.py"


def test_error_codes_have_one_table() -> None:
    (line,) = mechanisms.findings(trees(client="WHY = {ErrorCode.NONE: 'good', ErrorCode.NOT_COORDINATOR: 'moved'}"))
    assert line == "offsetmgr/client.py:1: meaning of Kafka's error codes outside kafka/protocol/errors.py"


def test_an_exception_must_match() -> None:
    without = {name: tree for name, tree in trees().items() if name != "migration/mirror.py"}
    without["migration/mirror.py"] = ast.parse("")
    assert list(mechanisms.findings(without)) == [
        "offsetmgr/migration/mirror.py: an exception for 'retry loop' that matches nothing"
    ]
