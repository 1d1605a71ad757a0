"""``offsets reset --running`` and its undo, while a consumer of the group runs."""

import shlex
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from everyday import Cli, committed
from processes import fill, until
from repeated import repeated

from offsetmgr import OffsetAdmin, RunningEdit, TopicPartition
from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = pytest.mark.servers

CONSUMER_PROTOCOL = {"group.protocol": "consumer"}


@contextmanager
def consuming(bootstrap: str, group: str, **config: object) -> Iterator[list[tuple[int, int]]]:
    """A consumer of the topic ``group`` that commits every 0.2 s. Yields the partition and offset of its records."""
    own = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    if "group.protocol" not in config:
        own["heartbeat.interval.ms"] = "200"  # by default, a member learns of a rebalance up to 3 s later
    consumer = Consumer({**own, "auto.commit.interval.ms": 200, **config})
    consumer.subscribe([group])
    received: list[tuple[int, int]] = []

    def consume() -> None:
        for message in consumer.consume(10, 0.1):
            received.append((message.partition() or 0, message.offset() or 0))

    with closing(consumer), repeated(consume):
        yield received


def test_a_running_group_goes_on_at_the_reset_and_at_its_undo(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    with consuming(kafka.bootstrap, topic) as received:
        until(lambda: len(received) == 30 and committed(cli, flags, topic) == {0: 10, 1: 20})
        refused = cli("offsets", "reset", "--group", topic, "--topic", topic, "--to-offset", "4", *flags, code=1)
        assert "STABLE with 1 member" in refused.stderr
        reset = ["offsets", "reset", "--group", topic, "--topic", f"{topic}:1", "--running", *flags]
        assert "dry run: would change 1 offset" in cli(*reset, "--to-offset", "4").stderr
        assert len(received) == 30
        done = cli(*reset, "--to-offset", "4", "--execute", "--yes")
        assert "the consumers keep running" in done.stderr
        assert f"group {topic}: 1 of 1 member back after " in done.stderr
        until(lambda: len(received) == 46)
        assert received[30:] == [(1, offset) for offset in range(4, 20)]
        (undo,) = [line.removeprefix("undo: ") for line in done.stderr.splitlines() if line.startswith("undo: ")]
        until(lambda: committed(cli, flags, topic) == {0: 10, 1: 20})
        again = cli(*reset, "--to-offset", "18", "--execute", "--yes")
        until(lambda: len(received) == 48)
        assert received[46:] == [(1, 18), (1, 19)]
        assert "done: 1 changed" in again.stderr
        # The before-image of the first reset is the offset at which the consumer was stopped, 20.
        assert "nothing to change" in cli(*shlex.split(undo)[1:], "--yes").stderr
        undo = next(line.removeprefix("undo: ") for line in again.stderr.splitlines() if line.startswith("undo: "))
        fill(kafka.bootstrap, topic, 0, 5)
        until(lambda: committed(cli, flags, topic) == {0: 10, 1: 25})
        assert "done: 1 changed" in cli(*shlex.split(undo)[1:], "--yes").stderr
        until(lambda: len(received) == 58)
        assert received[48:] == [*((1, n) for n in range(20, 25)), *((1, n) for n in range(20, 25))]


def test_a_poison_record_is_skipped_and_a_moving_group_is_not(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    here = ["--group", topic, "--topic", f"{topic}:1"]
    cli("offsets", "set", *here, "--new-group", "--to-offset", "7", "--execute", "--yes", *flags)
    skip = ["offsets", "reset", *here, "--skip", "2", "--running", *flags]
    with consuming(kafka.bootstrap, topic, **{"enable.auto.commit": False}) as received:
        until(lambda: (1, 19) in received)
        received.clear()
        done = cli(*skip, "--execute", "--yes")
        assert f"group {topic}: 1 of 1 member back after " in done.stderr
        until(lambda: (1, 19) in received)
        assert [offset for partition, offset in received if partition == 1] == list(range(9, 20))
    too_many = cli("offsets", "reset", *here, "--skip", "12", *flags, code=1)
    assert "11 records follow the committed offset 9" in too_many.stderr
    two = cli("offsets", "reset", "--group", topic, "--topic", topic, "--skip", "1", *flags, code=2)
    assert "needs exactly one group and one partition" in two.stderr
    both = cli(*skip, "--wait-empty", "5", code=2)
    assert "give one of them" in both.stderr


def test_a_running_group_goes_on_at_an_import_and_after_a_deletion(cli, kafka, topic, tmp_path) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    saved = str(tmp_path / "saved.avro")
    with consuming(kafka.bootstrap, topic) as received:
        until(lambda: len(received) == 30 and committed(cli, flags, topic) == {0: 10, 1: 20})
        cli("offsets", "export", saved, "--group", topic, *flags)
        fill(kafka.bootstrap, topic, 0, 5)
        until(lambda: committed(cli, flags, topic) == {0: 10, 1: 25})
        restore = ["offsets", "import", saved, "--group", topic, "--running", *flags]
        assert "if this is intended" in cli(*restore, code=1).stderr
        done = cli(*restore, "--allow-rewind", "--execute", "--yes")
        assert "1 of 1 member back after " in done.stderr
        until(lambda: len(received) == 40)
        assert received[35:] == [(1, offset) for offset in range(20, 25)]
        until(lambda: committed(cli, flags, topic) == {0: 10, 1: 25})
        delete = ["offsets", "delete", "--group", topic, "--topic", f"{topic}:0", "--running", *flags]
        assert "dry run: would change 1 offset" in cli(*delete).stderr
        done = cli(*delete, "--execute", "--yes")
        assert "done: 1 changed" in done.stderr
        # The watch sees a commit of the consumer. Its old position would explain offset 10, too, but no smaller offset.
        again = f"deleted offset committed again ({topic}-0 at 10)" in done.stderr
        assert again or f"began where auto.offset.reset says ({topic}-0 at " in done.stderr
        # auto.offset.reset is earliest
        until(lambda: len(received) == 50)
        assert received[40:] == [(0, offset) for offset in range(10)]
        (undo,) = [line.removeprefix("undo: ") for line in done.stderr.splitlines() if line.startswith("undo: ")]
        cli(*shlex.split(undo)[1:], "--yes")
        until(lambda: committed(cli, flags, topic) == {0: 10, 1: 25})
        assert len(received) == 50


def test_a_deletion_in_a_running_group_of_the_consumer_protocol_is_refused(cli, kraft, unique, make_topic) -> None:
    flags = ["--bootstrap-server", kraft.bootstrap]
    make_topic(unique, 2, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, unique, 0, 5)
    first = ["--group", unique, "--new-group", "--topic", f"{unique}:1", "--to-offset", "0", "--execute", "--yes"]
    cli("offsets", "set", *first, *flags)
    with consuming(kraft.bootstrap, unique, **CONSUMER_PROTOCOL) as received:
        until(lambda: committed(cli, flags, unique) == {1: 5})
        edit = ["--group", unique, "--topic", f"{unique}:1", "--running", "--execute", "--yes", *flags]
        refused = cli("offsets", "delete", *edit, code=1)
        assert "the coordinator deletes no offsets of topics to which a group of the consumer" in refused.stderr
        assert "members left" not in refused.stderr
        assert committed(cli, flags, unique) == {1: 5}
        done = cli("offsets", "reset", *edit, "--to-offset", "2")
        # The prompt names the pause for this group: the heartbeat interval of the broker is 1 s.
        assert f"group {unique}: all partitions pause for about 2 s, up to 6 s" in done.stderr
        until(lambda: len(received) == 8)
        assert received[5:] == [(1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize("protocol", [{}, CONSUMER_PROTOCOL], ids=["classic", "consumer"])
def test_a_deletion_in_a_topic_without_subscribers_disturbs_no_member(cli, kraft, unique, make_topic, protocol) -> None:
    flags = ["--bootstrap-server", kraft.bootstrap]
    other = make_topic(f"{unique}-other", 1, bootstrap=kraft.bootstrap)
    make_topic(unique, 2, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, unique, 0, 5)
    first = ["--group", unique, "--new-group", "--topic", f"{other}:0", "--to-offset", "0", "--execute", "--yes"]
    cli("offsets", "set", *first, *flags)
    with consuming(kraft.bootstrap, unique, **protocol) as received:
        until(lambda: len(received) == 5)
        members = cli.rows("groups", "describe", "--group", unique, "--members", *flags)
        edit = ["--group", unique, "--topic", other, "--running", *flags]
        assert "dry run: would change 1 offset" in cli("offsets", "delete", *edit).stderr
        done = cli("offsets", "delete", *edit, "--execute", "--yes")
        assert "done: 1 changed" in done.stderr
        assert "no member subscribes to the topics; the members kept running" in done.stderr
        assert "the consumers keep running, and their applications notice this" not in done.stderr
        assert cli.rows("groups", "describe", "--group", unique, "--members", *flags) == members
        assert other not in {row["topic"] for row in cli.rows("offsets", "get", unique, *flags)}
        (undo,) = [line.removeprefix("undo: ") for line in done.stderr.splitlines() if line.startswith("undo: ")]
        cli(*shlex.split(undo)[1:], "--yes")
        restored = cli.rows("offsets", "get", unique, "--topic", other, *flags)
        assert [row["offset"] for row in restored] == [0]


def start_and_stop_a_static_member(
    cli: Cli, kraft: KraftBroker, topic: str, received_by_others: Sequence[object] = ()
) -> None:
    """Starts a static member of the group ``topic``, and stops it after the group has consumed 5 records. The
    coordinator keeps the partition of a stopped static member for 45 s."""
    flags = ["--bootstrap-server", kraft.bootstrap]
    with consuming(kraft.bootstrap, topic, **CONSUMER_PROTOCOL, **{"group.instance.id": "stopped"}) as received:
        fill(kraft.bootstrap, topic, 0, 5)
        until(lambda: len(received) + len(received_by_others) == 5)
        until(lambda: committed(cli, flags, topic).get(1) == 5)


def reset_to_2(cli: Cli, kraft: KraftBroker, topic: str) -> str:
    """Resets partition 1 of the running group ``topic`` to offset 2. Returns the lines on stderr."""
    edit = ["--group", topic, "--topic", f"{topic}:1", "--to-offset", "2", "--running", "--execute", "--yes"]
    return cli("offsets", "reset", *edit, "--bootstrap-server", kraft.bootstrap).stderr


@pytest.mark.matrix
def test_static_members_of_the_consumer_protocol_go_on_while_one_is_stopped(cli, kraft, unique, make_topic) -> None:
    make_topic(unique, 2, bootstrap=kraft.bootstrap)
    with consuming(kraft.bootstrap, unique, **CONSUMER_PROTOCOL, **{"group.instance.id": "running"}) as received:
        start_and_stop_a_static_member(cli, kraft, unique, received)
        assert "1 of 1 member back after " in reset_to_2(cli, kraft, unique)
        until(lambda: received[-3:] == [(1, 2), (1, 3), (1, 4)])


@pytest.mark.matrix
def test_a_group_whose_static_members_are_all_stopped_is_edited_without_a_wait_for_them(cli, kraft, unique, make_topic):
    make_topic(unique, 2, bootstrap=kraft.bootstrap)
    start_and_stop_a_static_member(cli, kraft, unique)
    assert "0 of 0 members back" in reset_to_2(cli, kraft, unique)
    assert committed(cli, ["--bootstrap-server", kraft.bootstrap], unique)[1] == 2


def test_a_program_moves_a_running_group(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    steps: list[str] = []
    with (
        consuming(kafka.bootstrap, topic) as received,
        OffsetAdmin(f"kafka://{kafka.bootstrap}", running=RunningEdit(on_step=steps.append)) as admin,
    ):
        until(lambda: len(received) == 30 and [row.lag for row in next(iter(admin.lag(topic))).rows] == [0, 0])
        plan = admin.plan_set(topic, {TopicPartition(topic, 1): 4})
        assert not plan.problems
        report = plan.execute(tmp_path / "images.avro")
        assert (report.ok, report.written, report.not_atomic) == (True, 1, ())
        assert "1 of 1 member back" in report.evidence[topic]
        assert steps == [f"group {topic}: 1 member left; waiting up to 30 s for them"]
        until(lambda: len(received) == 46)
        assert received[30:] == [(1, offset) for offset in range(4, 20)]
        undone = admin.plan_undo(report.before_images[0], allow_rewind=True).execute(tmp_path / "undo.avro")
        assert undone.ok
        beyond = admin.plan_set(topic, {TopicPartition(topic, 1): 21})
        assert "outside the log" in str(beyond.problems[topic])


def test_an_edit_waits_until_the_group_is_empty(cli: Cli, kafka: KafkaBroker, topic: str) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    reset = ["offsets", "reset", "--group", topic, "--topic", topic, "--to-earliest", "--execute", "--yes", *flags]
    with consuming(kafka.bootstrap, topic) as received:
        until(lambda: len(received) == 30 and committed(cli, flags, topic) == {0: 10, 1: 20})
        refused = cli(*reset, "--wait-empty", "2", code=1)
        assert f"until group {topic} (1 member) has no members" in refused.stderr
        assert f"error: group {topic}: still has 1 member after 2 s" in refused.stderr
        waiting = threading.Thread(target=cli, args=(*reset, "--wait-empty", "60"))
        waiting.start()
    waiting.join()
    assert committed(cli, flags, topic) == {0: 0, 1: 0, 2: 0}


def test_what_cannot_be_exact_is_refused_by_name(cli, kafka, zookeeper, topic) -> None:
    flags = ["--bootstrap-server", kafka.bootstrap]
    edit = ["offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:1", "--running"]
    beyond = cli(*edit, "--to-offset", "21", *flags, code=1)
    assert "21 is outside the log (0 to 20), so auto.offset.reset would decide" in beyond.stderr
    old = cli(*edit, "--to-offset", "2", "--zookeeper", zookeeper.connect, code=1)
    assert "consumers that store offsets in ZooKeeper commit before they release a partition" in old.stderr
