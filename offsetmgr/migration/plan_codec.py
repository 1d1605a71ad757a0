"""Encodes and decodes the lines of a plan file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from offsetmgr.core.ahead_policy import AheadPolicy
from offsetmgr.core.batches import by_key
from offsetmgr.core.clock_difference import ClockDifference
from offsetmgr.core.log_origin import OffsetTranslation, OriginComparison, Relation
from offsetmgr.core.model import BrokerPartition, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Guard
from offsetmgr.core.phase import Confidence
from offsetmgr.migration.partition_map import MapOrigin
from offsetmgr.migration.plan import (
    Action,
    GroupPlan,
    PlanHeader,
    PlanOptions,
    PlanSource,
    PlanStep,
    StoreEndpoint,
)

_OPTIONAL = ("guard_note", "old_members", "members", "state", "error", "note", "wave", "owner")
"""The fields of `GroupPlan` that a plan file contains only if they are not empty."""
_ACTIONS = {action.value: action for action in Action}


def encode_offset(value: OffsetAndMetadata) -> str:
    """Encodes a commit as a number if it has only an offset, and otherwise as an object."""
    offset, metadata, leader_epoch, commit_timestamp = value
    if not metadata and leader_epoch is None and commit_timestamp is None:
        return str(offset)
    encoded = {name: field for name, field in value._asdict().items() if field not in (None, "")}
    return json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))


def decode_offset(value: Any) -> OffsetAndMetadata:
    if value.__class__ is int:
        return tuple.__new__(OffsetAndMetadata, (value, "", None, None))
    return OffsetAndMetadata(
        value["offset"], value.get("metadata", ""), value.get("leader_epoch"), value.get("commit_timestamp")
    )


def encode_step(step: PlanStep, *, whole: bool = True) -> str:
    """Encodes one step as JSON. If ``whole`` is False, the JSON contains only the values that a journal needs: the
    before-image and the value to write.

    The function builds the JSON text itself, because `json.dumps` takes three times as long, and a plan consists mostly
    of steps.
    """
    tp, action, source, target, after, note, origin, proven = step
    text = f'{{"p":{tp[1] if tp[1] >= 0 else json.dumps(str(tp[1]))},"action":"{action}"'
    if whole and source is not None:
        text += f',"source":{encode_offset(source)}'
    if target is not None:
        text += f',"target":{encode_offset(target)}'
    if after is not None:
        text += f',"after":{encode_offset(after)}'
    if whole and origin is not None:
        text += f',"origin":{_encode_origin(origin)}'
    if whole and proven:
        text += ',"proven":true'
    return text + (f',"note":{json.dumps(note, ensure_ascii=False)}}}' if whole and note else "}")


def _encode_origin(origin: PlanSource) -> str:
    encoded = {
        "partition": BrokerPartition.to_json(origin.partition),
        "how": origin.how,
        "evidence": origin.evidence,
    }
    return json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))


def decode_step(topic: str, encoded: Mapping[str, Any]) -> PlanStep:
    get, new = encoded.get, tuple.__new__  # skips the argument handling of named tuples
    source, target, after, note = get("source"), get("target"), get("after"), get("note", "")
    source_offset = None if source is None else decode_offset(source)
    target_offset = None if target is None else decode_offset(target)
    # Most steps write the source's value. To save time and memory, such a step uses one object for the source's offset
    # and the written offset.
    expected = source_offset if after == source else None if after is None else decode_offset(after)
    p = encoded["p"]
    tp = new(TopicPartition, (topic, p if p.__class__ is int else BrokerPartition.from_json(p)))
    origin = None
    if (found := get("origin")) is not None:
        origin = PlanSource(BrokerPartition.from_json(found["partition"]), found["how"], Confidence(found["evidence"]))
    action, proven = _ACTIONS[encoded["action"]], get("proven", False)
    return new(PlanStep, (tp, action, source_offset, target_offset, expected, note, origin, proven))


def encode_group(plan: GroupPlan) -> bytes:
    encoded: dict[str, Any] = {"group": plan.group, "target_group": plan.target_group, "guard": plan.guard.value}
    encoded |= {name: value for name in _OPTIONAL if (value := getattr(plan, name))}
    head = json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))
    return f'{head[:-1]},"topics":{encode_steps(plan.steps)}}}'.encode()


def encode_steps(steps: Iterable[PlanStep], *, whole: bool = True) -> str:
    """Encodes steps as a JSON object that maps each topic to a list of its steps."""
    topics = by_key((step.tp.topic, encode_step(step, whole=whole)) for step in steps)
    members = (f"{json.dumps(topic, ensure_ascii=False)}:[{','.join(parts)}]" for topic, parts in topics.items())
    return "{" + ",".join(members) + "}"


def decode_group(line: bytes) -> GroupPlan:
    encoded = json.loads(line)
    steps = tuple(decode_step(topic, step) for topic, steps in encoded["topics"].items() for step in steps)
    found = ((name, encoded[name]) for name in _OPTIONAL if name in encoded)
    optional: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found}
    return GroupPlan(encoded["group"], encoded["target_group"], steps, Guard(encoded["guard"]), **optional)


def encode_header(header: PlanHeader) -> dict[str, Any]:
    options, used_map = header.options, header.partition_map
    optional = {
        "weaknesses": list(header.weaknesses),
        "clock": None if header.clock is None else header.clock._asdict(),
        "partition_map": None if used_map is None else asdict(used_map),
    }
    return {
        "plan_id": header.plan_id,
        "created_at": header.created_at,
        "source": asdict(header.source),
        "target": asdict(header.target),
        "options": {
            "if_ahead": (options.if_ahead or AheadPolicy.REFUSE).value,
            "if_ahead_given": options.if_ahead is not None,
            "clamp": options.clamp,
            "topics": list(options.topics),
            "groups": list(options.group_selection.patterns or ()),
            "rename": dict(options.rename),
            "onto_existing": options.onto_existing,
            **({"shift": options.shift} if options.shift else {}),
            **({"exclude_groups": list(options.exclude_groups)} if options.exclude_groups else {}),
        },
        "cluster_id": header.cluster_id,
        "retention_ms": header.retention_ms,
        "expires_at": header.expires_at,
        "tool": header.tool,
        **_encode_crossing(header),
        **{name: value for name, value in optional.items() if value},
    }


def _encode_crossing(header: PlanHeader) -> dict[str, Any]:
    if header.compared is None:
        return {}
    encoded = {"relation": header.compared.relation.value, "how": header.compared.how, "recreation": header.recreation}
    return {"logs": encoded | ({} if header.translate is None else {"translate": header.translate.value})}


def _decode_policy(options: Mapping[str, Any]) -> AheadPolicy | None:
    """Returns the caller's word; None if there was none. Release 0.1 stored ``keep`` with and without a word."""
    policy = AheadPolicy(options["if_ahead"])
    return policy if options.get("if_ahead_given", policy is not AheadPolicy.KEEP) else None


