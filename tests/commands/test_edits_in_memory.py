"""Everyday commands over stores in memory and files: selection, lag, sets, imports, copies, differences, and
before-images."""

import fcntl
import io
import json
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from fastavro.write import Writer
from in_process import Output, command, rows
from memory_stores import LOGS, in_memory, logs_in_memory

from offsetmgr import BrokerPartition, OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.app.connections import Connections
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, Unreachable, UsageError
from offsetmgr.core.model import Committed, GroupDescription, LogRange
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.groups import edit_plan
from offsetmgr.testing.memory import MemoryStore

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
DO = ("--execute", "--yes")


class Logs:
    """A cluster with topic ``t`` of three partitions."""

    def __init__(self, ranges: Mapping[TopicPartition, LogRange]) -> None:
        self.ranges = ranges

    def topics(self, names: Iterable[str] | None = None) -> dict[str, int]:
        return {name: 3 for name in names or () if name == "t"}

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        return {tp: self.ranges.get(tp, UnknownTopicOrPartition(f"topic {tp.topic}", "no")) for tp in partitions}

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupDescription]:
        return {group: GroupDescription(group, "EMPTY") for group in groups}


class Cli:
    """Commands for one store. ``ranges`` are the logs of the cluster, if there is one."""

    def __init__(self, store: MemoryStore, ranges: Mapping[TopicPartition, LogRange] | None = None) -> None:
        self.store, self.ranges = store, ranges
        in_memory(store=store)

    def arguments(self, words: tuple[object, ...]) -> tuple[object, ...]:
        return *words, "--store", "memory:store", *(() if self.ranges is None else ("--bootstrap-server", LOGS))

    def __call__(self, *words: object, code: int | None = 0) -> Output:
        with logs_in_memory(Logs(self.ranges or {})):
            return command(*self.arguments(words), code=code)

    def rows(self, *words: object, code: int = 0) -> list[dict[str, Any]]:
        with logs_in_memory(Logs(self.ranges or {})):
            return list(rows(*self.arguments(words), code=code))

    def offsets(self) -> dict[str, dict[TopicPartition, Committed]]:
        found = {group: dict(offsets) for group, offsets in self.store.data.items() if offsets}
        return {group: {tp: one._replace(version=None) for tp, one in of.items()} for group, of in found.items()}


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with group a (t-0 at 10, t-1 at 20 with metadata) and group b (t-0 at 5)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    a = {T0: Committed(10), T1: Committed(20, "m", 3)}
    return Cli(MemoryStore("store", data={"a": a, "b": {T0: Committed(5)}}))


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        (["orders:0,2-3", "pay*", "x[*]"], ["orders-0", "orders-2", "orders-3", "payments-7", "x*-0"]),
        (["order?:1"], ["orders-1"]),
        (["t", "t:2"], ["t-0", "t-1", "t-2"]),
        (["t:00002147483647"], ["t-2147483647"]),
    ],
)
def test_topics_are_chosen_by_name_glob_and_number(patterns: list[str], selected: list[str]) -> None:
    offsets = [("orders", n) for n in range(4)] + [("payments", 7), ("x*", 0), ("order", 0), ("xy", 0), ("t", 0)]
    offsets += [("t", 1)]
    data = {"g": {TopicPartition(*tp): Committed(1) for tp in offsets}}
    options = [word for pattern in patterns for word in ("--topic", pattern)]
    cli = Cli(MemoryStore("store", data=data))
    found = cli.rows("offsets", "get", "-g", "g", *options)
    assert [f"{row['topic']}-{row['partition']}" for row in found] == selected


def test_unmatched_topics_are_named_as_they_were_given(saved: Cli) -> None:
    topics = [word for name in ("t", "t:3-4", "p*", "none") for word in ("--topic", name)]
    shown = saved("groups", "describe", "-g", "a", *topics, code=1).stderr
    assert "topics t:3-4, p*, none: not among the groups' offsets" in shown


