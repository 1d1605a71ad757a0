"""`ApiResources`: describes, for each forwarded API, the fields of its requests and responses that contain names of
topics, groups and transactional ids. It also describes how a response rejects these names. Pure.

`API_RESOURCES` has an entry for every API that the relay forwards, with the highest version; the relay rejects an API
without an entry.

| API | names | needs |
|---|---|---|
| Produce | topics; a transactional id | produce on each |
| Fetch | topics, from version 13 on by id | consume; no client may fetch as a replica |
| ListOffsets, OffsetForLeaderEpoch | topics | describe |
| DescribeTopicPartitions | topics; empty for all; the response names topics | describe |
| AddPartitionsToTxn | a transactional id; topics | produce on each |
| InitProducerId | a transactional id, or none | produce on the id, otherwise on any topic |
| EndTxn | a transactional id | produce |
| CreateTopics, CreatePartitions, DeleteRecords, AlterPartitionReassignments, DescribeProducers | topics | a rule |
| DeleteTopics | topics, from version 6 on by name or id | a rule |
| DescribeConfigs, AlterConfigs, IncrementalAlterConfigs | resources: topics, groups, brokers, ... | a rule |
| AlterReplicaLogDirs | topics in directories | a rule |
| ElectLeaders | topics; null for all | a rule |
| DescribeLogDirs, ListPartitionReassignments | topics; null for all; the response names topics | a rule |
| DescribeTransactions | transactional ids | a rule |
| ListTransactions | the response names transactional ids | a rule |
| ListConfigResources | the response names topics and groups | a rule |
| DescribeClientQuotas, AlterClientQuotas, DescribeQuorum | none of these | a rule |
| GetTelemetrySubscriptions, PushTelemetry | none of these | nothing |

*A rule* is one with the API's name in ``apis`` (`ADMIN_APIS`). Metadata needs describe on its topics, and
FindCoordinator describe on its transactional ids: `metadata_rewrite` checks both.

Source: the JSON schemas of requests and responses, with the field names of kio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.server.security.authorization import Operation

TOPIC_RESOURCE: Final = 2
GROUP_RESOURCE: Final = 32

ErrorItem = Callable[[Any, int], Message]
"""Builds the item of the response that rejects an item of the request with an error code."""


class ApiResources(NamedTuple):
    """The highest version of an API that the relay forwards, and the fields of its requests and responses that name
    resources."""

    highest: int
    items: tuple[str, ...] = ()
    """The name of the request's array of items; several names if the name depends on the version."""
    name: str = "name"
    """The field that holds an item's name. If an item is a string, the string is the item's name."""
    kind: str = "topic"
    """The kind of the items: ``topic``, ``resource``, ``transaction`` or ``other``."""
    response_items: str = ""
    """The name of the response's array, which has one item for each item of the request."""
    error_item: ErrorItem | None = None
    """The value is None if the response has no field for the error of a single item. The relay then rejects the whole
    request."""
    all_or_nothing: bool = False
    """Whether a broker that rejects one item rejects the whole request. For such an API, the relay does the same."""
    empty_means_all: bool = False
    """Whether null or an empty array of items stands for all existing items."""
    operation: Operation = Operation.DESCRIBE
    """The operation on each topic that a client needs. `ADMIN_APIS` need a rule with the API instead."""
    transactional_id: str = ""
    """The field of the request that holds a transactional id; empty if there is none. The client needs
    `Operation.PRODUCE` on the id."""
    error_fields: Mapping[str, Any] = {}
    """The fields of a response that rejects the request, other than the error code and the array of items."""
    visible_items: tuple[tuple[str, ...], str] | None = None
    """The path to the array of the response that can contain items which the request did not name, and the kind of
    these items. None if the response has no array of this type."""


