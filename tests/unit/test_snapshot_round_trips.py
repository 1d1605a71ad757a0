"""Snapshot formats: round trips, and errors that name the broken part."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from unittest import mock

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, MalformedData, TimedOut, UnknownVersion, UnsupportedOperation, UsageError
from offsetmgr.core.model import BrokerPartition, Committed, TopicPartition
from offsetmgr.snapshots import line_formats as snapshot_lines
from offsetmgr.snapshots.avro import SCHEMA, AvroFormat
from offsetmgr.snapshots.base import Format, GroupEntry, SnapshotHeader, SnapshotReader
from offsetmgr.snapshots.csv import CsvFormat
from offsetmgr.snapshots.kafka_utils import KafkaUtilsFormat
from offsetmgr.snapshots.registry import by_name, format_name, open_snapshot
from offsetmgr.snapshots.spark import EARLIEST, LATEST, SparkFormat, SymbolicOffset
from offsetmgr.snapshots.zk_export import ZkExportFormat

SCHEMAS = Path(__file__).parents[2] / "schemas"
HEADER = SnapshotHeader(
    "5f0c6f0e-9b1c-4c55-8b52-0d8f4f4f9a10",
    1_700_000_000_000,
    "zookeeper://h:2181/kafka",
    "zookeeper",
    "h:2181/kafka@1",
    "0.1.0",
)


def write(form: Format, groups: Sequence[GroupEntry], **options: bool) -> bytes:
    stream = io.BytesIO()
    form.write(stream, HEADER, groups, **options)
    return stream.getvalue()


def read(form: str, data: bytes, group: str | None = None) -> SnapshotReader:
    return open_snapshot(io.BytesIO(data), form, group, what="snapshot x")


def offsets(reader: SnapshotReader) -> dict[str, dict[tuple[str, int], int]]:
    return {e.group: {(tp.topic, int(tp.partition)): c.offset for tp, c in e.offsets.items()} for e in reader.read()}


def why(form: str, data: bytes, group: str | None = None) -> str:
    with pytest.raises(MalformedData) as caught:
        read(form, data, group)
    assert caught.value.what == "snapshot x"
    return caught.value.why


# --- round trips ------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PRINTABLE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
SEGMENT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/:"), min_size=1, max_size=20)
PARTITION = st.integers(0, 2**31 - 1)
OFFSET = st.integers(0, 2**63 - 1)


def groups_of(name: st.SearchStrategy[str], commit: st.SearchStrategy[Committed]) -> st.SearchStrategy:
    partitions = st.dictionaries(st.builds(TopicPartition, name, PARTITION), commit, min_size=1, max_size=8)
    return st.dictionaries(name, partitions, max_size=6).map(lambda d: [GroupEntry(g, o) for g, o in d.items()])


FULL = st.tuples(OFFSET, TEXT, st.none() | st.integers(0, 2**31 - 1), st.none() | st.integers(-(2**63), 2**63 - 1)).map(
    lambda values: Committed(*values)
)
BARE = OFFSET.map(Committed)


@given(groups_of(TEXT, FULL))
def test_avro_carries_every_field(groups: list[GroupEntry]) -> None:
    reader = read("avro", write(AvroFormat(), groups))

    assert reader.header == HEADER
    assert list(reader.groups()) == [g.group for g in groups]
    assert list(reader.read()) == groups
    assert [reader.find(g.group) for g in groups] == groups


@given(groups_of(PRINTABLE, BARE))
def test_csv_carries_names_and_offsets(groups: list[GroupEntry]) -> None:
    reader = read("csv", write(CsvFormat(), groups))

    assert list(reader.read()) == groups
    assert [reader.find(g.group) for g in groups] == groups


@given(groups_of(PRINTABLE, BARE))
def test_csv_of_one_group_carries_names_and_offsets(groups: list[GroupEntry]) -> None:
    for group in groups:
        data = write(CsvFormat(group.group), [group])

        assert list(read("csv", data, group.group).read()) == [group]


@given(groups_of(SEGMENT, BARE))
def test_export_lines_carry_names_and_offsets(groups: list[GroupEntry]) -> None:
    assert list(read("zk", write(ZkExportFormat(), groups)).read()) == groups


@given(groups_of(PRINTABLE, BARE))
def test_yelps_json_carries_names_and_offsets(groups: list[GroupEntry]) -> None:
    reader = read("json", write(KafkaUtilsFormat(), groups))

    assert list(reader.read()) == groups
    assert [reader.find(g.group) for g in groups] == groups


@given(groups_of(PRINTABLE, BARE))
def test_sparks_json_carries_names_and_offsets(groups: list[GroupEntry]) -> None:
    for group in groups:
        assert list(read("spark", write(SparkFormat(), [group]), group.group).read()) == [group]


@given(groups_of(SEGMENT, BARE), st.randoms(use_true_random=False))
@pytest.mark.parametrize("form", ["csv", "zk"])
def test_lines_of_a_group_need_not_be_contiguous(form: str, groups: list[GroupEntry], random: object) -> None:
    lines = [line for line in write(by_name(form), groups).splitlines() if line]
    random.shuffle(lines)  # type: ignore[attr-defined]

    reader = read(form, b"\n\n".join([*lines, b""]))

    assert {e.group: e for e in reader.read()} == {g.group: g for g in groups}


# --- exact formats ------------------------------------------------------------------------------------

TWO = [
    GroupEntry("g1", {TopicPartition("t", 1): Committed(5, "m", 3, 9), TopicPartition("t", 0): Committed(4)}),
    GroupEntry('g,"2"', {TopicPartition("a.b-c", 7): Committed(2**63 - 1)}),
]


def test_csv_equals_the_output_of_kafkas_tool() -> None:
    assert write(CsvFormat(), TWO) == b'g1,t,0,4\ng1,t,1,5\n"g,""2""",a.b-c,7,9223372036854775807\n\n'
    assert write(CsvFormat("g1"), TWO[:1]) == b"t,0,4\nt,1,5\n\n"


