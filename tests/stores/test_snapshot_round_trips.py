"""Snapshot formats: round trips, and errors that name the broken part."""

import io
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pytest
from fastavro.schema import to_parsing_canonical_form as canonical
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import CorruptData, MalformedData, TimedOut, UnknownVersion, UnsupportedOperation, UsageError
from offsetmgr.core.model import BrokerPartition, Committed, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.snapshots.base import SnapshotHeader, SnapshotReader
from offsetmgr.snapshots.registry import by_name, format_name, open_snapshot

PROJECT = Path(__file__).parents[2]
SCHEMA = PROJECT / "offsetmgr" / "snapshots" / "snapshot.avsc"
HEADER = SnapshotHeader(
    "5f0c6f0e-9b1c-4c55-8b52-0d8f4f4f9a10",
    1_700_000_000_000,
    "zookeeper://h:2181/kafka",
    "zookeeper",
    "h:2181/kafka@1",
    "0.1.0",
)


def write(form: str, groups: Sequence[GroupOffsets], group: str | None = None, **options: bool) -> bytes:
    stream = io.BytesIO()
    by_name(form, group).write(stream, HEADER, groups, **options)
    return stream.getvalue()


def read(form: str, data: bytes, group: str | None = None) -> SnapshotReader:
    return open_snapshot(io.BytesIO(data), form, group, what="snapshot x")


def offsets(reader: SnapshotReader) -> dict[str, dict[tuple[str, int], int]]:
    return {e.name: {(tp.topic, int(tp.partition)): c.offset for tp, c in e.offsets.items()} for e in reader.read()}


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
    return st.dictionaries(name, partitions, max_size=6).map(lambda d: [GroupOffsets(g, o) for g, o in d.items()])


FULL = st.tuples(OFFSET, TEXT, st.none() | st.integers(0, 2**31 - 1), st.none() | st.integers(-(2**63), 2**63 - 1)).map(
    lambda values: Committed(*values)
)
BARE = OFFSET.map(Committed)


CARRIED = {
    "avro": (TEXT, FULL),
    "csv": (PRINTABLE, BARE),
    "csv of one group": (PRINTABLE, BARE),
    "zk": (SEGMENT, BARE),
    "json": (PRINTABLE, BARE),
    "spark": (PRINTABLE, BARE),
}
"""The names and the fields that each format carries."""


@pytest.mark.parametrize("form", CARRIED)
@given(st.data())
def test_a_format_carries_names_and_offsets(form: str, data: st.DataObject) -> None:
    groups = data.draw(groups_of(*CARRIED[form]))
    if form in ("csv of one group", "spark"):
        name, given_name = form.partition(" ")[0], form != "spark"
        for group in groups:
            written = write(name, [group], group.name if given_name else None)
            assert list(read(name, written, group.name).read()) == [group]
        return
    reader = read(form, write(form, groups))
    assert list(reader.groups()) == [g.name for g in groups]
    assert list(reader.read()) == groups
    assert [reader.find(g.name) for g in groups] == groups
    if form == "avro":
        assert reader.header == HEADER


@pytest.mark.parametrize("form", ["csv", "zk"])
@given(groups_of(SEGMENT, BARE), st.randoms(use_true_random=False))
def test_lines_of_a_group_need_not_be_contiguous(form: str, groups: list[GroupOffsets], random: Random) -> None:
    lines = [line for line in write(form, groups).splitlines() if line]
    random.shuffle(lines)
    reader = read(form, b"\n\n".join([*lines, b""]))
    assert {e.name: e for e in reader.read()} == {g.name: g for g in groups}


# --- exact formats ------------------------------------------------------------------------------------

TWO = [
    GroupOffsets("g1", {TopicPartition("t", 1): Committed(5, "m", 3, 9), TopicPartition("t", 0): Committed(4)}),
    GroupOffsets('g,"2"', {TopicPartition("a.b-c", 7): Committed(2**63 - 1)}),
]


@pytest.mark.parametrize(
    ("form", "group", "groups", "written"),
    [
        ("csv", None, TWO, b'g1,t,0,4\ng1,t,1,5\n"g,""2""",a.b-c,7,9223372036854775807\n\n'),
        ("csv", "g1", TWO[:1], b"t,0,4\nt,1,5\n\n"),
        ("zk", None, TWO[:1], b"/consumers/g1/offsets/t/0:4\n/consumers/g1/offsets/t/1:5\n"),
        ("json", None, TWO[:1], b'{"groupid": "g1", "offsets": {"t": {"0": 4, "1": 5}}}\n'),
        ("spark", None, TWO[:1], b'{"t": {"0": 4, "1": 5}}\n'),
    ],
)
def test_a_format_equals_the_output_of_the_other_tool(form, group, groups, written):
    assert write(form, groups, group) == written


