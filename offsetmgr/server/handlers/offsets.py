"""OffsetCommit, OffsetFetch and OffsetDelete: the questions that the whole listener is for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from offsetmgr.manager.requests import CommitRequest, CommitResponse, DeleteResponse, FetchRequest, FetchResponse
from offsetmgr.server import commit_codec, fetch_codec
from offsetmgr.server.authorization import Operation
from offsetmgr.server.dispatch import Answer, Later, Outcome, Request
from offsetmgr.server.handlers.endpoint import (
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    Endpoint,
    decoded,
    encoded,
)

_log = logging.getLogger(__name__)

_UNKNOWN_PARTITION: Final = 3
_INVALID_REQUEST: Final = 42
_DEFECT: Final = CommitResponse(UNKNOWN_SERVER_ERROR)
_FETCH_DEFECT: Final = FetchResponse(UNKNOWN_SERVER_ERROR)
_BATCH: Final = 50
"""Groups that are worked on before other clients have their turn."""


def offset_commit(endpoint: Endpoint, request: Request) -> Outcome:
    version = request.version
    commit, negative = commit_codec.decode(
        version, request.frame, request.body(flexible=version >= commit_codec.FLEXIBLE)
    )
    topics = commit.topics
    refused: dict[tuple[str, int], int] = {}
    if endpoint.authorizes:
        if not endpoint.group_allowed(request, Operation.WRITE, commit.group):
            return commit_codec.encode(version, topics, CommitResponse(GROUP_AUTHORIZATION_FAILED))
        refused = _forbidden(endpoint, request, commit)
    if negative:
        refused |= _nonsense(commit)
    if refused:
        commit = _without(commit, refused)
    if not any(parts for _, parts in commit.topics):
        return commit_codec.encode(version, topics, CommitResponse(errors=refused))

    def answer(response: CommitResponse) -> Answer:
        if refused:
            response = _both(commit, response, refused)
        return commit_codec.encode(version, topics, response)

    return Later(endpoint.backend.commit(commit), answer, _DEFECT)


def offset_fetch(endpoint: Endpoint, request: Request) -> Outcome:
    version = request.version
    asked = fetch_codec.decode(version, request.frame, request.body(flexible=version >= fetch_codec.FLEXIBLE))
    if len(asked) == 1:
        result = _fetched(endpoint, request, asked[0])
        return Later(result, lambda found: fetch_codec.encode(version, asked, [found]), _FETCH_DEFECT)
    return _fetch_many(endpoint, request, asked)


async def offset_delete(endpoint: Endpoint, request: Request) -> Answer:
    message = decoded(request)
    group = message["group_id"]
    if not endpoint.group_allowed(request, Operation.DELETE, group):
        return encoded(request, {"error_code": GROUP_AUTHORIZATION_FAILED, "topics": []})
    asked = [(topic["name"], [p["partition_index"] for p in topic["partitions"]]) for topic in message["topics"]]
    allowed = [(name, parts) for name, parts in asked if endpoint.topic_allowed(request, Operation.DELETE, name)]
    names = {name for name, _ in allowed}
    response = await endpoint.backend.delete_offsets(group, allowed) if allowed or not asked else DeleteResponse()
    topics: list[dict[str, Any]] = []
    for name, parts in [] if response.error else asked:
        errors = [response.errors.get((name, p), 0) if name in names else TOPIC_AUTHORIZATION_FAILED for p in parts]
        topics.append(
            {
                "name": name,
                "partitions": [
                    {"partition_index": p, "error_code": error} for p, error in zip(parts, errors, strict=True)
                ],
            }
        )
    return encoded(request, {"error_code": response.error, "topics": topics})


# --- commits ------------------------------------------------------------------------------------------


def _forbidden(endpoint: Endpoint, request: Request, commit: CommitRequest) -> dict[tuple[str, int], int]:
    return {
        (topic, part[0]): TOPIC_AUTHORIZATION_FAILED
        for topic, parts in commit.topics
        if not endpoint.topic_allowed(request, Operation.WRITE, topic)
        for part in parts
    }


def _nonsense(commit: CommitRequest) -> dict[tuple[str, int], int]:
    """Negative partitions do not exist; a negative offset would be read as "none committed", so none is kept."""
    refused: dict[tuple[str, int], int] = {}
    for topic, parts in commit.topics:
        for part in parts:
            key = topic, part[0]
            lowest = commit_codec.DELETION if key in commit.expected else 0
            if part[0] < 0:
                refused[key] = _UNKNOWN_PARTITION
            elif part[1] < lowest:
                refused[key] = _INVALID_REQUEST
    return refused


def _without(commit: CommitRequest, refused: dict[tuple[str, int], int]) -> CommitRequest:
    topics = [(topic, [p for p in parts if (topic, p[0]) not in refused]) for topic, parts in commit.topics]
    expected = {key: offset for key, offset in commit.expected.items() if key not in refused}
    return commit._replace(topics=[(topic, parts) for topic, parts in topics if parts], expected=expected)


def _both(commit: CommitRequest, response: CommitResponse, refused: dict[tuple[str, int], int]) -> CommitResponse:
    if not response.error:
        return CommitResponse(errors={**response.errors, **refused})
    of_the_rest = {(topic, p[0]): response.error for topic, parts in commit.topics for p in parts}
    return CommitResponse(errors={**of_the_rest, **refused})


# --- fetches ------------------------------------------------------------------------------------------


def _fetched(endpoint: Endpoint, request: Request, asked: FetchRequest) -> Awaitable[FetchResponse]:
    if endpoint.authorizes:
        return _fetch_what_is_allowed(endpoint, request, asked)
    return endpoint.backend.fetch(asked)


async def _fetch_many(endpoint: Endpoint, request: Request, asked: Sequence[FetchRequest]) -> bytes:
    """A few groups at a time: tools ask for all that there are at once."""
    parts: list[bytes] = []
    for at in range(0, len(asked), _BATCH):
        several = asked[at : at + _BATCH]
        results = await asyncio.gather(*(_fetched(endpoint, request, one) for one in several), return_exceptions=True)
        for one, found in zip(several, results, strict=True):
            if isinstance(found, BaseException):
                _log.error("a fetch failed: a defect; it is answered with an error", exc_info=found)
            response = _FETCH_DEFECT if isinstance(found, BaseException) else found
            parts.append(fetch_codec.encode_group(request.version, one, response))
        await asyncio.sleep(0)
    return fetch_codec.encode_batch(parts)


async def _fetch_what_is_allowed(endpoint: Endpoint, request: Request, asked: FetchRequest) -> FetchResponse:
    """Topics that the client may not see have an error where they were asked for, and are left out of all."""
    if not endpoint.group_allowed(request, Operation.READ, asked.group):
        return FetchResponse(GROUP_AUTHORIZATION_FAILED)

    def allowed(topic: str) -> bool:
        return endpoint.topic_allowed(request, Operation.READ, topic)

    if asked.topics is None:
        found = await endpoint.backend.fetch(asked)
        return found._replace(topics=[topic for topic in found.topics if allowed(topic[0])])
    found = await endpoint.backend.fetch(asked._replace(topics=[t for t in asked.topics if allowed(t[0])]))
    if found.error:
        return found
    forbidden = [
        (topic, [(p, -1, -1, "", TOPIC_AUTHORIZATION_FAILED) for p in parts])
        for topic, parts in asked.topics
        if not allowed(topic)
    ]
    return found._replace(topics=[*found.topics, *forbidden])