@pytest.mark.parametrize(
    ("topics", "planned"),
    [
        (["t", "p*"], [("pay", 4), ("t", 0), ("t", 1), ("t", 2)]),  # all partitions; of a glob only those committed
        (["t:1"], [("t", 1)]),
    ],
)
def test_a_named_topic_means_all_its_partitions(topics: list[str], planned: list[tuple[str, int]]) -> None:
    data = {"g": {TopicPartition("pay", 4): Committed(1), T1: Committed(1)}}
    logs = dict.fromkeys((T0, T1, T2, TopicPartition("pay", 4)), LogRange(0, 9))
    options = [word for topic in topics for word in ("--topic", topic)]
    cli = Cli(MemoryStore("store", data=data), logs)
    found = cli.rows("offsets", "reset", "-g", "g", *options, "--to-offset", "3")
    assert [(row["topic"], row["partition"]) for row in found] == planned


@pytest.mark.parametrize(
    ("topic", "why"),
    [("none", "topic none: does not exist"), ("t:0,3", "partition 3 of topic t: the topic has 3 partitions")],
)
def test_topics_and_partitions_that_do_not_exist_are_errors(topic: str, why: str) -> None:
    cli = Cli(MemoryStore("store", data={"g": {T0: Committed(1)}}), {T0: LogRange(0, 9)})
    assert why in cli("offsets", "reset", "-g", "g", "--topic", topic, "--to-latest", code=1).stderr


LARGEST = "is beyond the largest partition, 2147483647"


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        *((text, "") for text in ("", ":0", "t:", "t:x", "t:-1", "t:0,,1", "t:0-9999999")),
        ("t:3-1", "topic t:3-1: 3-1 is not a range"),  # or a partition of Kafka 0.7
        *((f"t:{text}", LARGEST) for text in ("2147483648", "0-2147483648", "2147483648-0", "9" * 5000)),
        ("t:0-" + "9" * 5000, LARGEST),
    ],
)
def test_an_invalid_topic_argument_is_rejected(saved: Cli, topic: str, why: str) -> None:
    assert why in saved("offsets", "get", "-g", "a", "--topic", topic, code=2).stderr


def test_a_partition_of_kafka_0_7_is_named_by_its_broker_too(tmp_path: Path) -> None:
    file = tmp_path / "old.zk"
    file.write_text("".join(f"/consumers/g/offsets/t/{n}:5\n" for n in ("1-0", "1-2", "0-1")))
    found = rows("offsets", "get", "-g", "g", "--topic", "t:1-0,1-2", "--store", f"file:{file}")
    assert [row["partition"] for row in found if row["offset"] is not None] == ["1-0", "1-2"]
    assert BrokerPartition(1, 2) in {tp.partition for tp in open_store(f"file:{file}").fetch("g")}


@pytest.mark.parametrize(
    ("patterns", "groups", "code"),
    [(["zz", "a"], ["a"], 1), (["[ab]", "zz"], ["a", "b"], 1), (["x*"], [], 1), (["a"], ["a"], 0), ([], ["a", "b"], 0)],
)
def test_groups_are_chosen_by_name_and_glob(saved: Cli, patterns: list[str], groups: list[str], code: int) -> None:
    options = [word for name in patterns for word in ("-g", name)] or ["--all-groups"]
    done = saved("offsets", "get", *options, "--format", "json", code=code)
    assert sorted({row["group"] for row in json.loads(done.stdout or "[]")}) == groups
    assert all(f"'{name}'" in done.stderr for name in patterns if name in ("zz", "x*"))