LOST_IN_CSV = (
    "metadata of 1 offset (a client's own text)",
    "leader epoch of 1 offset",
    "commit timestamp of 1 offset",
    "snapshot id, time and source (zookeeper://h:2181/kafka)",
)


@pytest.mark.parametrize(("form", "lost"), [("avro", ()), ("csv", LOST_IN_CSV)])
def test_the_writer_reports_lost_fields(form: str, lost: tuple[str, ...]) -> None:
    report = by_name(form).write(io.BytesIO(), HEADER, TWO)
    assert (report.groups, report.offsets, report.lost) == (2, 3, lost)
    assert bool(by_name(form).cannot_hold) is bool(lost)


def content(data: bytes) -> tuple[list[Any], dict[str, str]]:
    """The records and the header of an Avro file, without the checksum and the codec."""
    file = fastavro.reader(io.BytesIO(data))
    records: list[Any] = list(file)
    records[-1]["end"].pop("crc32")
    return records, {key: text for key, text in file.metadata.items() if key != "avro.codec"}


def test_golden_avro_of_version_1_is_read_and_written() -> None:
    golden = (PROJECT / "schemas" / "golden" / "snapshot-v1.avro").read_bytes()
    orders = {TopicPartition("orders", 0): Committed(42, "by hand, ü", 7, 1_699_999_999_999)}
    groups = [
        GroupOffsets("billing", {**orders, TopicPartition("orders", 1): Committed(0)}),
        GroupOffsets("empty", {}),
        GroupOffsets("broken", {}, error=TimedOut("group broken", "no answer within 5 s", "try again")),
    ]
    reader = read("avro", golden)
    assert reader.header == HEADER
    found = list(reader.read())
    assert found[:2] == groups[:2]
    assert isinstance(found[2].error, TimedOut)
    assert found[2].error.args == ("group broken", "no answer within 5 s", "try again")
    written = content(write("avro", groups, keep_errors=True))
    assert written == content(golden)
    published = json.loads(SCHEMA.read_text())
    assert canonical(json.loads(written[1]["avro.schema"])) == canonical(published)


# --- unreadable offsets ----------------------------------------------------------------------------

PARTLY = GroupOffsets(
    "g", {TopicPartition("t", 0): Committed(1)}, {TopicPartition("t", 1): CorruptData("t-1", "not a number")}
)


@pytest.mark.parametrize("form", ["avro", "csv", "zk", "json", "spark"])
def test_a_snapshot_with_unreadable_partitions_is_rejected_or_records_them_on_request(form: str) -> None:
    with pytest.raises(UnsupportedOperation, match="1 partition of group g could not be read: t-1: not a number"):
        write(form, [PARTLY])
    if form != "avro":  # the text formats cannot record it on request, either
        with pytest.raises(UnsupportedOperation, match="could not be read"):
            write(form, [PARTLY], keep_errors=True)
        return
    found = read("avro", write("avro", [PARTLY], keep_errors=True)).find("g")
    assert found is not None
    assert found.offsets == PARTLY.offsets
    error = found.errors[TopicPartition("t", 1)]
    assert (type(error), str(error)) == (CorruptData, "t-1: not a number")


# --- reading text ----------------------------------------------------------------------------------

LONG_NAME = ("a.b-c_" * 42)[:249]


@pytest.mark.parametrize(
    ("form", "group", "data", "expected"),
    [
        (
            *("csv", None, b'\xef\xbb\xbf\r\n"GROUP",topic,Partition,offset\r\n\r\ng,"t",0,1\r\n"g",t,"1","2"\r\n\r\n'),
            {"g": {("t", 0): 1, ("t", 1): 2}},
        ),
        ("csv", None, b'"a ""b""",t,007,3\r\n', {'a "b"': {("t", 7): 3}}),
        ("csv", "g", b"topic,partition,offset\nt,0,1\n\n", {"g": {("t", 0): 1}}),
        ("csv", None, f"my.group-1,{LONG_NAME},0,5\n".encode(), {"my.group-1": {(LONG_NAME, 0): 5}}),
        (
            *("zk", None, b"/consumers/g/offsets/t/0:1\n\n\n/consumers/g/offsets/t/1:2\n"),
            {"g": {("t", 0): 1, ("t", 1): 2}},
        ),
        (
            *(
                "json",
                None,
                b'\xef\xbb\xbf{\n "groupid": "a}",\n "offsets": {"t": {"0": 1}}\n}\n\n{"groupid": "b", "offsets": {}}',
            ),
            {"a}": {("t", 0): 1}, "b": {}},
        ),
        ("json", "g", b'{"t":{"0":23}}', {"g": {("t", 0): 23}}),
        ("json", "g", b'{"groupid":{"0":1},"offsets":{"1":2}}', {"g": {("groupid", 0): 1, ("offsets", 1): 2}}),
    ],
)
def test_forms_of_text_are_read(form, group, data, expected):
    assert offsets(read(form, data, group)) == expected


