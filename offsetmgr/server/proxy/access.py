"""The topics, groups and transactional ids that each forwarded API names, and its error responses for them; pure.

Every API of `forwarding.FORWARDED` has an entry in `ACCESS`; the relay refuses an API without one.

| API | names |
|---|---|
| Produce | topics; a transactional id |
| Fetch | topics, from version 13 on by id |
| ListOffsets, OffsetForLeaderEpoch | topics |
| CreateTopics, CreatePartitions, DeleteRecords, AlterPartitionReassignments, DescribeProducers | topics |
| DeleteTopics | topics, from version 6 on by name or id |
| DescribeConfigs, AlterConfigs, IncrementalAlterConfigs | resources: topics, groups, brokers, ... |
| AlterReplicaLogDirs | topics in directories |
| ElectLeaders | topics; null for all |
| DescribeLogDirs, ListPartitionReassignments | topics; null for all; the answer names topics |
| DescribeTopicPartitions | topics; none for all; the answer names topics |
| AddPartitionsToTxn | a transactional id; topics |
| InitProducerId, EndTxn | a transactional id |
| DescribeTransactions | transactional ids |
| ListTransactions | the answer names transactional ids |
| ListConfigResources | the answer names topics and groups |
| DescribeClientQuotas, AlterClientQuotas, DescribeQuorum | none of these |
| GetTelemetrySubscriptions, PushTelemetry | none of these |

Source: the JSON schemas of requests and responses, by the field names of kio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.protocol.schema_codec import Message

TOPIC_RESOURCE: Final = 2
GROUP_RESOURCE: Final = 32

Refusal = Callable[[Any, int], Message]
"""Builds the response's item for an item of the request, with an error code."""


class Access(NamedTuple):
    """One API. See the module's docstring."""

    items: tuple[str, ...] = ()
    """The request's array of named items; further names are those of other versions."""
    name: str = "name"
    """The field with an item's name; items that are strings are their own names."""
    kind: str = "topic"
    """The kind of the items: ``topic``, ``resource``, ``transaction`` or ``other``."""
    answers: str = ""
    """The response's array with an item for each of the request's."""
    refused: Refusal | None = None
    """If it is None, the response has no place for a rejected item, so the whole request is rejected."""
    together: bool = False
    """Whether one rejected item rejects the whole request, as at a broker."""
    every: bool = False
    """Whether no items (null or an empty array) mean all that exist."""
    transactional_id: str = ""
    """The field of the request that holds a transactional id."""
    whole: Mapping[str, Any] = {}
    """The other fields of a response that the relay creates itself, except its error code."""
    shown: tuple[tuple[str, ...], str] | None = None
    """The array in which the response names items that the request did not name: the path to the array, and the kind of
    its items."""


def _partitions(
    name: str, parts: str, index: str, answers: str, answered: str = "", code: str = "error_code", **rest: Any
) -> Refusal:
    """An item with a code for each partition in the request's array ``parts`` (numbers, or messages with ``index``)."""

    def refusal(item: Any, error: int) -> Message:
        numbers = [part if isinstance(part, int) else part[index] for part in item[parts]]
        return {
            name: item.get(name),
            "topic_id": item.get("topic_id"),
            answers: [{answered or index: number, code: error, **rest} for number in numbers],
        }

    return refusal


def _single(name: str, **rest: Any) -> Refusal:
    def refusal(item: Any, error: int) -> Message:
        named = {name: item} if isinstance(item, str) else {name: item.get(name), "topic_id": item.get("topic_id")}
        return {**named, "error_code": error, "error_message": None, **rest}

    return refusal


def _resource(item: Any, error: int) -> Message:
    named = {field: item[field] for field in ("resource_type", "resource_name")}
    return {**named, "error_code": error, "error_message": None, "configs": []}


def _in_directories(item: Any, error: int) -> Message:
    return {
        "topic_name": item["name"],
        "partitions": [{"partition_index": number, "error_code": error} for number in item["partitions"]],
    }


_NO_TRANSACTION: Final = {
    "transaction_state": "",
    "transaction_timeout": 0,
    "transaction_start_time": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "topics": [],
}
_DIRECTORIES: Final = "dirs"
"""An array whose items hold topics, which are checked instead."""
_ALTERED: Final = Access(("resources",), "resource_name", "resource", "responses", _resource)