@pytest.mark.parametrize(
    ("options", "groups", "error"),
    [
        ("--all-groups --exclude-group b", ["a"], ""),
        ("-g [ab] --exclude-group a*", ["b"], ""),
        ("-g a --exclude-group z*", ["a"], ""),  # a glob may match no group, a name may not
        ("-g a --exclude-group b", [], "excluded group 'b': is not one of the selected groups"),
        ("-g a* --exclude-group b", ["a"], ""),
        ("--all-groups --exclude-group c", [], "excluded group 'c': does not exist in memory:store"),
        ("--all-groups --exclude-group *", [], "groups: every selected group of memory:store is excluded"),
    ],
)
def test_groups_are_excluded_by_name_and_glob(saved: Cli, options: str, groups: list[str], error: str) -> None:
    done = saved("offsets", "get", *options.split(), "--format", "json", code=int(bool(error)))
    assert sorted({row["group"] for row in json.loads(done.stdout or "[]")}) == groups
    assert error in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "groups list",
        "groups describe --all-groups",
        "groups delete --all-groups",
        "offsets lag --all-groups",
        "offsets delete --all-groups --all-topics",
        "offsets reset --all-groups --all-topics --to-offset 4",
        "offsets reset --all-groups --from-file saved.csv",
        "offsets import saved.csv",
        "offsets import undo.avro",
        "offsets diff --from memory:store --to file:other.csv",
    ],
)
def test_each_command_leaves_out_the_excluded_groups(saved: Cli, words: str) -> None:
    saved.ranges = {T0: LogRange(0, 9), T1: LogRange(0, 30)}
    saved("offsets", "export", "--all-groups", "saved.csv")
    saved("offsets", "set", "-g", "a", "--topic", "t:0", "--to-offset", "3", "--before-image", "undo.avro", *DO)
    (Path.cwd() / "other.csv").write_text("other,t,0,1\nb,t,0,9\n")
    whole = saved(*words.split(), code=None).stdout
    done = saved(*words.split(), "--exclude-group", "b*", code=None)
    assert re.search(r"^b\b", whole, re.MULTILINE) or "undo" in words, whole
    assert re.search(r"^(a|other)\b", done.stdout, re.MULTILINE), done
    assert not re.search(r"^b\b", done.stdout, re.MULTILINE)


def test_a_file_is_restored_without_its_excluded_groups(saved: Cli) -> None:
    """The file has groups that the store does not have. The store has a group that the file does not have."""
    Path("saved.csv").write_text("a,t,0,1\nnew,t,0,2\nx,t,0,3\n")
    saved.ranges = {T0: LogRange(0, 9)}
    reset = ("offsets", "reset", "--all-groups", "--from-file", "saved.csv", "--new-group")
    for excluded, planned in (("x", ["a", "new"]), ("a*", ["new", "x"])):
        assert [row["group"] for row in saved.rows(*reset, "--exclude-group", excluded)] == planned
    missing = saved("offsets", "import", "saved.csv", "-g", "b", code=1)
    assert missing.stderr == "error: group 'b': does not exist in file saved.csv\n"  # and no hint at another store


def test_a_list_of_groups_names_each_name_and_glob_without_a_group(saved: Cli) -> None:
    done = saved("groups", "list", "-g", "a", "-g", "q*", "-g", "missing", code=1)
    assert done.stdout == "GROUP\na\n"
    assert "error: group 'q*': no group in memory:store matches this pattern\n" in done.stderr
    assert "error: group 'missing': does not exist in memory:store\n" in done.stderr


