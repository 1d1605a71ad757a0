"""Lag and location for programs: metrics in Prometheus' text format, and ``--fail-above``."""

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
from offsetmgr.app.connections import connect
from offsetmgr.core.errors import CorruptData, TimedOut
from offsetmgr.core.model import Committed, LogRange, TopicPartition
from offsetmgr.core.selection import GroupSelection
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.testing.memory import MemoryStore

pytest_plugins = ["everyday_fixtures"]

HOSTILE = 'evil"} 1\n\\n東\x1b[31m'
LONG = "long" * 20
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TOPIC, GROUP = "kminion_kafka_consumer_group_topic", "offsetmgr_consumer_group"
LOCATED = "offsetmgr_located_group"


def samples(text: str, metric: str) -> list[str]:
    """The labels and values of a metric, in a text that both formats accept."""
    families = list(text_string_to_metric_families(text))
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert names == [family.name for family in families]
    assert names == [family.name for family in openmetrics.text_string_to_metric_families(text)]
    found = [sample for family in families if family.name == metric for sample in family.samples]
    return [" ".join([*one.labels.values(), f"{one.value:g}"]) for one in found]


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    """Logs from 10 to 50. Group a is behind, with an offset below the start of a log; b is beyond the end of one log,
    and one offset of c is unreadable."""
    a, b = {T0: Committed(40), T1: Committed(50), U0: Committed(5)}, {T0: Committed(60), T1: Committed(20)}
    data = {
        "a": a,
        "b": b,
        "c": {T0: Committed(1), U0: Committed(1)},
        HOSTILE: {T0: Committed(49)},
        "idle": {},
        LONG: {},
    }
    found = MemoryStore("store", data=data, broken={("c", T0): CorruptData("group c, t-0", "is damaged")})
    in_memory(store=found)
    with logs_in_memory(OneLog(LogRange(10, 50))):
        yield found


def lag(*words: object, code: int = 0) -> Output:
    return command("offsets", "lag", *words, "--store", "memory:store", "--bootstrap-server", LOGS, code=code)


@pytest.mark.usefixtures("store")
def test_a_metric_of_kminion_has_the_value_of_kminion_and_nothing_in_place_of_an_unknown_number() -> None:
    done = lag("a", "b", "c", "evil*", "--format", "prometheus", code=1)
    text, evil = done.stdout, f"{HOSTILE} t"
    lags = ["a t 0 10", "a t 1 0", "a u 0 45", "b t 0 0", "b t 1 30", "c u 0 49", f"{evil} 0 1"]
    assert samples(text, f"{TOPIC}_partition_lag") == lags
    assert samples(text, f"{TOPIC}_lag") == ["a t 10", "a u 45", "b t 30", "c u 49", f"{evil} 1"]
    assert samples(text, f"{TOPIC}_offset_sum") == ["a t 90", "a u 5", "b t 80", "c u 1", f"{evil} 49"]
    assert f'{TOPIC}_partition_lag{{group_id="a",topic_name="t",partition_id="0"}} 10\n' in text
    assert samples(text, "offsetmgr_read_errors") == ["offsets lag 1"] and "error: group c, t-0: is dam" in done.stderr


@pytest.mark.usefixtures("store")
def test_totals_are_the_sums_of_groups_alone() -> None:
    text = lag("a", "b", "c", "idle", "--totals", "--format", "prometheus", code=1).stdout
    assert samples(text, f"{GROUP}_lag") == ["a 50"]
    assert samples(text, f"{GROUP}_largest_lag") == ["a 40"]
    assert samples(text, f"{GROUP}_below_start") == ["a 1", "b 0", "c 1", "idle 0"]
    assert samples(text, f"{GROUP}_unknown_lags") == ["a 0", "b 1", "c 1", "idle 0"]
    assert samples(text, f"{GROUP}_error") == ["a 0", "b 0", "c 1", "idle 0"]
    assert TOPIC not in text and text.endswith("\n# EOF\n")
    with connect("memory:store", bootstrap_server=LOGS) as connections:  # a program gets the same samples
        found = offsets.lag(connections, GroupSelection.of(["a", "b", "c", "idle"]))
        assert [*metrics.exposition(metrics.lag_samples(found, totals=True))][:-3] == text.splitlines()[:-3]


def test_a_group_that_could_not_be_read_has_its_error_and_no_sums(store: MemoryStore) -> None:
    store.broken["a"] = TimedOut("group a", "no response")
    text = lag("a", "b", "--format", "prometheus", code=1).stdout
    assert samples(text, f"{GROUP}_error") == ["a 1", "b 0"] and samples(text, f"{TOPIC}_offset_sum") == ["b t 80"]
    failed = lag("nobody", "--format", "prometheus", code=1).stdout
    assert samples(failed, "offsetmgr_read_errors") == ["offsets lag 1"]