@pytest.mark.parametrize(
    ("form", "group", "data", "why"),
    [
        ("csv", None, b"t,0,1\n", "do not contain the group"),
        ("csv", "g", b"g,t,0,1\n", "contain the groups"),
        ("json", None, b'{"t":{"0":23}}', "does not contain the group"),
        *((form, "g", b"", "contain the groups") for form in ("avro", "zk", "json")),
    ],
)
def test_a_group_must_be_given_exactly_for_files_without_group_names(form, group, data, why):
    with pytest.raises(UsageError, match=why):
        by_name(form, group) if not data else read(form, data, group)


PIECES = st.sampled_from(
    [b"g,t,0,1", b"g,t,1,2", b"h,t,0,3", b'"h","u",1,4', b"g,t,0,12x", b"g,t,00,1", b"g, t,5,6", b"", b"\xc3\xbc,t,0,7"]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r\r\n", b"\n\n", b""])


def result_of(data: bytes) -> object:
    try:
        return list(offsets(read("csv", data)).items())
    except MalformedData as error:
        return str(error)


@given(st.lists(st.tuples(PIECES, ENDS), max_size=8))
def test_quotes_in_a_file_change_no_other_line(lines: list[tuple[bytes, bytes]]) -> None:
    """A small file without quotes and without unusual lines is read at once, other files line by line."""
    data = b"".join(chain.from_iterable(lines))
    assert result_of(b"x,x,0,1\n" + data) == result_of(b'"x",x,0,1\n' + data)


def test_lines_of_many_blocks_give_complete_groups() -> None:
    groups = {f"group-{g}": {("orders", p): g + p for p in range(500)} for g in range(40)}
    data = "".join(f"{g},{t},{p},{o}\n" for g, found in groups.items() for (t, p), o in found.items()).encode()
    assert offsets(read("csv", data)) == groups
    assert why("csv", data + b"group-39,orders,7,1\n").startswith("line 20001: the same partition as line 19508")
    assert offsets(read("csv", data + b"group-3,orders,500,1\n"))["group-3"][("orders", 500)] == 1


OLD_RANGE = "BROKER-PARTITION of Kafka 0.7 goes up to 65534-32767"
NO_LINE = "not of the form /consumers/GROUP/offsets/TOPIC/PARTITION:OFFSET"


@pytest.mark.parametrize(
    ("form", "line", "reason"),
    [
        ("csv", b"g,t,0", "3 values instead of 4 (group,topic,partition,offset)"),
        ("csv", b"g,t,0,1,2", "5 values instead of 4 (group,topic,partition,offset)"),
        ("csv", b"g,t,0,-0", "negative offset"),
        ("csv", b"g,t,-1,0", "negative partition"),
        ("csv", b"g,t,0,", "empty offset"),
        ("csv", b"g,t,0,1.5", "offset is not a number"),
        ("csv", b"g,t,0, 1", "offset is not a number"),
        ("csv", b"g,t,0,+1", "offset is not a number"),
        ("csv", "g,t,0,٣".encode(), "offset is not a number"),
        ("csv", b"g,t,0,9223372036854775808", "offset is larger than 9223372036854775807"),
        ("csv", b"g,t,0," + b"9" * 5000, "offset is larger than 9223372036854775807"),
        ("csv", b"g,t,2147483648,1", "partition is larger than 2147483647"),
        ("csv", b",t,0,1", "empty group"),
        ("csv", b"g,,0,1", "empty topic"),
        ("csv", b"g,t\x00,0,1", "holds a NUL"),
        ("csv", b"g,t\t,0,1", "holds a control character"),
        ("csv", b"g,t\r,0,1", "holds a control character"),
        ("csv", b"g\xff,t,0,1", "not UTF-8 at byte 2"),
        ("csv", b'"g,t,0,1', "a quote that never closes"),
        ("csv", b'"g"x,t,0,1', "',' expected after '\"'"),
        ("csv", b"ok,t,0,9", "the same partition as line 1"),
        ("csv", b"group,topic,partition,offset", "partition is not a number"),
        ("csv", b"g," + b"x" * 500, "2 values instead of 4 (group,topic,partition,offset)"),
        ("csv", b"g" + b"x" * 70_000 + b",t,0,1", "longer than 65535 bytes"),
        ("zk", b"/consumers/g/offsets/t/0", NO_LINE),
        ("zk", b"/consumers/g/owners/t/0:1", NO_LINE),
        ("zk", b"/consumers/g/offsets/t/0:--1", "negative offset"),
        ("zk", b"/consumers/g/offsets/t/0:9223372036854775808", "offset is larger than 9223372036854775807"),
        ("zk", b"/consumers/g/offsets/t/65535-0:1", f"{OLD_RANGE}, without leading zeros"),
        ("zk", b"/consumers/ok/offsets/t/0:9", "the same partition as line 1"),
    ],
    ids=str,
)
def test_a_bad_line_is_named(form: str, line: bytes, reason: str) -> None:
    first, last = b"/consumers/ok/offsets/t/0:1\n", b""
    if form == "csv":
        first, last = b"ok,t,0,1\n", b"ok,t,1,2\n"
    found = why(form, first + line + b"\n" + last)
    assert found.startswith(f"line 2: {reason} in ")
    assert len(found) < 200
    if len(line) < 80 and line.isascii() and line.decode().isprintable():
        assert found == f"line 2: {reason} in {line.decode()!r}"


OLD = GroupOffsets("g", {TopicPartition("t", BrokerPartition(1, 0)): Committed(1024)})
"""A group of Kafka 0.7: its offset is a byte position."""


def test_byte_positions_of_kafka_0_7_survive_export_lines_and_avro() -> None:
    data = write("zk", [OLD])
    assert data == b"/consumers/g/offsets/t/1-0:1024\n"
    for form, written in (("zk", data), ("avro", write("avro", [OLD]))):
        (group,) = read(form, written).read()
        assert dict(group.offsets) == dict(OLD.offsets)
        assert [repr(tp.partition) for tp in group.offsets] == ["BrokerPartition(1, 0)"]


@pytest.mark.parametrize(("form", "group"), [("csv", None), ("json", None), ("spark", "g")])
def test_byte_positions_of_kafka_0_7_are_not_written_where_they_would_look_like_offsets(form, group):
    with pytest.raises(UnsupportedOperation, match=r"byte positions of Kafka 0\.7 \(t-1-0\)"):
        write(form, [OLD], group)


def test_bad_lines_are_quoted_and_named_together() -> None:
    duplicate = "line 4: the same partition as line 1 in 'a,t,00,2'"
    assert why("csv", b"a,t,0,1\nb,t,0,1\n\na,t,00,2\n") == duplicate
    assert why("csv", b"g," + b"x" * 500 + b"\n").endswith(f" in 'g,{'x' * 78}...'")
    two = "line 1: offset is not a number in 'g,t,0,x'; line 3: offset is not a number in 'g,t,2,y'"
    assert why("csv", b"g,t,0,x\ng,t,1,1\ng,t,2,y\n") == two
    assert why("csv", b"bad\n" * 1000).count("; line ") == 19  # at most 20 lines are named


@pytest.mark.parametrize(
    ("form", "name"), [("csv", "a\nb"), ("csv", ""), ("zk", "a/b"), ("zk", "a:b"), ("json", "a\0"), ("spark", "\ud800")]
)
def test_names_that_a_format_cannot_carry_are_rejected(form: str, name: str) -> None:
    with pytest.raises(UnsupportedOperation, match="cannot contain a name that"):
        write(form, [GroupOffsets("g", {TopicPartition(name, 0): Committed(1)})])


# --- reading JSON -----------------------------------------------------------------------------------


def test_sparks_symbols_are_no_offsets() -> None:
    (entry,) = read("spark", b'{"t":{"0":23,"1":-2,"2":-1}}', "g").read()
    assert entry.offsets == {TopicPartition("t", 0): Committed(23)}
    assert {str(error) for error in entry.errors.values()} == {
        "snapshot x: t-1: -2 means the earliest offset of the log, which is not in the file",
        "snapshot x: t-2: -1 means the latest offset of the log, which is not in the file",
    }
    assert write("spark", [entry]) == b'{"t": {"0": 23, "1": -2, "2": -1}}\n'
    for groups in (TWO, []):
        with pytest.raises(UnsupportedOperation, match="exactly one group"):
            write("spark", groups)


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b'{"groupid":"g","offsets":{"t":{"0":1,"0":2}}}', 1, "key '0' came before, in line 1"),
        (b'{"groupid":"g",\n"offsets":{"t":{\n"0":1,\n"1":1,\n"0":2}}}', 5, "key '0' came before, in line 3"),
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


