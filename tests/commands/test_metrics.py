"""Lag and location for programs: metrics in Prometheus' text format, and ``--fail-above``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from committed_offsets import commit
from everyday import Cli
from in_process import Output, command
from memory_stores import LOGS, OneLog, in_memory, logs_in_memory
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from offsetmgr.app import metrics, offsets
from offsetmgr.app.connections import Connections, connect
from offsetmgr.core.errors import CorruptData, TimedOut
from offsetmgr.core.model import Committed, LogRange, TopicPartition
from offsetmgr.core.selection import ALL_GROUPS
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.testing.memory import MemoryStore

pytest_plugins = ["everyday_fixtures"]

HOSTILE = 'evil"} 1\n\\n東\x1b[31m'
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
MINION = "kminion_kafka_consumer_group_topic"


def values(text: str) -> dict[tuple[str, ...], float]:
    """The samples of a text that both formats accept, by metric and labels, in which each metric occurs once."""
    families = list(text_string_to_metric_families(text))
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert (
        names
        == [family.name for family in families]
        == [f.name for f in openmetrics.text_string_to_metric_families(text)]
    )
    assert text.endswith("\n# EOF\n")
    return {(sample.name, *sample.labels.values()): sample.value for f in families for sample in f.samples}


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """Logs from 0 to 50. Group a is behind, b is beyond the end of one log, and one offset of c is unreadable."""
    a, b = {T0: Committed(40), T1: Committed(50), U0: Committed(5)}, {T0: Committed(60), T1: Committed(20)}
    data = {"a": a, "b": b, "c": {T0: Committed(1), U0: Committed(1)}, HOSTILE: {T0: Committed(49)}, "idle": {}}
    found = MemoryStore("store", data=data, broken={("c", T0): CorruptData("group c, t-0", "is damaged")})
    in_memory(store=found)
    with logs_in_memory(OneLog(LogRange(0, 50))):
        yield found


def lag(*words: object, code: int = 0) -> Output:
    return command("offsets", "lag", *words, "--store", "memory:store", "--bootstrap-server", LOGS, code=code)


def test_lag_is_written_with_the_names_of_kminion(store: MemoryStore) -> None:
    done = lag("--all-groups", "--format", "prometheus", code=1)
    found = values(done.stdout)
    of_partitions = {key[1:]: value for key, value in found.items() if key[0] == f"{MINION}_partition_lag"}
    assert of_partitions == {
        ("a", "t", "0"): 10,
        ("a", "t", "1"): 0,
        ("a", "u", "0"): 45,
        ("b", "t", "1"): 30,
        ("c", "u", "0"): 49,
        (HOSTILE, "t", "0"): 1,
    }
    sums = {key: value for key, value in found.items() if key[0] in (f"{MINION}_lag", f"{MINION}_offset_sum")}
    # The lag of b in t and both sums of c in t have an unknown part.
    assert {(name.removeprefix(MINION), *labels): value for (name, *labels), value in sums.items()} == {
        ("_lag", "a", "t"): 10,
        ("_lag", "a", "u"): 45,
        ("_lag", "c", "u"): 49,
        ("_lag", HOSTILE, "t"): 1,
        ("_offset_sum", "a", "t"): 90,
        ("_offset_sum", "a", "u"): 5,
        ("_offset_sum", "b", "t"): 80,
        ("_offset_sum", "c", "u"): 1,
        ("_offset_sum", HOSTILE, "t"): 49,
    }
    assert 'topic_partition_lag{group_id="a",topic_name="t",partition_id="0"} 10\n' in done.stdout
    assert found["offsetmgr_read_errors", "offsets lag"] == 1
    assert "error: group c, t-0: is damaged" in done.stderr


def test_totals_are_the_sums_of_groups_alone(store: MemoryStore) -> None:
    found = values(lag("--all-groups", "--totals", "--format", "prometheus", code=1).stdout)
    assert found.pop(("offsetmgr_read_timestamp_seconds", "offsets lag")) > 1.7e9
    assert found.pop(("offsetmgr_read_errors", "offsets lag")) == 1
    groups: dict[str, dict[str, float]] = {}
    for (name, group), value in found.items():
        groups.setdefault(group, {})[name.removeprefix("offsetmgr_consumer_group_")] = value
    assert groups == {
        "a": {"lag": 55, "largest_lag": 45, "unknown_lags": 0, "error": 0},
        "b": {"unknown_lags": 1, "error": 0},
        "c": {"unknown_lags": 1, "error": 1},
        HOSTILE: {"lag": 1, "largest_lag": 1, "unknown_lags": 0, "error": 0},
        "idle": {"unknown_lags": 0, "error": 0},
    }


def test_a_group_that_could_not_be_read_has_its_error_and_no_sums(store: MemoryStore) -> None:
    store.broken["a"] = TimedOut("group a", "no response")
    found = values(lag("a", "b", "--format", "prometheus", code=1).stdout)
    assert found["offsetmgr_consumer_group_error", "a"] == 1
    assert not [key for key in found if key[1] == "a" and key[0].startswith("kminion")]
    store.broken["b"] = TimedOut("group b", "no response")
    assert not [key for key in values(lag("b", "--format", "prometheus", code=1).stdout) if key[0].endswith("_lag")]
    missing = lag("nobody", "--format", "prometheus", code=1)
    assert missing.stdout == "" and "does not exist" in missing.stderr


def test_a_program_gets_the_same_samples(store: MemoryStore) -> None:
    with connect("memory:store", bootstrap_server=LOGS) as connections:
        samples = metrics.lag_samples(offsets.lag(connections, ALL_GROUPS), totals=True)
        assert metrics.Sample("offsetmgr_consumer_group_lag", {"group_id": "a"}, 55) in samples


def test_the_location_of_a_group_is_a_metric_and_what_is_unknown_is_counted(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "configured_stores", lambda _: {"kafka": "memory:store"})
    found = values(command("groups", "where", "a", "c", "--store", "memory:store", "--format", "prometheus").stdout)
    located = "offsetmgr_located_group_"
    assert found[f"{located}phase", "a", "unknown", "unknown"] == 1
    assert found["kminion_kafka_consumer_group_members", "a"] == 0
    assert (found[f"{located}unread", "a"], found[f"{located}unread", "c"]) == (0, 1)
    assert (f"{located}lag", "a") not in found and True  # no brokers are known


@pytest.mark.servers
def test_metrics_of_a_real_group_are_those_of_the_rows(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    for uri, offset in ((f"zookeeper://{kafka.zookeeper}", 3), (f"kafka://{kafka.bootstrap}", 4)):
        commit(uri, topic, topic, {0: offset})
    stores = ("--zookeeper", kafka.zookeeper, "--bootstrap-server", kafka.bootstrap)
    (row,) = cli.rows("groups", "where", topic, *stores)
    found = values(cli("groups", "where", topic, *stores, "--format", "prometheus").stdout)
    assert ("offsetmgr_located_group_phase", topic, row["phase"], row["confidence"]) in found
    assert found.get(("offsetmgr_located_group_lag", topic)) == row["lag"]


@pytest.mark.usefixtures("store")
def test_samples_of_several_clusters_have_the_label_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = f'store = "memory:store"\nbootstrap-server = "{LOGS}"\n'
    dead = 'zookeeper = "127.0.0.1:1"\ntimeout = 1000\nbootstrap-server = "x:1"\n'
    (tmp_path / "c.toml").write_text(f"[context.one]\n{own}[context.two]\n{own}[context.dead]\n{dead}")
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "c.toml"))
    found = values(command("offsets", "lag", "a", "--context", "*", "--format", "prometheus", code=1).stdout)
    assert [key[1] for key in found if key[0] == f"{MINION}_lag" and key[-1] == "t"] == ["one", "two"]
    assert found["offsetmgr_read_errors", "dead"] == 1


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("option", ["--top=2", "--sort=lag", "--only-with-lag", "--watch"])
def test_metrics_are_of_all_rows_of_one_read(option: str) -> None:
    assert "--format prometheus" in lag("a", "--format", "prometheus", option, code=2).stderr


def test_a_command_without_metrics_has_no_such_format() -> None:
    errors = command("offsets", "get", "g", "--format", "prometheus", code=2).stderr
    assert "'prometheus' is not one of 'table', 'json', 'csv'" in errors


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("words", "code", "errors"),
    [
        (["a", "--fail-above", "55"], 0, []),
        (["a", "--fail-above", "54"], 1, ["error: the lag is above 54 in 1 group: a 55"]),
        (["a", "--fail-above", "54", "-t", "t:0,1"], 0, []),
        (["a", "--fail-above", "55", "--only-with-lag"], 0, []),
        (
            ["a", "b", "c", "evil*", "--fail-above", "0", "--top", "1", "--totals"],
            1,
            [
                'error: the lag is above 0 in 2 groups: a 55, evil"} 1\\n\\n東\\x1b[31m 1',
                "error: the lag is unknown in 2 groups: b, c",
            ],
        ),
        (["b", "--fail-above", "999"], 1, ["error: the lag is unknown in 1 group: b"]),
        (["idle", "--fail-above", "999"], 1, ["error: the lag is unknown in 1 group: idle"]),
        (["[ai]*", "--fail-above", "55"], 0, []),
        (["a", "--fail-above", "54", "--format", "prometheus"], 1, ["error: the lag is above 54 in 1 group: a 55"]),
        (["a", "--fail-above", "54", "--watch"], 2, ["error: --fail-above with --watch: it is for one read"]),
    ],
)
def test_a_lag_above_the_limit_or_unknown_fails(words: list[str], code: int, errors: list[str]) -> None:
    found = lag(*words, code=code).stderr.splitlines()
    assert [line for line in found if line.startswith(("error: the lag", "error: --fail-above"))] == errors