def test_a_group_that_only_one_of_two_clusters_has_is_excluded_there(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, groups in (("one", "xy"), ("two", "yz")):
        Path(f"{name}.csv").write_text("".join(f"{group},t,0,1\n" for group in groups))
    Path("config.toml").write_text("".join(f'[context.{one}]\nstore = "file:{one}.csv"\n' for one in ("one", "two")))
    monkeypatch.setenv("OFFSETMGR_CONFIG", "config.toml")
    get, of_all = ("offsets", "get", "--context", "one,two", "--all-groups"), [("one", "y"), ("two", "y"), ("two", "z")]
    assert [(row["cluster"], row["group"]) for row in rows(*get, "--exclude-group", "x")] == of_all
    found = rows(*get, "--exclude-group", "missing", code=1)
    assert [(row["cluster"], row["group"]) for row in found] == [("one", "x"), *of_all]
    found = rows("groups", "list", "--context", "one,two", "-g", "x*", "-g", "z*")
    assert [(row["cluster"], row["group"]) for row in found] == [("one", "x"), ("two", "z")]


@pytest.mark.parametrize("view", [("groups", "describe"), ("offsets", "get"), ("offsets", "lag")])
def test_a_topic_with_a_commit_has_no_note(saved: Cli, view: tuple[str, str]) -> None:
    saved.ranges = {T0: LogRange(0, 9), T1: LogRange(0, 30)}
    assert saved(*view, "-g", "b", "--topic", "t:0").stderr == ""
    assert "no committed offsets" not in saved(*view, "-g", "b", "--topic", "t", code=None).stderr


def test_an_option_of_a_command_keeps_its_form_in_an_error(saved: Cli) -> None:
    refused = saved("groups", "describe", "-g", "b", "--only-with-lag", code=2).stderr
    assert refused.startswith("error: --only-with-lag: needs to read logs")


@pytest.mark.parametrize("view", [("groups", "describe"), ("offsets", "get"), ("offsets", "lag")])
def test_a_misspelled_group_hides_no_other_group(saved: Cli, view: tuple[str, str]) -> None:
    saved.ranges = {T0: LogRange(0, 9)}
    done = saved(*view, "-g", "misspelled", "-g", "b", "--format", "json", code=1)
    assert [(row["group"], row["offset"]) for row in json.loads(done.stdout)] == [("b", 5)]
    for shown in (done, saved(*view, "-g", "misspelled", code=1)):
        assert shown.stderr.startswith("error: group 'misspelled': does not exist in memory:store\n")


@pytest.mark.parametrize(
    ("patterns", "groups"),
    [(["a*"], ["a*"]), (["a[*]"], ["a[*]"]), (["a?*", "new[*]"], ["a*", "a[*]"]), (["b*"], ["b"])],
)
def test_an_existing_group_with_exactly_this_name_has_precedence_over_the_glob(saved, patterns, groups) -> None:
    saved.store.data |= {"a*": {T0: Committed(1)}, "a[*]": {T0: Committed(1)}}
    options = [word for name in patterns for word in ("-g", name)]
    done = saved("offsets", "get", *options, "--format", "json", code=int("new[*]" in patterns))
    assert [row["group"] for row in json.loads(done.stdout)] == groups
    assert ("'new*'" in done.stderr) is ("new[*]" in patterns)


def test_groups_are_shown_in_order_also_if_the_store_reads_them_in_another_one() -> None:
    class Reversed(MemoryStore):
        def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
            return iter(list(super().scan(groups))[::-1])

    cli = Cli(Reversed("store", data={name: {T0: Committed(1)} for name in "bca"}))
    assert [row["group"] for row in cli.rows("offsets", "get", "--all-groups")] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("committed", "log", "lag", "note", "needed"),
    [
        (5, LogRange(0, 9), 4, None, True),
        (9, LogRange(0, 9), 0, None, False),
        (2, LogRange(5, 9), 4, "below the log's start", True),
        (2, LogRange(5, 5), 0, "below the log's start", True),
        (10, LogRange(0, 9), None, "beyond the log's end", True),
        (5, None, None, "log unknown", True),
    ],
)
def test_lag_counts_from_the_logs_start_and_a_row_with_lag_or_note_needs_attention(committed, log, lag, note, needed):
    store = MemoryStore("store", data={"g": {T0: Committed(committed)}})
    cli = Cli(store, {} if log is None else {T0: log})
    for view in (("offsets", "lag"), ("groups", "describe")):
        (row,) = cli.rows(*view, "-g", "g", code=int(log is None))
        assert (row["lag"], row["note"]) == (lag, note)
        assert bool(cli.rows(*view, "-g", "g", "--only-with-lag", code=int(log is None))) is needed
    cli.ranges = None
    assert "no brokers are known" in cli("offsets", "lag", "-g", "g", "--only-with-lag", code=2).stderr