def test_export_lines_are_znode_paths() -> None:
    assert write(ZkExportFormat(), TWO[:1]) == b"/consumers/g1/offsets/t/0:4\n/consumers/g1/offsets/t/1:5\n"


def test_json_forms() -> None:
    assert write(KafkaUtilsFormat(), TWO[:1]) == b'{"groupid": "g1", "offsets": {"t": {"0": 4, "1": 5}}}\n'
    assert write(SparkFormat(), TWO[:1]) == b'{"t": {"0": 4, "1": 5}}\n'


@pytest.mark.parametrize(
    ("form", "lost"),
    [
        (AvroFormat(), ()),
        (
            CsvFormat(),
            (
                "metadata of 1 offset (a client's own text)",
                "leader epoch of 1 offset",
                "commit timestamp of 1 offset",
                "snapshot id, time and source (zookeeper://h:2181/kafka)",
            ),
        ),
    ],
)
def test_the_writer_reports_lost_fields(form: Format, lost: tuple[str, ...]) -> None:
    report = form.write(io.BytesIO(), HEADER, TWO)

    assert (report.groups, report.offsets, report.lost) == (2, 3, lost)
    assert bool(form.cannot_hold) is bool(lost)


def test_the_schema_in_the_repository_is_the_one_in_use() -> None:
    assert json.loads((SCHEMAS / "snapshot.avsc").read_text()) == SCHEMA


def test_golden_bytes_of_avro_version_1() -> None:
    golden = (SCHEMAS / "golden" / "snapshot-v1.avro").read_bytes()
    groups = [
        GroupEntry(
            "billing",
            {
                TopicPartition("orders", 0): Committed(42, "by hand, ü", 7, 1_699_999_999_999),
                TopicPartition("orders", 1): Committed(0),
            },
        ),
        GroupEntry("empty", {}),
        GroupEntry("broken", {}, error=TimedOut("group broken", "no answer within 5 s", "try again")),
    ]

    reader = read("avro", golden)

    assert reader.header == HEADER
    found = list(reader.read())
    assert found[:2] == groups[:2]
    assert isinstance(found[2].error, TimedOut)
    assert found[2].error.args == ("group broken", "no answer within 5 s", "try again")
    again = io.BytesIO()
    AvroFormat(codec="null", sync_marker=b"0123456789abcdef").write(again, HEADER, groups, keep_errors=True)
    assert again.getvalue() == golden


