"""Lists all groups of a cluster, and sends conditional commits to the coordinators of groups."""

from __future__ import annotations

import asyncio
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import (
    Conflict,
    CoordinatorNotAvailable,
    ErrorCode,
    OffsetMgrError,
    ServerError,
    UnsupportedOperation,
    value_of,
)
from offsetmgr.core.java_hash import java_hash
from offsetmgr.core.model import GroupDescription, GroupKind, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import CommitErrors, OtherGroupKind
from offsetmgr.kafka.client.client import Client, commit_outcomes, features, with_retries
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.fetch import partition_counts
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import checked, kafka_error
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.releases import DESCRIBES_MEMBERS, EVICTS_MEMBERS, LISTS_GROUPS, ApiKey
from offsetmgr.kafka.protocol.requests import (
    CONDITIONAL_FEATURE,
    CONFLICT,
    OFFSETS_TOPIC,
    conditional_commit,
    upper_state,
)
from offsetmgr.kafka.protocol.schema_codec import Message

# Lists all groups of a cluster. If the list may be incomplete, raises an error instead. A broker lists only the
# groups of those partitions of ``__consumer_offsets`` that it has loaded. While the coordinator of a partition moves,
# neither the old nor the new coordinator lists the groups of the partition, and neither reports an error (Kafka 3.9.1
# listed only 100 of 300 groups). Therefore the client accepts a list only if two conditions are true. First, every
# partition of ``__consumer_offsets`` has the same leader and leader epoch before and after the ListGroups requests.
# Second, each leader describes one group of each of its partitions without an error. This shows that the leader has
# loaded these partitions.

# Share groups and groups of the Streams protocol: kinds of groups on brokers from Kafka 4.0 on that offsetmgr does
# not edit. DescribeGroups reports such a group as dead, and ListGroups returns a share group as a group without
# offsets, so without `other_kinds` offsetmgr would report that the group does not exist.

_KINDS: Final = {
    "share": "is a share group, whose records are acknowledged one by one",
    "streams": "is a group of Kafka Streams' protocol, whose application keeps state",
}
"""The reason of the refusal for each type. The tool of a type has its name, as in kafka-share-groups.sh."""
_SETS: Final = ("offsets reset", "offsets set", "offsets import", "offsets import undo", "offsets import plan")
_ACTIONS: Final = {
    ("", "groups delete"): "--delete",
    ("share", "groups delete"): "--delete",
    ("share", "offsets delete"): "--delete-offsets --topic TOPIC",
    ("streams", "groups delete"): "--delete",
    ("streams", "offsets delete"): "--delete-offsets --input-topic TOPIC",
    **{
        ("streams", one): "--reset-offsets --input-topic TOPIC --to-offset N --execute (from Kafka 4.2 on)"
        for one in _SETS
    },
}
"""The action of Kafka's tool for each type and operation; the empty type is that of groups without consumers."""
_KNOWN_PROTOCOLS: Final = {
    "connect": "a Kafka Connect cluster; its connectors commit in groups named connect-NAME",
    "sr": "a Schema Registry cluster",
}


def no_consumers(protocol_type: str) -> str:
    """Returns the reason why a group of this protocol type is not edited."""
    named = _KNOWN_PROTOCOLS.get(protocol_type, "other applications")
    return f"its members are no consumers but {named} (protocol type {protocol_type!r})"