@pytest.mark.usefixtures("store")
def test_samples_of_several_clusters_have_the_label_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = f'store = "memory:store"\nbootstrap-server = "{LOGS}"\n'
    dead = 'zookeeper = "127.0.0.1:1"\ntimeout = 1000\nbootstrap-server = "x:1"\n'
    (tmp_path / "c.toml").write_text(f"[context.one]\n{own}[context.two]\n{own}[context.dead]\n{dead}")
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "c.toml"))
    several = ("offsets", "lag", "a", "--format", "prometheus", "--context")
    text, errors = command(*several, "*", code=1)
    assert samples(text, f"{GROUP}_lag") == ["one a 50", "two a 50"]
    assert "dead offsets lag 1" in samples(text, "offsetmgr_read_errors") and "error: dead: " in errors
    for contexts, series in (("dea*", "dead offsets lag 1"), ("dead", "offsets lag 1")):
        assert samples(command(*several, contexts, code=1).stdout, "offsetmgr_read_errors") == [series]


@pytest.mark.servers
def test_the_location_of_a_group_is_a_metric(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    for uri, offset in ((f"zookeeper://{kafka.zookeeper}", 3), (f"kafka://{kafka.bootstrap}", 4)):
        commit(uri, topic, topic, {0: offset})
    where = ("groups", "where", topic, "--zookeeper", kafka.zookeeper, "--bootstrap-server", kafka.bootstrap)
    (row,), text = cli.rows(*where), cli(*where, "--format", "prometheus").stdout
    assert samples(text, f"{LOCATED}_phase") == [f"{topic} {row['phase']} {row['confidence']} 1"]
    assert samples(text, f"{LOCATED}_lag") == ([] if row["lag"] is None else [f"{topic} {row['lag']}"])
    assert samples(text, f"{LOCATED}_unread") == samples(text, "kminion_kafka_consumer_group_members") == [f"{topic} 0"]
    assert samples(text, f"{LOCATED}_members") == [f"{topic} zookeeper 0", f"{topic} kafka 0"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("option", ["--top=2", "--sort=lag", "--only-with-lag", "--watch"])
def test_metrics_are_of_all_rows_of_one_read_and_of_some_commands(option: str) -> None:
    assert "--format prometheus" in lag("a", "--format", "prometheus", option, code=2).stderr
    errors = command("offsets", "get", "g", "--format", "prometheus", code=2).stderr
    assert "'prometheus' is not one of 'table', 'json', 'csv'" in errors


UNKNOWN, ABSENT = "the lag is unknown in 1 group: b", "nothing committed in 2 groups:"
MISSING = "topic {}: not among the groups' offsets in memory:store"
SHOWN = 'evil"} 1\\n\\n東\\x1b[31m'


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("words", "code", "errors"),
    [
        ("a --fail-above 50", 0, []),
        ("a --fail-above 49", 1, ["the lag is above 49 in 1 group: a 50"]),
        ("a --fail-above 49 -t t:0,1", 0, []),
        ("a --fail-above 50 --only-with-lag", 0, []),
        (
            "--all-groups --fail-above 0 --top 1 --totals",
            1,
            [f"the lag is above 0 in 2 groups: a 50, {SHOWN} 1", "the lag is unknown in 2 groups: b, c"],
        ),
        ("idle --fail-above 999", 1, ["nothing committed in 1 group: idle"]),
        (f"{LONG} --fail-above 999", 1, ["nothing committed in 1 group: longlonglonglonglon..onglonglonglonglong"]),
        ("idle* --fail-above 999", 1, ["nothing to check: no selected group has a commit"]),
        ("a b -t t --fail-above 99", 1, [UNKNOWN, f"{ABSENT} a (6 partitions), b (6 partitions)"]),
        ("[abi]* -t t:0,2 --fail-above 99", 1, [UNKNOWN, f"{ABSENT} a (1 partition), b (1 partition)"]),
        ("[ai]* --fail-above 50 --format prometheus", 0, []),
        ("a --fail-above 49 --format prometheus", 1, ["the lag is above 49 in 1 group: a 50"]),
        ("a --fail-above 49 --watch", 2, ["--fail-above with --watch: it is for one read"]),
        *((f"[ai]* -t t:0 -t {topic}", 1, [MISSING.format(topic)]) for topic in ("none", "none*", "t:9")),
        *((f"[ai]* -t {topic} --fail-above 9", 1, [MISSING.format(topic)]) for topic in ("none", "none*", "t:9")),
    ],
)
def test_a_lag_above_the_limit_or_unknown_fails(words: str, code: int, errors: list[str]) -> None:
    found = [line.removeprefix("error: ") for line in lag(*words.split(), code=code).stderr.splitlines()]
    assert [line for line in found if line.startswith(("the lag is", "nothing", "topic", "--fail-above"))] == errors
