"""Bulk requests have bounded responses and bounded work: names given twice, the size of one response, the end of the
work when the client leaves, and the work of one connection in one turn of the event loop."""

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import pytest
from async_tests import async_test
from memory_listener import (
    API_VERSIONS,
    BUDGET,
    MemoryBackend,
    MemoryListener,
    WireClient,
    commit_message,
    limits,
    longest_callback,
    wait_until,
)

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.requests import FetchedGroup

COMMIT, FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, DELETE_GROUPS = 8, 9, 10, 15, 42
INVALID_REQUEST = 42
Rows = dict[int, tuple[int, int, str]]


def rows(partitions: int, metadata: str = "") -> dict[str, Rows]:
    """A group's offsets in one topic."""
    return {"t": {p: (p, 1, metadata) for p in range(partitions)}}


def of_group(group: str, topics: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}


def fetch(*groups: dict[str, Any]) -> dict[str, Any]:
    return {**groups[0], "groups": list(groups), "require_stable": False}


def found(answer: dict[str, Any]) -> list[tuple[int, int]]:
    """The error and the number of partitions of each group."""
    return [(g["error_code"], sum(len(t["partitions"]) for t in g["topics"])) for g in answer["groups"]]


# --- names given twice --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [8, 9])
def test_a_fetch_answers_each_group_once(listening: MemoryListener, version: int) -> None:
    """The request has 20 KB. A broker would answer it with 500 MB."""
    listening.backend.offsets["g"] = rows(5_000)
    with WireClient(listening.port) as client:
        answer = client.ask(FETCH, version, fetch(*[of_group("g")] * 5_000, of_group("other")))
    assert found(answer) == [(0, 5_000), *[(INVALID_REQUEST, 0)] * 4_999, (0, 0)]


@pytest.mark.parametrize("version", [1, 7, 8])
def test_a_fetch_answers_each_topic_and_partition_once(listening: MemoryListener, version: int) -> None:
    listening.backend.offsets["g"] = rows(2, "x" * 4_000)
    topics = [{"name": "t", "partition_indexes": [1, 0, 1] * 1_000}, {"name": "u", "partition_indexes": [3]}] * 2
    with WireClient(listening.port) as client:
        answer = client.ask(FETCH, version, fetch(of_group("g", topics)))
    (group,) = answer["groups"] if version == 8 else [answer]
    assert [(t["name"], [p["partition_index"] for p in t["partitions"]]) for t in group["topics"]] == [
        ("t", [1, 0]),
        ("u", [3]),
    ]


def test_each_coordinator_and_each_description_is_returned_once(listening: MemoryListener) -> None:
    listening.backend.offsets["g"] = rows(1)
    with WireClient(listening.port) as client:
        names = ["g", "h", "g"] * 5_000
        answer = client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": names})
        assert [one["key"] for one in answer["coordinators"]] == ["g", "h"]
        answer = client.ask(DESCRIBE_GROUPS, 5, {"groups": names})
        assert [(one["group_id"], one["group_state"]) for one in answer["groups"]] == [("g", "Empty"), ("h", "Dead")]


def test_topics_without_partitions_count_as_partitions(listening: MemoryListener) -> None:
    empty = [{"name": f"t{number}", "partition_indexes": []} for number in range(15_001)]
    with WireClient(listening.port) as client:
        for topics, error in ((empty[1:], 0), (empty, INVALID_REQUEST)):
            assert found(client.ask(FETCH, 8, fetch(of_group("g", topics)))) == [(error, 0)]


# --- the size of a response ---------------------------------------------------------------------------


def test_groups_beyond_the_largest_response_are_rejected() -> None:
    with MemoryListener(limits=limits(max_answer_bytes=100_000)) as small, WireClient(small.port) as client:
        small.backend.offsets |= {name: rows(2_000) for name in "abcd"}
        answer = client.ask(FETCH, 8, fetch(*map(of_group, "abcd")))
        assert found(answer) == [(0, 2_000), (0, 2_000), (0, 2_000), (INVALID_REQUEST, 0)]


@async_test
async def test_our_own_client_reads_groups_that_do_not_fit_into_one_response() -> None:
    with MemoryListener(limits=limits(max_answer_bytes=100_000)) as small:
        small.backend.offsets |= {f"g{number}": rows(1_000) for number in range(60)}
        small.backend.errors["moved"] = INVALID_REQUEST  # for a reason that no smaller request removes
        client = Client(f"127.0.0.1:{small.port}", Security())
        try:
            groups = [*small.backend.offsets, "moved"]
            answer = await client.fetch(dict.fromkeys(groups), asyncio.get_running_loop().time() + 60)
        finally:
            await client.close()
    read = {group: len(one.offsets) for group, one in answer.items() if isinstance(one, FetchedGroup)}
    assert read == {f"g{number}": 1_000 for number in range(60)}
    assert list(answer.keys() - read.keys()) == ["moved"]