def refusal(group: str, type_: str, server: str, operation: str = "") -> OtherGroupKind:
    """Returns the error of an edit of a group of another kind. ``type_`` is a key of `_KINDS` or a protocol type, such
    as "connect". The error names the command that does ``operation``, or Kafka's command that shows the group."""
    kind = type_ if type_ in _KINDS else ""
    action, why = _ACTIONS.get((kind, operation)), _KINDS.get(type_, no_consumers(type_))
    does = "Kafka's own command shows it" if action is None else "use Kafka's own command"
    tool = f"kafka-{kind or 'consumer'}-groups.sh --bootstrap-server {server} --group {shlex.quote(group)}"
    text = f"{does}: {tool} {action or '--describe'}"
    if kind == "share" and operation in _SETS:
        reset = Invocation("offsets reset", (group,), {"all_topics": True, "to_offset": "N"})
        text = Advice("{} resets its start offset", reset)
    if type_ == "connect" and action is None:
        verb = "DELETE" if operation == "offsets delete" else "PATCH"
        text = f"use Kafka's REST API of Connect for the offsets of a connector: {verb} /connectors/NAME/offsets"
    error = OtherGroupKind(f"group {group!r}", Advice.joined((why, text)))
    error.group, error.type, error.server = group, type_, server
    return error


async def describe(
    client: Client, groups: Sequence[str], deadline: float, *, every_kind: bool = False
) -> dict[str, GroupDescription | OffsetMgrError]:
    """Describes groups like `Client.describe`. The result of a group of another kind, or of a group that commits no
    offsets, is `OtherGroupKind`, or with ``every_kind`` its description."""
    found = await client.describe(groups, deadline)
    described = [one for one in found.values() if isinstance(one, GroupDescription)]
    dead = [one.group for one in described if one.state == "DEAD"]
    found |= await other_kinds(client, dead, deadline)
    if not every_kind:
        others = (one for one in described if one.protocol_type not in _OFFSET_PROTOCOL_TYPES)
        return found | {one.group: refusal(one.group, one.protocol_type, one.coordinator) for one in others}
    if not any(isinstance(found[name], OtherGroupKind) for name in dead):
        return found
    from offsetmgr.kafka.client import share_groups

    for type_, describe_kind in {"share": share_groups.describe, "streams": _describe_streams}.items():
        names = [name for name in dead if isinstance(kind := found[name], OtherGroupKind) and kind.type == type_]
        if names:
            found |= await describe_kind(client, names, deadline)
    return found


async def _describe_streams(
    client: Client, groups: Sequence[str], deadline: float
) -> dict[str, GroupDescription | OffsetMgrError]:
    """Describes groups of the Streams protocol."""

    async def ask(address: Address, names: list[str]) -> dict[str, GroupDescription | OffsetMgrError]:
        request = requests.describe_kind(names, ApiKey.STREAMS_GROUP_DESCRIBE)
        found = (await client.call(address, request, deadline))["groups"]
        topics = {topic for one in found for topic in requests.sources_of(one)}
        counts = await partition_counts(client, topics, deadline)
        return {one["group_id"]: requests.parse_streams_group(one, str(address), counts) for one in found}

    return await client.per_group(groups, ask, deadline)


async def remove_static_members(
    client: Client, group: str, instance_ids: Iterable[str], deadline: float
) -> dict[str, OffsetMgrError | None]:
    """Removes members by their instance ids (KIP-345), and returns one outcome for each id. The outcome of an id that
    no member has is None. Raises `UnsupportedOperation`, or another error of the coordinator."""
    if not (leaving := [("", one) for one in instance_ids]):
        return {}

    async def ask(address: Address) -> dict[str, OffsetMgrError | None]:
        connection = await client.node(address).connection(deadline)
        if not EVICTS_MEMBERS.supported_by(connection.versions):
            raise EVICTS_MEMBERS.unsupported_error(str(address), connection.versions)
        answer = await connection.call(requests.evict(group, leaving), remaining(deadline))
        members = checked(answer, f"removal of the static members of group {group}")["members"]
        found = dict[str, OffsetMgrError | None]()
        for member in members:
            code, instance_id = member["error_code"], member["group_instance_id"]
            gone = code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
            found[instance_id] = None if gone else kafka_error(code, f"group {group}, static member {instance_id}")
        return found

    return await client.for_group(group, ask, deadline)