def _decode_comparison(logs: Mapping[str, Any]) -> OriginComparison:
    relation = Relation(logs["relation"])  # a plan of unknown clusters has the caller's word, if it needs one
    return OriginComparison(relation, logs["how"], relation is Relation.UNKNOWN and "translate" in logs)


def decode_header(encoded: Mapping[str, Any], version: int) -> PlanHeader:
    options = encoded["options"]
    partition_map = encoded.get("partition_map")
    logs = encoded.get("logs")
    clock = encoded.get("clock")
    return PlanHeader(
        encoded["plan_id"],
        encoded["created_at"],
        StoreEndpoint(**encoded["source"]),
        StoreEndpoint(**encoded["target"]),
        PlanOptions(
            _decode_policy(options),
            options["clamp"],
            tuple(options["topics"]),
            tuple(options["groups"]) or None,
            dict(options["rename"]),
            options["onto_existing"],
            options.get("shift", 0),
            tuple(options.get("exclude_groups", ())),
        ),
        encoded["cluster_id"],
        encoded["retention_ms"],
        encoded["tool"],
        None if logs is None else _decode_comparison(logs),
        OffsetTranslation(logs["translate"]) if logs and "translate" in logs else None,
        "" if logs is None else logs["recreation"],
        None if partition_map is None else MapOrigin(**partition_map),
        tuple(encoded.get("weaknesses", ())),
        None if clock is None else ClockDifference(**clock),
        version,
    )