def _partition_items(
    response_items: str = "partitions",
    *,
    name: str = "name",
    parts: str = "partitions",
    index: str = "partition_index",
    answered: str = "",
    code: str = "error_code",
    **rest: Any,
) -> ErrorItem:
    """Returns a function that builds a response item from a request's item. The response item contains an error code
    for each partition in the array ``parts`` of the request's item. This array contains partition numbers, or messages
    whose field ``index`` is the partition number."""

    def error_response(item: Any, error: int) -> Message:
        numbers = [part if isinstance(part, int) else part[index] for part in item[parts]]
        return {
            name: item.get(name),
            "topic_id": item.get("topic_id"),
            response_items: [{answered or index: number, code: error, **rest} for number in numbers],
        }

    return error_response


def _simple_item(name: str, **rest: Any) -> ErrorItem:
    def error_response(item: Any, error: int) -> Message:
        named = {name: item} if isinstance(item, str) else {name: item.get(name), "topic_id": item.get("topic_id")}
        return {**named, "error_code": error, "error_message": None, **rest}

    return error_response


def _config_item(item: Any, error: int) -> Message:
    named = {field: item[field] for field in ("resource_type", "resource_name")}
    return {**named, "error_code": error, "error_message": None, "configs": []}


def _directory_item(item: Any, error: int) -> Message:
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
"""An array of directories, each with an array of topics. The relay checks the topics."""
_CONFIGS: Final = ApiResources(0, ("resources",), "resource_name", "resource", "responses", _config_item)


def _topics(
    highest: int, response_items: str = "topics", error_item: ErrorItem | None = None, **rest: Any
) -> ApiResources:
    """An API whose requests have an array of topics, with partitions unless ``error_item`` is given."""
    return ApiResources(
        highest, ("topics",), response_items=response_items, error_item=error_item or _partition_items(), **rest
    )