NEGATIVE = [
    GroupOffsets("g", {TopicPartition("t", 0): Committed(-2), TopicPartition("t", 1): Committed(7)}),
    GroupOffsets("h", {TopicPartition("t", 0): Committed(-1)}),
]


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("csv", b"g,t,0,-2\ng,t,1,7\nh,t,0,-1\n"),
        ("zk", b"/consumers/g/offsets/t/0:-2\n/consumers/g/offsets/t/1:7\n/consumers/h/offsets/t/0:-1\n"),
        ("json", b'{"groupid":"g","offsets":{"t":{"0":-2,"1":7}}}\n{"groupid":"h","offsets":{"t":{"0":-1}}}\n'),
        ("avro", write("avro", NEGATIVE)),
    ],
)
def test_a_negative_offset_is_the_error_of_its_partition(form: str, data: bytes) -> None:
    """Earlier releases saved the negative offsets of brokers. The rest of such a file is read."""
    reader = read(form, data)
    assert offsets(reader) == {"g": {("t", 1): 7}, "h": {}}
    errors = {entry.name: list(map(str, entry.errors.values())) for entry in reader.read()}
    assert [len(found) for found in errors.values()] == [1, 1]
    assert errors["g"][0].startswith("snapshot x: group g, t-0: is -2 in the file: a negative number is not")
    found = reader.find("h")
    assert found is not None
    assert {type(error) for error in found.errors.values()} == {CorruptData}