# --- unreadable offsets ----------------------------------------------------------------------------

PARTLY = GroupEntry(
    "g", {TopicPartition("t", 0): Committed(1)}, {TopicPartition("t", 1): CorruptData("t-1", "not a number")}
)


@pytest.mark.parametrize("form", [AvroFormat(), CsvFormat(), ZkExportFormat(), KafkaUtilsFormat(), SparkFormat()])
def test_a_snapshot_with_unreadable_partitions_is_rejected(form: Format) -> None:
    with pytest.raises(UnsupportedOperation, match="1 partition of group g could not be read: t-1: not a number"):
        write(form, [PARTLY])


@pytest.mark.parametrize("form", [CsvFormat(), ZkExportFormat(), KafkaUtilsFormat(), SparkFormat()])
def test_text_formats_cannot_record_unreadable_offsets(form: Format) -> None:
    with pytest.raises(UnsupportedOperation, match="could not be read"):
        write(form, [PARTLY], keep_errors=True)


def test_avro_records_unreadable_offsets_on_request() -> None:
    reader = read("avro", write(AvroFormat(), [PARTLY], keep_errors=True))

    found = reader.find("g")

    assert found is not None
    assert found.offsets == PARTLY.offsets
    error = found.errors[TopicPartition("t", 1)]
    assert isinstance(error, CorruptData)
    assert str(error) == "t-1: not a number"


# --- reading lines ----------------------------------------------------------------------------------


def test_csv_reads_quotes_titles_empty_lines_crlf_and_a_byte_order_mark() -> None:
    data = (
        b'\xef\xbb\xbf\r\n"GROUP",topic,Partition,offset\r\n\r\ng,"t",0,1\r\n"g",t,"1","2"\r\n\r\n"a ""b""",t,007,3\r\n'
    )

    assert offsets(read("csv", data)) == {"g": {("t", 0): 1, ("t", 1): 2}, 'a "b"': {("t", 7): 3}}


def test_csv_without_a_group_column_needs_a_given_group() -> None:
    assert offsets(read("csv", b"topic,partition,offset\nt,0,1\n\n", "g")) == {"g": {("t", 0): 1}}
    with pytest.raises(UsageError, match="do not contain the group"):
        read("csv", b"t,0,1\n")
    with pytest.raises(UsageError, match="contain the groups"):
        read("csv", b"g,t,0,1\n", "g")


def test_a_title_line_in_the_middle_is_a_bad_line() -> None:
    assert why("csv", b"g,t,0,1\ngroup,topic,partition,offset\n") == (
        "line 2: partition is not a number in 'group,topic,partition,offset'"
    )


def test_export_lines_go_on_after_an_empty_line() -> None:
    data = b"/consumers/g/offsets/t/0:1\n\n\n/consumers/g/offsets/t/1:2\n"

    assert offsets(read("zk", data)) == {"g": {("t", 0): 1, ("t", 1): 2}}


