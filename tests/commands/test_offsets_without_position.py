"""Offsets that no consumer can start at: negative numbers, which brokers accept, and first commits that are pending in
a transaction. Every view has the same word for them, and no command destroys them without an explicit option."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import offsets, pending_commit
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from everyday import Cli
from processes import create_topic, fill

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers


@pytest.fixture
def here(current_broker: KafkaBroker | KraftBroker) -> list[str]:
    return ["--bootstrap-server", current_broker.bootstrap]


@pytest.fixture
def made_topic(current_broker: KafkaBroker | KraftBroker, unique: str) -> str:
    return create_topic(current_broker.bootstrap, unique, 4)


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commits numbers that offsetmgr's stores refuse."""
    changes = {TopicPartition(topic, number): OffsetAndMetadata(offset) for number, offset in offsets.items()}
    with KafkaStore(bootstrap) as store:
        thread = store.store_thread()
        outcomes = thread.run(lambda deadline: thread.client.commit(group, changes, deadline))
    assert set(outcomes.values()) == {None}


def committed(bootstrap: str, group: str) -> dict[int, int]:
    with open_store(f"kafka://{bootstrap}") as store:
        (found,) = store.scan([group])
    return {tp.partition: offset for tp, offset in offsets(found.offsets).items()}


def views(cli: Cli, here: list[str], group: str, topic: str) -> dict[str, dict[int, str | None]]:
    """The word for each partition in each view."""
    found: dict[str, dict[int, str | None]] = {}

    def rows(*command: str) -> list[dict[str, Any]]:
        return cli.rows(*command, "--group", group, *here, code=1)

    for name, options in {"whole": [], "topic": ["--topic", topic], "partition": ["--topic", f"{topic}:0-3"]}.items():
        for command in ("get", "lag"):
            found[f"{command} {name}"] = {r["partition"]: r["state"] for r in rows("offsets", command, *options)}
    for name, words in {"lag note": ("offsets", "lag"), "describe": ("groups", "describe")}.items():
        found[name] = {row["partition"]: row["note"] for row in rows(*words)}
    table = cli("groups", "where", group, "--partitions", *here).stdout
    cells = [line.split() for line in table.splitlines()]
    found["where"] = {int(row[2]): row[3] for row in cells if row[:2] == [group, topic]}
    return found


@pytest.mark.parametrize("offset", [-1, -2, -7])
def test_a_negative_offset_is_unreadable_in_every_view_and_not_destroyed(
    cli: Cli, current_broker: KafkaBroker | KraftBroker, here: list[str], made_topic: str, unique: str, offset: int
) -> None:
    commit(current_broker.bootstrap, unique, made_topic, {0: 5, 1: offset})
    for name, words in views(cli, here, unique, made_topic).items():
        assert words[1] == "unreadable", name
        assert words.get(0) in ("committed", "5", None, "below the log's start", "beyond the log's end"), name
    named = f"{made_topic}-1: holds {offset}: a negative number is not a committed offset"
    for command in (["rename", unique, f"{unique}-new"], ["delete", "--group", unique]):
        refused = cli("groups", *command, "--execute", "--yes", *here, code=1).stderr
        assert named in refused
        assert "--accept-unseen" in refused
        assert committed(current_broker.bootstrap, unique) == {0: 5}
    assert cli.rows("edits", "list") == []
    edit = ["offsets", "set", "--group", unique, "--topic", f"{made_topic}:1", "--to-offset", "0"]
    replaced = cli(*edit, "--execute", "--yes", *here)
    assert "replaces a negative offset, which an undo does not restore" in replaced.stdout
    assert committed(current_broker.bootstrap, unique) == {0: 5, 1: 0}