API_RESOURCES: Final[Mapping[int, ApiResources]] = {
    ApiKey.PRODUCE: ApiResources(
        9,
        ("topic_data",),
        response_items="responses",
        error_item=_partition_items(
            "partition_responses",
            parts="partition_data",
            index="index",
            base_offset=-1,
            log_append_time=-1,
            record_errors=[],
        ),
        operation=Operation.PRODUCE,
        transactional_id="transactional_id",
    ),
    ApiKey.FETCH: _topics(
        15,
        "responses",
        _partition_items(
            name="topic",
            index="partition",
            answered="partition_index",
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        ),
        name="topic",
        operation=Operation.CONSUME,
    ),
    ApiKey.LIST_OFFSETS: _topics(11),
    ApiKey.CREATE_TOPICS: _topics(7, error_item=_simple_item("name", configs=None)),
    ApiKey.DELETE_TOPICS: ApiResources(
        6, ("topics", "topic_names"), response_items="responses", error_item=_simple_item("name")
    ),
    ApiKey.DELETE_RECORDS: _topics(2, error_item=_partition_items(low_watermark=-1)),
    ApiKey.INIT_PRODUCER_ID: ApiResources(5, transactional_id="transactional_id", error_fields={"producer_epoch": -1}),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _topics(
        4, error_item=_partition_items(name="topic", index="partition"), name="topic"
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiResources(
        3,
        ("v3_and_below_topics",),
        response_items="results_by_topic_v3_and_below",
        error_item=_partition_items("results_by_partition", code="partition_error_code"),
        all_or_nothing=True,
        operation=Operation.PRODUCE,
        transactional_id="v3_and_below_transactional_id",
    ),
    ApiKey.END_TXN: ApiResources(4, transactional_id="transactional_id"),
    ApiKey.DESCRIBE_CONFIGS: _CONFIGS._replace(highest=4, response_items="results"),
    ApiKey.ALTER_CONFIGS: _CONFIGS._replace(highest=2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiResources(
        2, (_DIRECTORIES,), response_items="results", error_item=_directory_item, all_or_nothing=True
    ),
    ApiKey.DESCRIBE_LOG_DIRS: ApiResources(
        4,
        ("topics",),
        name="topic",
        empty_means_all=True,
        error_fields={"results": []},
        visible_items=(("results", "topics"), "topic"),
    ),
    ApiKey.CREATE_PARTITIONS: _topics(3, "results", _simple_item("name")),
    ApiKey.ELECT_LEADERS: ApiResources(
        2,
        ("topic_partitions",),
        name="topic",
        response_items="replica_election_results",
        error_item=_partition_items("partition_result", name="topic", index="partition_id", error_message=None),
        empty_means_all=True,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _CONFIGS._replace(highest=1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _topics(
        1, "responses", _partition_items(error_message=None), error_fields={"error_message": None}
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiResources(
        0,
        ("topics",),
        empty_means_all=True,
        error_fields={"error_message": None, "topics": []},
        visible_items=(("topics",), "topic"),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiResources(1, error_fields={"error_message": None, "entries": None}),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiResources(
        1,
        ("entries",),
        kind="other",
        response_items="entries",
        error_item=lambda item, error: {"entity": item["entity"], "error_code": error, "error_message": None},
    ),
    ApiKey.DESCRIBE_QUORUM: ApiResources(1, error_fields={"topics": []}),
    ApiKey.DESCRIBE_PRODUCERS: _topics(0, error_item=_partition_items(parts="partition_indexes", active_producers=[])),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiResources(
        0,
        ("transactional_ids",),
        kind="transaction",
        response_items="transaction_states",
        error_item=_simple_item("transactional_id", **_NO_TRANSACTION),
    ),
    ApiKey.LIST_TRANSACTIONS: ApiResources(
        2, error_fields={"transaction_states": []}, visible_items=(("transaction_states",), "transaction")
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ApiResources(0),
    ApiKey.PUSH_TELEMETRY: ApiResources(0),
    ApiKey.LIST_CONFIG_RESOURCES: ApiResources(
        1, error_fields={"config_resources": []}, visible_items=(("config_resources",), "resource")
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _topics(
        0,
        error_item=_simple_item("name", topic_id=None, partitions=[]),
        empty_means_all=True,
        visible_items=(("topics",), "topic"),
    ),
}


def requested_items(resources: ApiResources, message: Message) -> list[Any] | None:
    """Returns the items that a request names; None if the request stands for all items."""
    for field in resources.items:
        if field in message:
            found: list[Any] = message[field] or []
            if field == _DIRECTORIES:
                return [topic for directory in found for topic in directory["topics"]]
            return None if resources.empty_means_all and not found else found
    return None if resources.empty_means_all else []


def with_items(resources: ApiResources, message: Message, kept: list[Any]) -> Message:
    """Returns the request with only the items in ``kept``."""
    return {**message, **{field: kept for field in resources.items if field in message}}


def error_response(resources: ApiResources, message: Message, codes: list[int], code: int) -> Message:
    """Builds a response that rejects the whole request. ``codes`` contains the error code of each item of the request;
    items with code 0 get OPERATION_NOT_ATTEMPTED. ``code`` is the error code of a response without items."""
    items = requested_items(resources, message) or []
    if not items or resources.error_item is None:
        return {**resources.error_fields, "error_code": code, resources.response_items: []}
    response_items = [
        resources.error_item(item, each or ErrorCode.OPERATION_NOT_ATTEMPTED)
        for item, each in zip(items, codes, strict=True)
    ]
    return {**resources.error_fields, "error_code": ErrorCode.NONE, resources.response_items: response_items}


def hide_items(resources: ApiResources, answer: Message, hidden: Callable[[str, Any], bool]) -> Message:
    """Removes those items from the response for which ``hidden(kind, item)`` returns true."""
    assert resources.visible_items is not None
    (*outer, last), kind = resources.visible_items
    holders = [answer]
    for field in outer:
        holders = [item for holder in holders for item in holder[field]]
    for holder in holders:
        holder[last] = [item for item in holder[last] if not hidden(kind, item)]
    return answer