@pytest.mark.slow
def test_twenty_thousand_groups_of_fifty_partitions_are_read_at_once(listening: MemoryListener) -> None:
    names = [f"group-{number}" for number in range(20_000)]
    listening.backend.offsets |= dict.fromkeys(names, rows(50))
    with WireClient(listening.port) as client:
        assert found(client.ask(FETCH, 8, fetch(*map(of_group, names)))) == [(0, 50)] * 20_000


@pytest.mark.slow
def test_the_work_for_a_fetch_grows_with_the_number_of_its_groups() -> None:
    with MemoryListener() as listening, WireClient(listening.port) as client:

        def processor_s(groups: int) -> float:
            message = fetch(*(of_group(f"g{number}") for number in range(groups)))
            before = time.clock_gettime(clock)
            client.send(FETCH, 8, message)
            client.receive()
            return time.clock_gettime(clock) - before

        clock = time.pthread_getcpuclockid(listening._thread.ident)  # type: ignore[arg-type]
        assert processor_s(160_000) <= 12 * min(processor_s(20_000) for _ in range(3))


# --- work of a client ---------------------------------------------------------------------------------


class Counting(MemoryBackend):
    """Counts the groups that were fetched or deleted."""

    fetched = 0

    def fetch(self, request: Any) -> Any:
        self.fetched += 1
        return super().fetch(request)

    async def delete_group(self, group: str) -> int:
        self.fetched += 1
        return await super().delete_group(group)


@pytest.mark.parametrize(("api_key", "version"), [(FETCH, 8), (DESCRIBE_GROUPS, 5), (DELETE_GROUPS, 2)])
def test_a_request_ends_when_its_client_has_left(api_key: int, version: int) -> None:
    names = [f"g{number}" for number in range(20_000)]
    backend = Counting()
    backend.offsets = dict.fromkeys(names, rows(500))
    message = fetch(*map(of_group, names)) if api_key == FETCH else {"groups": names, "groups_names": names}
    with MemoryListener(backend) as listening:
        with WireClient(listening.port) as client:
            client.send(api_key, version, message)
            assert wait_until(lambda: backend.fetched > 0)
        assert wait_until(lambda: not listening.service.connections)
        fetched = backend.fetched
        with WireClient(listening.port) as other:
            for _ in range(500):  # enough turns of the event loop for all groups
                other.ask(API_VERSIONS, 0, {})
        assert backend.fetched - fetched < 1_000


@pytest.mark.parametrize("rules", [False, True])
def test_no_connection_has_hundreds_of_fetches_run_in_one_turn(rules: bool, tmp_path: Any) -> None:
    """500 fetches wait for a commit. When it ends, other clients are served between them."""
    files = {}
    if rules:
        files["rules"] = tmp_path / "rules.toml"
        files["rules"].write_text('[[rule]]\nprincipals = ["*"]\ngroups = ["*"]\ntopics = ["*"]\noperations = ["all"]')
    with MemoryListener(**files) as listening:
        listening.backend.offsets["g"] = rows(1_500)

        def send() -> None:
            release = listening.block_commits()
            with WireClient(listening.port) as client:
                client.send(COMMIT, 7, commit_message("h", {("t", 0): 5}))
                for _ in range(499):
                    client.send(FETCH, 8, fetch(of_group("g")))
                assert wait_until(lambda: [len(c._pipeline) for c in listening.service.connections] == [500])
                release()
                client.receive()
                assert len({len(client.receive()) for _ in range(499)}) == 1

        assert longest_callback(send, whole_turns=True) <= BUDGET


def test_all_connections_together_run_no_longer_in_one_turn_than_one_connection(listening: MemoryListener) -> None:
    """The requests of 100 connections wait for a commit of their connection. All commits end in the same turn."""
    listening.backend.offsets["g"] = rows(500)

    def send() -> None:
        release = listening.block_commits()
        with ExitStack() as stack:
            clients = [stack.enter_context(WireClient(listening.port)) for _ in range(100)]
            for client in clients:
                client.send(COMMIT, 7, commit_message("h", {("t", 0): 5}))
                for _ in range(10):
                    client.send(FETCH, 7, fetch(of_group("g")))
            assert wait_until(lambda: [len(c._pipeline) for c in listening.service.connections] == [11] * 100)
            release()
            assert {len({client.receive() for _ in range(11)}) for client in clients} == {11}

    assert longest_callback(send, whole_turns=True) <= 3 * BUDGET