def test_totals_are_the_sums_of_the_rows_and_report_the_same_errors(
    cli: Cli, current_broker: KafkaBroker | KraftBroker, here: list[str], made_topic: str, unique: str, tmp_path: Path
) -> None:
    """Among the offsets are one of a missing topic, one below the start and one beyond the end of its log."""
    fill(current_broker.bootstrap, made_topic, 9, 9, 9)
    admin, start = AdminClient({"bootstrap.servers": current_broker.bootstrap}), Position(made_topic, 0, 4)
    admin.delete_records([start])[start].result(60)
    groups = {f"{unique}-a": {0: 2, 1: 5, 2: 9, 3: 7}, f"{unique}-b": {0: 6, 1: -2, 3: 1}, f"{unique}-c": {3: 8}}
    for group, numbers in groups.items():
        commit(current_broker.bootstrap, group, made_topic, numbers)
    lines = [f"{group},{made_topic},{p},{offset}" for group, found in groups.items() for p, offset in found.items()]
    notes = {None, "beyond the log's end", "below the log's start", "unreadable"}
    (tmp_path / "x.csv").write_text("\n".join([*lines, f"{unique}-c,gone,0,1", ""]))
    for store, missing in ((here, set[str]()), ([*here, "--store", f"file:{tmp_path}/x.csv"], {"log unknown"})):
        command = ["offsets", "lag", "--group", f"{unique}-*", *store, "--format", "json"]
        shown, added = cli(*command, code=1), cli(*command, "--totals", code=1)
        rows = json.loads(shown.stdout)
        assert {row["note"] for row in rows} == notes | missing
        assert [total["group"] for total in json.loads(added.stdout)] == list(groups)
        for total in json.loads(added.stdout):
            lags = [row["lag"] for row in rows if row["group"] == total["group"]]
            known = [lag for lag in lags if lag is not None]
            sums = (len(lags), sum(known) if known else None, max(known, default=None), len(lags) - len(known))
            assert tuple(total.values())[1:] == sums
        assert added.stderr == shown.stderr


def test_a_reset_replaces_a_negative_offset_only_in_a_named_topic(cli, current_broker, here, made_topic, unique):
    commit(current_broker.bootstrap, unique, made_topic, {0: 5, 1: -2})
    reset = ["offsets", "reset", "--group", unique, "--to-earliest", "--execute", "--yes", *here]
    cli(*reset, "--all-topics", code=1)
    assert committed(current_broker.bootstrap, unique) == {0: 5}, "a group is edited as a whole or not at all"
    cli(*reset, "--topic", made_topic)
    assert committed(current_broker.bootstrap, unique) == dict.fromkeys(range(4), 0)


@pytest.fixture
def pending(current_broker: KafkaBroker | KraftBroker, made_topic: str, unique: str) -> Iterator[str]:
    """A group with a commit in partition 0, and a first commit in partition 1 that its transaction has not ended."""
    commit(current_broker.bootstrap, unique, made_topic, {0: 5})
    with pending_commit(current_broker.bootstrap, unique, made_topic, 1) as producer:
        yield unique
        producer.abort_transaction(60)


def test_a_pending_first_commit_is_pending_in_every_view_and_not_destroyed(
    cli: Cli, current_broker: KafkaBroker | KraftBroker, here: list[str], made_topic: str, pending: str
) -> None:
    for name, words in views(cli, here, pending, made_topic).items():
        assert words[1] == "pending", name
    for command in (["rename", pending, f"{pending}-new"], ["delete", "--group", pending]):
        refused = cli("groups", *command, "--execute", "--yes", *here, code=1).stderr
        assert "transaction" in refused
        assert f"{made_topic}-1" in refused
        assert "--accept-unseen" in refused
        assert committed(current_broker.bootstrap, pending) == {0: 5}
    assert cli.rows("edits", "list") == []


@pytest.mark.parametrize("command", ["rename", "delete"])
def test_an_explicit_option_deletes_a_group_with_unreadable_offsets(
    cli: Cli, current_broker: KafkaBroker | KraftBroker, here: list[str], made_topic: str, pending: str, command: str
) -> None:
    commit(current_broker.bootstrap, pending, made_topic, {2: -2})
    words = [pending, f"{pending}-new"] if command == "rename" else ["--group", pending]
    cli("groups", command, *words, "--accept-unseen", "--execute", "--yes", *here)
    with open_store(f"kafka://{current_broker.bootstrap}") as store:
        assert pending not in set(store.groups())
    assert committed(current_broker.bootstrap, f"{pending}-new") == ({0: 5} if command == "rename" else {})


def test_a_group_whose_only_commit_is_pending_is_not_empty(cli, current_broker, here, made_topic, unique) -> None:
    with pending_commit(current_broker.bootstrap, unique, made_topic, 3) as producer:
        (row,) = cli.rows("offsets", "get", "--group", unique, *here, code=1)
        assert (row["partition"], row["state"]) == (3, "pending")
        cli("groups", "delete", "--group", unique, "--execute", "--yes", *here, code=1)
        producer.commit_transaction(60)
    assert committed(current_broker.bootstrap, unique) == {3: 70}