PIECES = st.sampled_from(
    [b"g,t,0,1", b"g,t,1,2", b"h,t,0,3", b'"h","u",1,4', b"g,t,0,12x", b"g,t,00,1", b"g, t,5,6", b"", b"\xc3\xbc,t,0,7"]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r\r\n", b"\n\n", b""])


@given(st.lists(st.tuples(PIECES, ENDS), max_size=8))
def test_a_small_file_is_read_like_a_large_one(lines: list[tuple[bytes, bytes]]) -> None:
    data = b"".join(chain.from_iterable(lines))
    results: list[object] = []
    for small in (snapshot_lines._MAX_SMALL_FILE_BYTES, 0):
        with mock.patch.object(snapshot_lines, "_MAX_SMALL_FILE_BYTES", small):
            try:
                results.append(list(offsets(read("csv", data)).items()))
            except MalformedData as error:
                results.append(str(error))
            except UsageError as error:  # the first line has too few values
                results.append(str(error))

    assert results[0] == results[1]


def test_lines_of_many_blocks_give_complete_groups() -> None:
    groups = {f"group-{g}": {("orders", p): g + p for p in range(500)} for g in range(40)}
    data = "".join(f"{g},{t},{p},{o}\n" for g, found in groups.items() for (t, p), o in found.items()).encode()

    assert offsets(read("csv", data)) == groups
    assert why("csv", data + b"group-39,orders,7,1\n").startswith("line 20001: the same partition as line 19508")
    assert offsets(read("csv", data + b"group-3,orders,500,1\n"))["group-3"][("orders", 500)] == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"g,t,0", "3 values instead of 4 (group,topic,partition,offset)"),
        (b"g,t,0,1,2", "5 values instead of 4 (group,topic,partition,offset)"),
        (b"g,t,0,-0", "negative offset"),
        (b"g,t,-1,0", "negative partition"),
        (b"g,t,0,", "empty offset"),
        (b"g,t,0,1.5", "offset is not a number"),
        (b"g,t,0, 1", "offset is not a number"),
        (b"g,t,0,+1", "offset is not a number"),
        ("g,t,0,٣".encode(), "offset is not a number"),
        (b"g,t,0,9223372036854775808", "offset is larger than 9223372036854775807"),
        (b"g,t,0," + b"9" * 5000, "offset is larger than 9223372036854775807"),
        (b"g,t,2147483648,1", "partition is larger than 2147483647"),
        (b",t,0,1", "empty group"),
        (b"g,,0,1", "empty topic"),
        (b"g,t\x00,0,1", "holds a NUL"),
        (b"g,t\t,0,1", "holds a control character"),
        (b"g,t\r,0,1", "holds a control character"),
        (b"g\xff,t,0,1", "not UTF-8 at byte 2"),
        (b'"g,t,0,1', "a quote that never closes"),
        (b'"g"x,t,0,1', "',' expected after '\"'"),
        (b"ok,t,0,9", "the same partition as line 1"),
    ],
)
def test_a_bad_line_of_csv_is_named(line: bytes, reason: str) -> None:
    found = why("csv", b"ok,t,0,1\n" + line + b"\nok,t,1,2\n")

    assert found.startswith(f"line 2: {reason} in ")
    assert len(found) < 200


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"/consumers/g/offsets/t/0", "not of the form /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET"),
        (b"/consumers/g/owners/t/0:1", "not of the form /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET"),
        (b"/consumers/g/offsets/t/0:--1", "negative offset"),
        (b"/consumers/g/offsets/t/0:9223372036854775808", "offset is larger than 9223372036854775807"),
        (
            b"/consumers/g/offsets/t/65535-0:1",
            "BROKER-PARTITION of Kafka 0.7 goes up to 65534-32767, without leading zeros",
        ),
        (b"/consumers/ok/offsets/t/0:9", "the same partition as line 1"),
    ],
)
def test_a_bad_export_line_is_named(line: bytes, reason: str) -> None:
    found = why("zk", b"/consumers/ok/offsets/t/0:1\n" + line + b"\n")

    assert found == f"line 2: {reason} in {line.decode()!r}"


OLD = GroupEntry("g", {TopicPartition("t", BrokerPartition(1, 0)): Committed(1024)})
"""A group of Kafka 0.7: its offset is a byte position."""


def test_byte_positions_of_kafka_0_7_survive_export_lines() -> None:
    data = write(ZkExportFormat(), [OLD])

    assert data == b"/consumers/g/offsets/t/1-0:1024\n"
    (group,) = read("zk", data).read()
    assert dict(group.offsets) == dict(OLD.offsets)