def test_an_edit_that_creates_and_deletes_offsets_can_be_undone(saved: Cli, tmp_path: Path) -> None:
    before, image = saved.offsets(), tmp_path / "images" / "i.avro"
    Path("new.csv").write_text("a,t,0,3\na,t,2,0\nnew,t,0,3\nnew,t,2,0\n")
    saved("offsets", "import", "new.csv", "--allow-rewind", *DO, "--before-image", image)
    after = saved.offsets()
    assert {tp: one.offset for tp, one in after["a"].items()} == {T0: 3, T1: 20, T2: 0}
    assert set(after) == {"a", "b", "new"}
    with open_store(f"file:{image}") as snapshot:  # any reader can read before-images
        assert snapshot.fetch("a") == {T0: Committed(10)}
    undo = tmp_path / "undo.avro"
    saved("offsets", "import", image, "--as", "csv", *DO, "--before-image", undo)
    assert saved.offsets() == before
    saved("offsets", "import", undo, *DO)  # the undo can be undone
    assert saved.offsets() == after


def test_an_offset_that_changed_since_is_not_undone_unless_forced(saved: Cli) -> None:
    saved("offsets", "set", "-g", "a", "--topic", "t:0,1", "--to-offset", "4", *DO, "--before-image", "i.avro")
    saved.store.commit("a", {T0: OffsetAndMetadata(8)})
    refused = saved("offsets", "import", "i.avro", *DO, code=1).stderr
    assert "has changed since: 8 now, the edit wrote 4" in refused
    saved("offsets", "import", "i.avro", "--allow-rewind", *DO)
    assert {tp: one.offset for tp, one in saved.offsets()["a"].items()} == {T0: 10, T1: 20}


DELETE = ("offsets", "delete", "-g", "a", "--all-topics", *DO)


def test_an_edit_changes_nothing_if_its_before_images_cannot_be_written_or_would_replace_a_file(saved: Cli) -> None:
    Path("i.avro").write_text("precious")
    assert "nothing was changed" in saved(*DELETE, "--before-image", "i.avro/x.avro", code=1).stderr
    assert "exists already" in saved(*DELETE, "--before-image", "i.avro", code=2).stderr
    assert Path("i.avro").read_text() == "precious"
    assert T0 in saved.offsets()["a"]


def test_damaged_before_images_are_an_error_before_anything_is_changed(saved: Cli) -> None:
    saved(*DELETE, "--before-image", "i.avro")
    Path("i.avro").write_bytes(Path("i.avro").read_bytes()[:-20])
    saved("offsets", "import", "i.avro", *DO, code=1)
    assert set(saved.offsets()) == {"b"}


def test_before_images_of_an_unknown_version_are_rejected_with_it(saved: Cli) -> None:
    saved(*DELETE, "--before-image", "i.avro")
    found = fastavro.reader(io.BytesIO(Path("i.avro").read_bytes()))
    *records, end = list[Any](found)
    own = {key: text for key, text in found.metadata.items() if not key.startswith("avro.")}
    stream = io.BytesIO()
    newer = Writer(stream, found.writer_schema, metadata=own | {"offsetmgr.before_images_version": "9"})
    for record in records:
        newer.write(record)
    newer.flush()
    end["end"]["crc32"] = zlib.crc32(stream.getvalue())
    newer.write(end)
    newer.flush()
    Path("i.avro").write_bytes(stream.getvalue())
    assert "version 9 is not known (known: 2, 3, 4)" in saved("offsets", "import", "i.avro", *DO, code=1).stderr