# --- Avro -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "found"),
    [
        (2**31, Committed(1)),
        (0, Committed(2**63)),
        (0, Committed(1, "\ud800")),
        (0, Committed(1, leader_epoch=2**31)),
        (0, Committed(1, commit_timestamp=2**63)),
    ],
)
def test_a_value_outside_the_range_of_its_avro_field_is_rejected(partition: int, found: Committed) -> None:
    with pytest.raises(UnsupportedOperation, match="group 'g': Avro cannot contain it"):
        write("avro", [GroupOffsets("g", {TopicPartition("orders", partition): found})])


def test_another_avro_file_an_unknown_version_and_a_duplicate_group_are_named() -> None:
    stream = io.BytesIO()
    schema = json.loads(SCHEMA.read_text())
    fastavro.writer(stream, fastavro.parse_schema(schema), [])
    assert why("avro", stream.getvalue()) == "it is an Avro file, but not an offsetmgr snapshot: its header is missing"
    assert why("avro", b"g,t,0,1\n") == "not an Avro file"
    assert why("avro", b"") == "not an Avro file"
    groups = [GroupOffsets("g", {TopicPartition("t", 0): Committed(1)}), GroupOffsets("h", {})]
    assert why("avro", write("avro", [*groups, groups[0]])) == "record 3: the same group as record 1 in 'g'"
    data = write("avro", TWO).replace(b"offsetmgr.version\x021", b"offsetmgr.version\x027", 1)
    with pytest.raises(UnknownVersion, match="snapshot format version 7 is not known"):
        read("avro", data)


def many_groups() -> list[GroupOffsets]:
    return [
        GroupOffsets(f"g{g}", {TopicPartition("t", p): Committed(g * 1000 + p, f"m{p}") for p in range(20)})
        for g in range(400)
    ]


def test_a_truncated_file_is_distinguished_from_a_complete_one_at_any_length() -> None:
    data = write("avro", many_groups())
    assert len(list(read("avro", data).read())) == 400
    for length in [*range(0, len(data), 997), len(data) - 1]:
        with pytest.raises(MalformedData):
            read("avro", data[:length])


def test_a_flipped_bit_is_never_read_as_an_offset() -> None:
    data = write("avro", many_groups())
    begin = data.index(b"offsetmgr.version")
    for position in range(begin, len(data), 499):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        with pytest.raises((MalformedData, UnknownVersion)):
            list(read("avro", bytes(damaged)).read())


# --- choice of the format ---------------------------------------------------------------------------------------


def test_the_suffix_determines_the_format_unless_it_is_given() -> None:
    assert [format_name(f"a/b.{s}") for s in ("avro", "CSV", "zk", "json")] == ["avro", "csv", "zk", "json"]
    assert format_name("x.avro", "csv") == "csv"
    with pytest.raises(UsageError, match="its suffix is not that of a format"):
        format_name("offsets.txt")
    with pytest.raises(UsageError, match="format 'xml' is not known"):
        format_name("offsets.csv", "xml")