async def other_kinds(client: Client, groups: Iterable[str], deadline: float) -> dict[str, OffsetMgrError]:
    """Returns `OtherGroupKind` for each share group and each group of the Streams protocol in ``groups``, and the error
    of each group whose coordinator could not list its groups."""

    async def ask(address: Address, names: list[str]) -> dict[str, OffsetMgrError | None]:
        found: dict[str, OffsetMgrError | None] = dict.fromkeys(names)
        connection = await client.node(address).connection(deadline)
        if not connection.supports(ApiKey.LIST_GROUPS, requests.LISTS_TYPES):
            return found
        answer = await connection.call(requests.list_groups(tuple(_KINDS)), remaining(deadline))
        if answer["error_code"]:
            return dict.fromkeys(names, kafka_error(answer["error_code"], "kinds of groups"))
        for one in answer["groups"]:
            if (name := one["group_id"]) in found and (type_ := one["group_type"].lower()) in _KINDS:
                found[name] = error = refusal(name, type_, str(address))
                error.state = upper_state(one["group_state"])
        return found

    names = list(groups)
    outcomes = await client.per_group(names, ask, deadline) if names else {}
    return {group: outcome for group, outcome in outcomes.items() if outcome is not None}


_OFFSET_PROTOCOL_TYPES: Final = frozenset({"consumer", "streams", ""})
"""The protocol types of groups that commit offsets. Simple consumers have an empty type. The groups of Connect workers,
for example, commit no offsets."""
_NOT_ALLOWED: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED})
"""If the broker returns one of these codes, the client is not authorized for the check and skips the check."""


async def list_kinds(client: Client, deadline: float) -> dict[str, GroupKind]:
    """Returns the kinds of all groups, in any state.

    The type of a group is known if its broker reports it (ListGroups version 5), or if its broker supports no other
    types than classic groups.

    Brokers before Kafka 0.10.1 list only groups that have members. Brokers of Kafka 0.8.2 list no groups. If the
    cluster has a broker of such a release, the client also reads the groups in the offsets topic.

    Raises `OffsetMgrError` if a broker does not respond, or if coordinators move until the deadline.
    """

    async def attempt() -> dict[str, GroupKind]:
        _, brokers = await client.cluster(deadline)
        broker_versions = {
            at: known for at, known in (await client.broker_versions(brokers, deadline)).items() if known is not None
        }
        if client.offsets_topic is not None and not all(map(LISTS_GROUPS.supported_by, broker_versions.values())):
            active = [at for at, versions in broker_versions.items() if DESCRIBES_MEMBERS.supported_by(versions)]
            listed = await asyncio.gather(*(_list_of_broker(client, broker, deadline) for broker in active))
            found = dict(itertools.chain.from_iterable(listed))
            for name in await client.offsets_topic().groups(deadline):
                found[name] = found.get(name, GroupKind("classic"))._replace(commits=True)
            return dict(sorted(found.items()))
        before = await _layout(client, deadline)
        listed = await asyncio.gather(*(_list_of_broker(client, broker, deadline) for broker in before[0]))
        if before != await _layout(client, deadline):
            raise CoordinatorNotAvailable("list of groups", "coordinators moved during the request")
        return dict(itertools.chain.from_iterable(listed))

    return await with_retries(client, attempt, deadline)


async def _list_of_broker(client: Client, broker: Address, deadline: float) -> list[tuple[str, GroupKind]]:
    connection = await client.node(broker).connection(deadline)
    typed = connection.supports(ApiKey.LIST_GROUPS, requests.LISTS_TYPES)
    answer = await connection.call(requests.list_groups(() if typed else None), remaining(deadline))
    only = None if ApiKey.CONSUMER_GROUP_HEARTBEAT in connection.versions else "classic"
    found = []
    for group in checked(answer, f"groups of broker {broker}")["groups"]:
        reported, protocol = group.get("group_type", "").lower(), group["protocol_type"]
        kind = GroupKind(reported or only, protocol, protocol in _OFFSET_PROTOCOL_TYPES)
        found.append((group["group_id"], kind))
    return found