def test_byte_positions_of_kafka_0_7_survive_avro() -> None:
    (group,) = read("avro", write(AvroFormat(), [OLD])).read()

    (tp,) = group.offsets
    assert repr(tp.partition) == "BrokerPartition(1, 0)"
    assert group.offsets[tp].offset == 1024


@pytest.mark.parametrize("form", [CsvFormat(), KafkaUtilsFormat(), SparkFormat("g")])
def test_byte_positions_of_kafka_0_7_are_not_written_where_they_would_look_like_offsets(form: Format) -> None:
    with pytest.raises(UnsupportedOperation, match=r"byte positions of Kafka 0\.7 \(t-1-0\)"):
        write(form, [OLD])


def test_a_duplicate_is_found_if_the_groups_lines_are_not_contiguous() -> None:
    assert why("csv", b"a,t,0,1\nb,t,0,1\n\na,t,00,2\n") == "line 4: the same partition as line 1 in 'a,t,00,2'"


def test_a_long_bad_line_is_shortened() -> None:
    assert why("csv", b"g," + b"x" * 500 + b"\n") == (
        f"line 1: 2 values instead of 4 (group,topic,partition,offset) in 'g,{'x' * 78}...'"
    )
    assert why("csv", b"g,t,0,1\ng" + b"x" * 70_000 + b",t,0,1\n").startswith("line 2: longer than 65535 bytes in 'gxx")


def test_many_bad_lines_are_named_together_up_to_a_number() -> None:
    assert why("csv", b"g,t,0,x\ng,t,1,1\ng,t,2,y\n") == (
        "line 1: offset is not a number in 'g,t,0,x'; line 3: offset is not a number in 'g,t,2,y'"
    )
    assert why("csv", b"bad\n" * 1000).count("; line ") == 19


@pytest.mark.parametrize(
    ("form", "name"), [("csv", "a\nb"), ("csv", ""), ("zk", "a/b"), ("zk", "a:b"), ("json", "a\0"), ("spark", "\ud800")]
)
def test_names_that_a_format_cannot_carry_are_rejected(form: str, name: str) -> None:
    with pytest.raises(UnsupportedOperation, match="cannot contain a name that"):
        write(by_name(form), [GroupEntry("g", {TopicPartition(name, 0): Committed(1)})])


def test_249_characters_dots_and_dashes() -> None:
    topic = ("a.b-c_" * 42)[:249]
    data = f"my.group-1,{topic},0,5\n".encode()

    assert offsets(read("csv", data)) == {"my.group-1": {(topic, 0): 5}}


# --- reading JSON -----------------------------------------------------------------------------------


def test_json_documents_may_be_spread_over_lines_and_follow_one_another() -> None:
    data = b'\xef\xbb\xbf{\n "groupid": "a}",\n "offsets": {"t": {"0": 1}}\n}\n\n{"groupid": "b", "offsets": {}}\n'

    assert offsets(read("json", data)) == {"a}": {("t", 0): 1}, "b": {}}


def test_sparks_json_is_recognised() -> None:
    assert offsets(read("json", b'{"t":{"0":23}}', "g")) == {"g": {("t", 0): 23}}
    assert offsets(read("json", b'{"groupid":{"0":1},"offsets":{"1":2}}', "g")) == {
        "g": {("groupid", 0): 1, ("offsets", 1): 2}
    }
    with pytest.raises(UsageError, match="does not contain the group"):
        read("json", b'{"t":{"0":23}}')


def test_sparks_symbols_are_no_offsets() -> None:
    (entry,) = read("spark", b'{"t":{"0":23,"1":-2,"2":-1}}', "g").read()

    assert entry.offsets == {TopicPartition("t", 0): Committed(23)}
    found = {tp.partition: e for tp, e in entry.errors.items()}
    assert {p: e.position for p, e in found.items() if isinstance(e, SymbolicOffset)} == {1: EARLIEST, 2: LATEST}
    assert str(found[1]) == "snapshot x: t-1: -2 means the earliest offset of the log, which is not in the file"
    assert write(SparkFormat(), [entry]) == b'{"t": {"0": 23, "1": -2, "2": -1}}\n'