def test_names_of_before_images_sort_by_time_and_killed_edits_leave_no_temporary_files(saved: Cli) -> None:
    """A living writer holds a lock on its temporary file. Other files stay."""
    directory = Path("state/offsetmgr/before-images")
    directory.mkdir(parents=True)
    killed = directory / ".20261121T111115.941Z-offsets-reset-25778.avro.0123abcd.tmp"
    living = directory / ".20261121T111115.942Z-migrate-mirror-25779.avro.0123abcd.tmp"
    fresh = directory / ".20261121T111115.943Z-offsets-set-25780.avro.0123abcd.tmp"
    other = directory / ".backup.avro.0123abcd.tmp"
    for path in (killed, living, fresh, other):
        path.write_bytes(b"half")
    for path in (killed, living, other):
        os.utime(path, (0, 0))
    with living.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        shown = saved(*DELETE).stderr
    assert {path for path in (killed, living, fresh, other) if path.exists()} == {living, fresh, other}
    named = re.search(r"before-images: (.*)", shown)
    assert named is not None
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{3}Z-offsets-delete-\d+\.avro", Path(named[1]).name)


CLAMPED = "clamped from 11 to the log's end"
BACK = "refused: would go back from 10 to"
WHOLE = "refused: stays unchanged, because 1 of its 2 partitions cannot be changed (t-0)"


@pytest.mark.parametrize(
    ("offsets", "options", "expected", "code"),
    [  # the logs of t-0 and t-1 end at 8 and 15, and t-2 does not exist; the store is at 10 and 20
        ({0: (10, ""), 1: (20, "m")}, (), [(10, "unchanged"), (20, "unchanged")], 0),
        ({0: (11, "")}, (), [(None, f"{BACK} 8")], 1),
        (
            {0: (9, ""), 1: (20, "m")},
            ("--unchecked",),
            [(None, f"{BACK} 9"), (None, WHOLE)],
            1,
        ),
        ({0: (11, "")}, ("--allow-rewind",), [(8, f"{CLAMPED}; rewinds")], 0),
        ({0: (10, "other")}, (), [(None, f"{BACK} 8")], 1),
        (
            *({0: (10, "other")}, ("--allow-rewind",)),
            *([(8, "clamped from 10 to the log's end; drops a client's own text; rewinds")], 0),
        ),
        ({2: (1, "")}, (), [(None, "refused: no")], 1),
        ({0: (11, ""), 2: (1, "")}, ("--unchecked",), [(11, None), (1, None)], 0),
    ],
)
def test_an_import_clamps_offsets_to_their_logs_except_those_that_the_store_holds(
    saved: Cli, offsets: dict[int, tuple[int, str]], options: tuple[str, ...], expected: list[Any], code: int
) -> None:
    saved.ranges = {T0: LogRange(0, 8), T1: LogRange(0, 15)}
    with open_store("file:x.avro") as file:
        file.commit("a", {TopicPartition("t", n): OffsetAndMetadata(*value) for n, value in offsets.items()})
    found = saved.rows("offsets", "import", "x.avro", *options, code=code)
    assert [(row["new_offset"], row["note"]) for row in found] == expected
    if 2 in offsets and not options:
        assert "--unchecked writes the offset without a check" in saved("offsets", "import", "x.avro", code=1).stderr