async def _layout(client: Client, deadline: float) -> tuple[list[Address], dict[int, tuple[Address, int]]]:
    """Returns the brokers, and the leader and leader epoch of each partition of the offsets topic, after a check that
    each leader has loaded its partitions. Raises `OffsetMgrError`."""

    async def ask(connection: BrokerConnection, until: float) -> Message:
        answer = await connection.call(requests.metadata([OFFSETS_TOPIC]), remaining(until))
        if not answer["brokers"]:
            raise CoordinatorNotAvailable("list of groups", f"broker {connection.address} knows no brokers yet")
        return answer

    answer = await client.ask_any(ask, deadline)
    brokers = requests.broker_addresses(answer)
    leaders = _leaders(answer["topics"], brokers)
    led = by_key((leader, partition) for partition, (leader, _) in leaders.items())
    probes = probe_groups(len(leaders))
    await asyncio.gather(
        *(_probe(client, leader, [probes[p] for p in partitions], deadline) for leader, partitions in led.items())
    )
    return list(brokers.values()), leaders


def _leaders(topics: Sequence[Message], brokers: dict[int, Address]) -> dict[int, tuple[Address, int]]:
    """Returns the leader and leader epoch of each partition of the offsets topic. The result is empty if the topic does
    not exist or is not visible to this client."""
    leaders: dict[int, tuple[Address, int]] = {}
    for topic in topics:
        code = topic["error_code"]
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or code in _NOT_ALLOWED:
            continue
        if code:
            raise kafka_error(code, OFFSETS_TOPIC)
        for part in topic["partitions"]:
            leader = brokers.get(part["leader_id"])
            if leader is None:
                raise CoordinatorNotAvailable(
                    "list of groups",
                    f"{OFFSETS_TOPIC}-{part['partition_index']} has no leader, so its groups cannot be listed",
                    "check that all brokers are up",
                )
            leaders[part["partition_index"]] = (leader, part.get("leader_epoch", -1))
    return leaders


async def _probe(client: Client, leader: Address, groups: list[str], deadline: float) -> None:
    """Raises an error unless ``leader`` is the coordinator of all ``groups`` and has loaded their partitions of the
    offsets topic. The error is retriable if the coordinator is moving or loading."""
    answer = await client.call(leader, requests.describe_groups(groups), deadline)
    for group in answer["groups"]:
        checked(group, "list of groups", {ErrorCode.NONE, *_NOT_ALLOWED})


@lru_cache(maxsize=4)
def probe_groups(partitions: int) -> list[str]:
    """Returns one group id for each partition of an offsets topic with this number of partitions.

    The function uses only ids whose hash is not negative, because Kafka's ``Utils.abs`` treats negative hashes
    differently in different releases.
    """
    found: dict[int, str] = {}
    for number in itertools.count():
        if len(found) == partitions:
            return [found[partition] for partition in range(partitions)]
        name = f"offsetmgr-probe-{number}"
        hashed = java_hash(name)
        if hashed >= 0:
            found.setdefault(hashed % partitions, name)
    raise AssertionError("counting has no end")


# Lists all groups of a cluster of offset managers. If the list may be incomplete, raises an error instead. Each
# manager lists the groups of the shards that it owns, and returns an error if one of these shards is not loaded.
# While a shard group moves from one manager to another, neither of the two managers lists the groups in it. Therefore
# the client accepts a list only if two conditions are true. First, every shard group has the same owner before and
# after the ListGroups requests. Second, before and after these requests, the owner returns no error for a fetch of a
# group that belongs to the shard group. The client fetches 200 groups with fixed names, whose hashes are distributed
# over the shard groups. There are at most 8 shard groups (`offsetmgr.manager.log.base`), so the probability that a
# shard group contains none of these names is below 1 in 10 to the power of 10.