def test_sparks_symbols_can_be_resolved() -> None:
    form = SparkFormat("g", resolve=lambda tp, position: {EARLIEST: 10, LATEST: 99}[position])

    (entry,) = form.open(io.BytesIO(b'{"t":{"1":-2,"2":-1}}')).read()

    assert (dict(entry.offsets), dict(entry.errors)) == (
        {TopicPartition("t", 1): Committed(10), TopicPartition("t", 2): Committed(99)},
        {},
    )


def test_sparks_json_holds_exactly_one_group() -> None:
    for groups in (TWO, []):
        with pytest.raises(UnsupportedOperation, match="exactly one group"):
            write(SparkFormat(), groups)


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b'{"groupid":"g","offsets":{"t":{"0":1,"0":2}}}', 1, "key '0' came before, in line 1"),
        (
            b'{"groupid":"g",\n"offsets":{"t":{\n"0":1,\n"1":1,\n"0":2}}}',
            5,
            "key '0' came before, in line 3",
        ),
        (b'{"groupid":"g","offsets":{}}\n{"groupid":"g","offsets":{}}', 2, "group 'g' came before, in line 1"),
        (b'{"groupid":"g","offsets":{"t":{"0":1,"00":2}}}', 1, "topic 't', partition '00': occurs twice"),
        (b'{"groupid":"g","offsets":{"t":{"0":1.0}}}', 1, "topic 't', partition '0': offset 1.0 is not a whole"),
        (b'{"groupid":"g","offsets":{"t":{"0":true}}}', 1, "topic 't', partition '0': offset true is not a whole"),
        (b'{"groupid":"g","offsets":{"t":{"0":NaN}}}', 1, "NaN is not JSON"),
        (b'{"groupid":"g","offsets":{"t":{"0":9223372036854775808}}}', 1, "topic 't', partition '0': offset is larger"),
        (b'{"groupid":"g","offsets":{"t":{"0":' + b"1" * 5000 + b"}}}", 1, "Exceeds the limit"),
        (b'{"groupid":"g","offsets":{"t":{"x":1}}}', 1, "topic 't', partition 'x': partition is not a number"),
        (b'{"groupid":"g","offsets":{"t":5}}', 1, "topic 't' holds no object of partitions"),
        (b'{"groupid":"g","offsets":[]}', 1, "not an object of topics"),
        (b'{"groupid":"g"}', 1, 'no "offsets"'),
        (b'{"groupid":"","offsets":{}}', 1, "group '' is not a valid name"),
        (b'{"groupid":"g","offsets":{},\n"more":1}', 2, "unknown key 'more'"),
        (b'{"groupid":"g","offsets":{}}\n{"groupid":"h",', 2, "a JSON object that does not end"),
        (b'{"groupid":"g","offsets":{}}\n[]', 2, "not a JSON object"),
        (b'{"groupid":"g",\n"offsets":oops}', 2, "not JSON, column 11: Expecting value"),
        (b'{"groupid":"g","offsets":{}} {"groupid":"h","offsets":{}}', 1, "not JSON, column 30: Extra data"),
        (b'{"groupid":"g\xff","offsets":{}}', 1, "not UTF-8"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 1, "nested too deeply"),
    ],
)
def test_a_bad_document_is_named(data: bytes, line: int, reason: str) -> None:
    found = why("json", data)

    assert found.startswith(f"line {line}: {reason}")
    assert len(found) < 300