def test_a_copy_leaves_the_group_and_a_changed_original_is_a_difference(saved: Cli, monkeypatch) -> None:
    before = saved.offsets()["a"]
    saved("groups", "copy", "a", "copy", *DO)
    assert saved.offsets()["a"] == saved.offsets()["copy"] == before
    assert "does not exist" in saved("groups", "copy", "zz", "other", code=1).stderr
    with monkeypatch.context() as spilled:
        spilled.setattr(edit_plan, "MAX_CHANGES_IN_MEMORY", 0)
        renamed = saved.rows("groups", "rename", "copy", "new", *DO)
    assert {(row["group"], row["outcome"]) for row in renamed} == {("new", "written"), ("copy", "written")}

    class Moving(MemoryStore):
        """Another client commits to the original while the copy is written."""

        def edit(self, edits: Any) -> Iterator[Any]:
            for result in super().edit(edits):
                self.data["a"][T0] = Committed(11)
                yield result

    moving = Cli(Moving("store", data={"a": dict(before)}))
    changed = moving("groups", "rename", "a", "new", *DO, code=1).stderr
    assert "t-0 is 10 in the copy and 11 in the original" in changed
    assert set(moving.offsets()) == {"a", "new"}

    class Lost(MemoryStore):
        def edit(self, edits: Any) -> Iterator[Any]:
            if "new" in self.data:
                raise Unreachable("the store")
            return super().edit(edits)

    left = Cli(Lost("store", data={"a": dict(before)})).rows("groups", "rename", "a", "new", *DO, code=1)
    assert {(row["group"], row["outcome"]) for row in left} == {("new", "written"), ("a", "unknown")}


COPY = ("groups", "copy", "a", "copy")


def test_a_plan_is_executed_only_as_a_whole_and_while_its_log_has_its_offsets(saved: Cli) -> None:
    cli = Cli(saved.store, {T0: LogRange(0, 50), T1: LogRange(0, 50)})
    cli("offsets", "reset", "-g", "a", "--all-topics", "--to-earliest", "--plan", "e.plan")
    for option, *value in (("--topic", "t"), ("--group", "a"), ("--allow-rewind",), ("--translate", "none")):
        assert f"error: {option}: cannot be" in cli("offsets", "import", "e.plan", option, *value, code=2).stderr
    cli.ranges = {T0: LogRange(12, 50), T1: LogRange(0, 50)}
    assert "0: cannot be set to 0: below the log's start (12)" in cli("offsets", "import", "e.plan", *DO, code=1).stderr
    assert {tp: one.offset for tp, one in cli.offsets()["a"].items()} == {T0: 10, T1: 20}
    Path("cut.plan").write_bytes(Path("e.plan").read_bytes()[:300])
    assert "broken Avro" in cli("offsets", "import", "cut.plan", *DO, code=1).stderr
    assert "No such file" in cli("offsets", "import", "absent.plan", *DO, code=1).stderr


def test_a_plan_is_saved_as_a_new_file_without_options_of_its_execution(saved: Cli) -> None:
    for option in ("--reason", "--before-image"):
        assert f"--plan and {option}: are" in saved(*COPY, "--plan", "a.plan", option, "r", code=2).stderr
    assert "--plan: the name of the file is empty" in saved(*COPY, "--plan=", code=2).stderr
    Path("link.plan").symlink_to("elsewhere")
    assert "exists already" in saved(*COPY, "--plan", "link.plan", code=1).stderr
    saved("groups", "copy", "a", "copy", *DO)
    saved(*COPY, "--plan", "same.plan")  # the copy is the same, and so is the next one
    assert "nothing to change" in saved("offsets", "import", "same.plan", *DO).stderr


@pytest.mark.parametrize(("topics", "code"), [("*", 1), ("t:0", 0), ("t", 1)])
def test_a_plan_of_a_copy_is_refused_if_the_original_has_a_new_offset(saved: Cli, topics: str, code: int) -> None:
    saved(*COPY, "-t", topics, "--plan", "c.plan")
    saved.store.commit("a", {T2: OffsetAndMetadata(17)})
    done = saved("offsets", "import", "c.plan", *DO, code=code).stderr
    assert ("t-2: has changed since the plan was made: 17 now, and absent in the plan" in done) == bool(code)
    assert ("copy" in saved.offsets()) != bool(code)