PROBES: Final = tuple(f"offsetmgr-probe-{number}" for number in range(200))


async def list_manager_groups(client: Client, deadline: float) -> list[str]:
    """Returns the ids of all groups with offsets. Raises `OffsetMgrError` if a manager does not respond, or if shard
    groups move until the deadline."""

    async def attempt() -> list[str]:
        before = await _owners(client, deadline)
        probes = [(at, [p for p, owner in before.items() if owner == at]) for at in dict.fromkeys(before.values())]
        await asyncio.gather(*(_check_ownership(client, at, groups, deadline) for at, groups in probes))
        answers = await asyncio.gather(*(client.call(at, requests.list_groups(), deadline) for at, _ in probes))
        listed = [checked(one, f"groups of the manager {at}") for (at, _), one in zip(probes, answers, strict=True)]
        await asyncio.gather(*(_check_ownership(client, at, groups, deadline) for at, groups in probes))
        if before != await _owners(client, deadline):
            raise CoordinatorNotAvailable("list of groups", "shard groups moved during the request")
        return list(dict.fromkeys(group["group_id"] for answer in listed for group in answer["groups"]))

    return await with_retries(client, attempt, deadline)


async def _owners(client: Client, deadline: float) -> Mapping[str, Address]:
    """Returns the owner of the shard group of each name in `PROBES`."""
    return {probe: value_of(owner) for probe, owner in (await client.find_coordinators(PROBES, deadline)).items()}


async def _check_ownership(client: Client, manager: Address, probes: Sequence[str], deadline: float) -> None:
    """Raises an error unless the manager owns the shard groups of these group names."""
    request = requests.offset_fetch(dict.fromkeys(probes, ()))
    for group in (await client.call(manager, request, deadline))["groups"]:
        checked(group, "list of groups")


# Sends a conditional commit (`offsetmgr.kafka.protocol.requests`) to a coordinator that has announced
# support.


async def commit_if(
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | None],
    expected: Mapping[TopicPartition, int],
    deadline: float,
) -> tuple[CommitErrors, bool]:
    """Commits ``offsets``; the value None deletes the offset of a partition. The commit of a partition takes effect
    only if the committed offset of the partition equals the offset in ``expected``. Returns the outcome of each
    partition, and whether the client sent the commit more than once. In this case a `Conflict` may be the result of an
    earlier attempt that succeeded without a response.

    Retries retriable errors until the deadline. The outcome of a partition whose condition is false is `Conflict`.
    Raises `UnsupportedOperation`, without sending the commit, if the coordinator does not announce conditional commits.
    Raises `NotAMember` if the group has members. Also raises any other error of the coordinator for the whole group.
    """
    request = conditional_commit(group, offsets, expected)
    attempts = 0

    async def ask(address: Address) -> CommitErrors:
        nonlocal attempts
        async with client.node(address).dedicated_connection(deadline) as dedicated:
            if CONDITIONAL_FEATURE not in await features(dedicated.connection, remaining(deadline)):
                raise UnsupportedOperation(f"coordinator {address}", "it announces no conditional commits")
            attempts += 1
            answer = await dedicated.connection.call(request, remaining(deadline))
        return _outcomes(group, answer)

    return await client.for_group(group, ask, deadline), attempts > 1


def _outcomes(group: str, answer: Message) -> CommitErrors:
    """Returns the outcome of each partition. Raises the error of the whole commit.

    A retriable code in any partition makes the whole commit retriable. A retry is safe: if the first attempt has
    succeeded, the condition of the second attempt is false, so the second attempt changes nothing.
    """
    outcomes, why = value_of(commit_outcomes(group, answer)), "its committed offset is not the expected one"
    for tp, error in outcomes.items():
        if isinstance(error, ServerError) and error.kafka_code == CONFLICT:
            outcomes[tp] = Conflict(f"group {group}, {tp}", why)
    return outcomes