def test_all_bad_entries_of_a_document_are_named() -> None:
    found = why("spark", b'{"t":{\n"0":-3,\n"1":1,\n"2":"x"}}', "g")

    assert found == (
        "line 2: topic 't', partition '0': negative offset -3 in '\"0\":-3,'; "
        "line 4: topic 't', partition '2': offset \"x\" is not a whole number in '\"2\":\"x\"}}'"
    )


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("csv", b"g,t,0,-2\ng,t,1,7\nh,t,0,-1\n"),
        ("zk", b"/consumers/g/offsets/t/0:-2\n/consumers/g/offsets/t/1:7\n/consumers/h/offsets/t/0:-1\n"),
        ("json", b'{"groupid":"g","offsets":{"t":{"0":-2,"1":7}}}\n{"groupid":"h","offsets":{"t":{"0":-1}}}\n'),
        ("avro", write(AvroFormat(), [GroupEntry("g", {TopicPartition("t", 0): Committed(-2), TopicPartition("t", 1):
         Committed(7)}), GroupEntry("h", {TopicPartition("t", 0): Committed(-1)})])),
    ],
)  # fmt: skip
def test_a_negative_offset_is_the_error_of_its_partition(form: str, data: bytes) -> None:
    """Earlier releases saved the negative offsets of brokers. The rest of such a file is read."""
    reader = read(form, data)

    assert offsets(reader) == {"g": {("t", 1): 7}, "h": {}}
    errors = {entry.group: list(map(str, entry.errors.values())) for entry in reader.read()}
    assert [len(found) for found in errors.values()] == [1, 1]
    assert errors["g"][0].startswith("snapshot x: group g, t-0: is -2 in the file: a negative number is not")
    found = reader.find("h")
    assert found is not None
    assert {type(error) for error in found.errors.values()} == {CorruptData}


# --- reading Avro -----------------------------------------------------------------------------------


def test_an_unknown_version_is_named() -> None:
    data = write(AvroFormat(), TWO).replace(b"offsetmgr.version\x021", b"offsetmgr.version\x027", 1)

    with pytest.raises(UnknownVersion, match="snapshot format version 7 is not known"):
        read("avro", data)


def test_another_avro_file_is_no_snapshot() -> None:
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(SCHEMA), [])

    assert why("avro", stream.getvalue()) == "it is an Avro file, but not an offsetmgr snapshot: its header is missing"
    assert why("avro", b"g,t,0,1\n") == "not an Avro file"
    assert why("avro", b"") == "not an Avro file"


def many_groups() -> list[GroupEntry]:
    return [
        GroupEntry(f"g{g}", {TopicPartition("t", p): Committed(g * 1000 + p, f"m{p}") for p in range(20)})
        for g in range(400)
    ]


def test_a_truncated_file_is_distinguished_from_a_complete_one_at_any_length() -> None:
    data = write(AvroFormat(), many_groups())
    assert len(list(read("avro", data).read())) == 400

    for length in [*range(0, len(data), 997), len(data) - 1]:
        with pytest.raises(MalformedData):
            read("avro", data[:length])


def test_a_flipped_bit_is_never_read_as_an_offset() -> None:
    data = write(AvroFormat(), many_groups())
    begin = data.index(b"offsetmgr.version")

    for position in range(begin, len(data), 499):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises((MalformedData, UnknownVersion)):
            list(read("avro", bytes(damaged)).read())


def test_a_duplicate_group_is_named() -> None:
    groups = [GroupEntry("g", {TopicPartition("t", 0): Committed(1)}), GroupEntry("h", {})]

    assert why("avro", write(AvroFormat(), [*groups, groups[0]])) == "record 3: the same group as record 1 in 'g'"


# --- choice of the format ---------------------------------------------------------------------------------------


def test_the_suffix_determines_the_format_unless_it_is_given() -> None:
    assert [format_name(f"a/b.{s}") for s in ("avro", "CSV", "zk", "json")] == ["avro", "csv", "zk", "json"]
    assert format_name("x.avro", "csv") == "csv"
    with pytest.raises(UsageError, match="its suffix is not that of a format"):
        format_name("offsets.txt")
    with pytest.raises(UsageError, match="format 'xml' is not known"):
        format_name("offsets.csv", "xml")


@pytest.mark.parametrize("form", ["avro", "zk", "json"])
def test_a_group_can_be_given_only_for_formats_without_group_names(form: str) -> None:
    with pytest.raises(UsageError, match="contain the groups"):
        by_name(form, "g")
