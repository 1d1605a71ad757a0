"""scripts/mechanisms.py finds a second copy of a mechanism that has a home."""

import ast
import re
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
WAITING_RETRY = """
def write():
    while True:
        try:
            return send()
        except OSError:
            stop.wait(0.5)
"""
PLAIN_RETRY = """
def write():
    while not send():
        time.sleep(0.5)
"""
TWO_STORES = """
class Pair:
    def commit(self, offsets):
        self._primary.send(offsets)
        self._secondary.send(offsets)
"""
BATCHES = """
def write(rows):
    while batch := list(islice(rows, 100)):
        send(batch)
"""
EXEMPTED = {
    "retry loop": RETRY.format(pause="0.5"),
    "retry loop that waits for an event": WAITING_RETRY,
    "loop that sleeps": PLAIN_RETRY,
    "comparison with an expected value": "equal = found == change.expected\n",
    "write to two stores": TWO_STORES,
    "variable-length numbers": "low = number & 0x7F\n",
    "request for the end of a log": "client.get_watermark_offsets(partition)\n",
    "replacement of a file": "os.replace(old, new)\n",
    "member that exists as long as its ZooKeeper session": "lease = SessionLease(session, wake)\n",
    "outcome of a ZooKeeper transaction": "unknown = OperationState.UNKNOWN\n",
    "request for log ranges": "found = LogRange(1, 2)\n",
    "cache of log ranges": "class Logs:\n    known: dict[TopicPartition, LogRange | OffsetMgrError]\n",
    "count with a noun": "ending = '' if one else 's'\n",
    "first items of a list": "more = f' and {len(names) - 3} more' if len(names) > 3 else ''\n",
    "fsync": "os.fsync(1)\n",
    "splitting into batches": BATCHES,
    "context manager that closes itself": "def __exit__(self, *_):\n    self.close()\n",
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


def test_a_loop_that_takes_batches_from_an_iterator_is_a_copy() -> None:
    (line,) = mechanisms.findings(trees(writer=BATCHES))
    assert line == "offsetmgr/writer.py:3: splitting into batches outside core/batches.py"


def test_a_loop_that_yields_to_other_tasks_is_no_retry_loop() -> None:
    assert list(mechanisms.findings(trees(client=RETRY.format(pause="0")))) == []


def test_a_loop_that_waits_for_an_event_after_an_error_is_a_retry_loop() -> None:
    (line,) = mechanisms.findings(trees(writer=WAITING_RETRY))
    assert line == "offsetmgr/writer.py:3: retry loop that waits for an event outside core/retry.py"


def test_a_wait_for_a_pause_is_a_retry_outside_of_a_loop_too() -> None:
    (line,) = mechanisms.findings(trees(standby="def after(error):\n    stopping.wait(RETRY_PAUSE_S)"))
    assert line == "offsetmgr/standby.py:2: retry loop that waits for an event outside core/retry.py"


def test_a_wait_without_an_error_or_a_pause_is_no_retry() -> None:
    assert list(mechanisms.findings(trees(queue="while not ready():\n    changed.wait(left)"))) == []


def test_a_loop_that_sleeps_until_a_call_succeeds_is_a_retry_loop() -> None:
    (line,) = mechanisms.findings(trees(writer=PLAIN_RETRY))
    assert line == "offsetmgr/writer.py:3: loop that sleeps outside core/retry.py"


@pytest.mark.parametrize(
    "copy",
    [
        "if now != change.expected:\n    raise Conflict('group g', 'changed')",
        "if change.expected.offset == now.offset: write()",
        "if committed(topic, 0) == expected: write()",
        "if expected[0] == found[0]: write()",
    ],
)
def test_an_expected_value_is_compared_in_one_place(copy: str) -> None:
    (line,) = mechanisms.findings(trees(store=copy))
    assert line == "offsetmgr/store.py:1: comparison with an expected value outside core/evaluation.py"


def test_a_test_for_a_condition_is_no_comparison() -> None:
    assert list(mechanisms.findings(trees(store="conditional = change.expected is not None"))) == []


@pytest.mark.parametrize(
    "copy",
    [
        TWO_STORES,
        "\ndef execute(pair, edits):\n    edit_store(pair.primary, edits)\n    edit_store(pair.secondary, edits)",
    ],
)
def test_two_stores_are_written_in_one_place(copy: str) -> None:
    (line,) = mechanisms.findings(trees(pair=copy))
    assert line == "offsetmgr/pair.py:2: write to two stores outside stores/dual.py"


def test_two_stores_may_be_read_anywhere() -> None:
    assert list(mechanisms.findings(trees(pair="def read(pair):\n    return pair.primary, pair.secondary"))) == []


@pytest.mark.parametrize("copy", ["os.replace(old, new)", "os.rename(old, new)", "path.rename(new)", "path.replace(n)"])
def test_a_file_is_replaced_in_one_place(copy: str) -> None:
    (line,) = mechanisms.findings(trees(plan=copy))
    assert line == "offsetmgr/plan.py:1: replacement of a file outside core/atomic_file.py"


@pytest.mark.parametrize("copy", ["command = ['-Divy.home=x']", "module = f'<ivy-module version=\"2.0\">{content}'"])
def test_jars_are_downloaded_in_one_place(copy: str) -> None:
    (line,) = mechanisms.findings(trees(jars=copy))
    assert line == "offsetmgr/jars.py:1: download of jars outside spark/ivy.py"


@pytest.mark.parametrize("other", ["text.replace('a', 'b')", "replace(spec, topic='t')", "now.replace(hour=0)"])
def test_a_replacement_in_a_value_is_no_replacement_of_a_file(other: str) -> None:
    assert list(mechanisms.findings(trees(plan=other))) == []


@pytest.mark.parametrize(
    "copy",
    [
        "low, high = consumer.get_watermark_offsets(partition)",
        "request = EncodedRequest(ApiKey.LIST_OFFSETS, 0, body)",
        "spec = ck_admin.OffsetSpec.latest()",
    ],
)
def test_the_end_of_a_log_is_requested_in_one_place(copy: str) -> None:
    (line,) = mechanisms.findings(trees(lag=copy))
    assert line == "offsetmgr/lag.py:1: request for the end of a log outside kafka/client/log_ranges.py"


def test_threads_call_an_event_loop_in_one_place() -> None:
    (line,) = mechanisms.findings(trees(admin="asyncio.run_coroutine_threadsafe(call(), loop)"))
    assert line.startswith("offsetmgr/admin.py:1: call from a thread without an event loop outside ")


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


def test_a_long_list_is_shortened_in_one_place() -> None:
    source = "note(', '.join(names[:3]) + (f' and {len(names) - 3} more' if len(names) > 3 else ''))"
    (line,) = mechanisms.findings(trees(output=source))
    assert line == "offsetmgr/output.py:1: first items of a list outside core/plurals.py"


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
    for load in ("json.loads", "json.load", "tomllib.load"):
        (line,) = mechanisms.findings(trees(nodes=f"def decode(data):\n    return {load}(data)"))
        assert line == "offsetmgr/nodes.py:2: typed fields of JSON objects outside core/field_reader.py"


@pytest.mark.parametrize(
    "copy",
    [
        "while number >= 0x80:\n    number >>= 7",
        "while number >= 0x80:\n    number = number >> 7",
        "if size >= 0x80:\n    size += (body[at] << 7) - 0x80",
        "for shift in range(0, 35, 7):\n    value |= (data[at] & 0x7F) << shift",
    ],
)
def test_variable_length_numbers_are_encoded_in_one_place(copy: str) -> None:
    (line,) = mechanisms.findings(trees(records=copy))
    assert line == "offsetmgr/records.py:2: variable-length numbers outside core/varint.py"


@pytest.mark.parametrize(
    "copy",
    [
        "WHY = {ErrorCode.NONE: 'good', ErrorCode.NOT_COORDINATOR: 'moved'}",
        "ERRORS = {15: errors.CoordinatorNotAvailable}",
        "ERRORS = {16: NotCoordinator}",
    ],
)
def test_error_codes_have_one_table(copy: str) -> None:
    (line,) = mechanisms.findings(trees(client=copy))
    assert line == "offsetmgr/client.py:1: meaning of Kafka's error codes outside kafka/protocol/errors.py"


def test_an_exception_must_match() -> None:
    without = {name: tree for name, tree in trees().items() if name != "migration/mirror.py"}
    without["migration/mirror.py"] = ast.parse("")
    assert list(mechanisms.findings(without)) == [
        f"offsetmgr/migration/mirror.py: an exception for '{name}' that matches nothing"
        for name in ("retry loop", "retry loop that waits for an event", "loop that sleeps")
    ]


def test_the_table_of_the_documentation_names_the_checked_mechanisms() -> None:
    """A row of the table is marked as checked if and only if the check has a mechanism with a home in this row."""
    text = (Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    modules = [{name.replace(".", "/") + ".py" for name in re.findall(r"`([\w.]+)`", home)} for _, home, _ in rows]
    homes = {mechanism.home for mechanism in mechanisms.MECHANISMS}
    marks = [mark.strip() for _, _, mark in rows]

    assert marks == ["checked" if homes & named else "by review" for named in modules]
    assert homes <= set().union(*modules)