def test_setting_an_unknown_group_is_an_error_unless_it_may_be_created(saved: Cli) -> None:
    edit = ("offsets", "set", "-g", "zz", "--topic", "t:0", "--to-offset", "1")
    assert "does not exist" in saved(*edit, code=1).stderr
    (row,) = saved.rows(*edit, "--new-group")
    assert (row["current_offset"], row["new_offset"]) == (None, 1)


def test_an_undo_names_existing_groups_that_it_leaves_empty(saved: Cli) -> None:
    Path("new.csv").write_text("one,t,0,1\ntwo,t,0,1\n")
    saved("offsets", "import", "new.csv", *DO, "--before-image", "i.avro")
    saved.store.data["dark"], saved.store.broken["dark"] = {}, Unreachable("it")
    shown = saved("offsets", "import", "i.avro", *DO).stderr
    assert "stay, empty" in shown or shown.count("stays, empty") == 2
    assert "dark" not in shown
    (remove,) = (line for line in shown.splitlines() if line.startswith("to remove: offsetmgr "))
    words = ["--store", "memory:store", "--group", "one", "--group", "two", "--execute"]
    assert shlex.split(remove)[3:] == ["groups", "delete", *words]


def test_a_diff_compares_the_union_of_both_sides(saved: Cli) -> None:
    a = {T0: Committed(10), T1: Committed(20, "other", 3), T2: Committed(1)}
    in_memory(store=saved.store, other=MemoryStore("other", data={"a": a, "c": {T0: Committed(1)}}))
    found = rows("offsets", "diff", "--from", "memory:store", "--to", "memory:other", "--all-groups", code=1)
    assert [(row["group"], row["partition"], row["difference"]) for row in found] == [
        ("a", 1, "metadata"),
        ("a", 2, "only-to"),
        ("b", 0, "only-from"),
        ("c", 0, "only-to"),
    ]
    assert rows("offsets", "diff", "--from", "memory:store", "--to", "memory:store", "--all-groups") == []


def test_a_diff_does_not_call_a_group_unreadable_that_a_store_cannot_contain() -> None:
    impossible = UsageError("group ''", "an empty name cannot exist in ZooKeeper")
    in_memory(
        kafka=MemoryStore("kafka", data={"": {T0: Committed(5)}}),
        zookeeper=MemoryStore("zookeeper", broken={"": impossible}),
    )
    (found,) = rows("offsets", "diff", "--from", "memory:kafka", "--to", "memory:zookeeper", "--all-groups", code=1)
    assert (found["group"], found["difference"], found["to_offset"]) == ("", "only-from", None)


def test_a_file_that_does_not_exist_yet_is_named_in_the_report_of_the_cluster(saved: Cli) -> None:
    copied = saved("groups", "copy", "a", "a", "--to", "file:new.avro", code=1).stderr
    assert "file:new.avro is a new file" in copied


def test_a_group_that_cannot_be_described_does_not_hold_up_the_edit_of_the_others(saved, monkeypatch):
    described = {"a": Unreachable("group a", "it cannot be read"), "b": GroupDescription("b", "EMPTY")}
    monkeypatch.setattr(Connections, "group_describer", lambda *_, **__: lambda _groups: described)
    saved("offsets", "delete", "--all-groups", "--all-topics", "--wait-empty", "60", *DO, code=1)
    assert list(saved.offsets()) == ["a"]


def test_the_hint_below_stale_offsets_is_a_complete_command(monkeypatch):
    monkeypatch.setattr(MemoryStore, "uri", property(lambda store: store.id))
    old, kafka = (MemoryStore(id, data={"my group": {T0: Committed(len(id))}}) for id in ("zookeeper://z", "kafka://k"))
    monkeypatch.setattr(Connections, "others", (kafka,))
    shown = Cli(old, {T0: LogRange(0, 9)})("offsets", "lag", "--group", "my group").stderr
    command = f"offsetmgr groups where 'my group' --window 60 --bootstrap-server {LOGS} --store memory:store"
    assert f"{command} shows where the group commits\n" in shown