ACCESS: Final[Mapping[int, Access]] = {
    0: Access(
        ("topic_data",),
        answers="responses",
        refused=_partitions(
            "name",
            "partition_data",
            "index",
            "partition_responses",
            base_offset=-1,
            log_append_time=-1,
            record_errors=[],
        ),
        transactional_id="transactional_id",
    ),
    1: Access(
        ("topics",),
        name="topic",
        answers="responses",
        refused=_partitions(
            "topic",
            "partitions",
            "partition",
            "partitions",
            "partition_index",
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        ),
        whole={"session_id": 0},
    ),
    2: Access(
        ("topics",), answers="topics", refused=_partitions("name", "partitions", "partition_index", "partitions")
    ),
    19: Access(("topics",), answers="topics", refused=_single("name", topic_config_error_code=0, configs=None)),
    20: Access(("topics", "topic_names"), answers="responses", refused=_single("name")),
    21: Access(
        ("topics",),
        answers="topics",
        refused=_partitions("name", "partitions", "partition_index", "partitions", low_watermark=-1),
    ),
    22: Access(transactional_id="transactional_id", whole={"producer_id": -1, "producer_epoch": -1}),
    23: Access(
        ("topics",),
        name="topic",
        answers="topics",
        refused=_partitions("topic", "partitions", "partition", "partitions"),
    ),
    24: Access(
        ("v3_and_below_topics",),
        answers="results_by_topic_v3_and_below",
        refused=_partitions(
            "name", "partitions", "", "results_by_partition", "partition_index", "partition_error_code"
        ),
        together=True,
        transactional_id="v3_and_below_transactional_id",
    ),
    26: Access(transactional_id="transactional_id"),
    32: _ALTERED._replace(answers="results"),
    33: _ALTERED,
    34: Access((_DIRECTORIES,), answers="results", refused=_in_directories, together=True),
    35: Access(("topics",), name="topic", every=True, whole={"results": []}, shown=(("results", "topics"), "topic")),
    37: Access(("topics",), answers="results", refused=_single("name")),
    43: Access(
        ("topic_partitions",),
        name="topic",
        answers="replica_election_results",
        refused=_partitions("topic", "partitions", "", "partition_result", "partition_id", error_message=None),
        every=True,
        whole={"replica_election_results": []},
    ),
    44: _ALTERED,
    45: Access(
        ("topics",),
        answers="responses",
        refused=_partitions("name", "partitions", "partition_index", "partitions", error_message=None),
        whole={"error_message": None},
    ),
    46: Access(("topics",), every=True, whole={"error_message": None, "topics": []}, shown=(("topics",), "topic")),
    48: Access(whole={"error_message": None, "entries": None}),
    49: Access(
        ("entries",),
        kind="other",
        answers="entries",
        refused=lambda item, error: {"entity": item["entity"], "error_code": error, "error_message": None},
    ),
    55: Access(whole={"topics": []}),
    61: Access(
        ("topics",),
        answers="topics",
        refused=_partitions("name", "partition_indexes", "", "partitions", "partition_index", active_producers=[]),
    ),
    65: Access(
        ("transactional_ids",),
        kind="transaction",
        answers="transaction_states",
        refused=_single("transactional_id", **_NO_TRANSACTION),
    ),
    66: Access(
        whole={"unknown_state_filters": [], "transaction_states": []},
        shown=(("transaction_states",), "transaction"),
    ),
    71: Access(),
    72: Access(),
    74: Access(whole={"config_resources": []}, shown=(("config_resources",), "resource")),
    75: Access(
        ("topics",),
        answers="topics",
        refused=_single("name", topic_id=None, partitions=[]),
        every=True,
        shown=(("topics",), "topic"),
    ),
}


def listed(access: Access, message: Message) -> list[Any] | None:
    """The items that a request names; None if it names none and means all."""
    for field in access.items:
        if field in message:
            found: list[Any] = message[field] or []
            if field == _DIRECTORIES:
                return [topic for directory in found for topic in directory["topics"]]
            return None if access.every and not found else found
    return None if access.every else []


def without(access: Access, message: Message, kept: list[Any]) -> Message:
    """Returns the request with only the items in ``kept``."""
    return {**message, **{field: kept for field in access.items if field in message}}


def refusal(access: Access, message: Message, codes: list[int], code: int) -> Message:
    """A response of the relay that rejects the whole request. ``codes``: one for each of its items; items without an
    error get OPERATION_NOT_ATTEMPTED. ``code`` applies if the response has no items."""
    items = listed(access, message) or []
    if not items or access.refused is None:
        return {**access.whole, "error_code": code, access.answers: []}
    answers = [
        access.refused(item, each or ErrorCode.OPERATION_NOT_ATTEMPTED) for item, each in zip(items, codes, strict=True)
    ]
    return {**access.whole, "error_code": 0, access.answers: answers}


def shown_without(access: Access, answer: Message, hidden: Callable[[str, Any], bool]) -> Message:
    """Returns the response without the items for which ``hidden`` (called with the kind and the item) is true."""
    assert access.shown is not None
    (*outer, last), kind = access.shown
    holders = [answer]
    for field in outer:
        holders = [item for holder in holders for item in holder[field]]
    for holder in holders:
        holder[last] = [item for item in holder[last] if not hidden(kind, item)]
    return answer
