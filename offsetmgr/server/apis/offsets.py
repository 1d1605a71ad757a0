"""OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import ErrorCode
from offsetmgr.core.model import NO_OFFSET
from offsetmgr.core.retry import completed
from offsetmgr.kafka.protocol.frames import in_codec_thread
from offsetmgr.manager.commit_checks import without_partitions
from offsetmgr.manager.results import CommitRequest, CommitResponse, FetchRequest, FetchResponse
from offsetmgr.records.base import PartitionCommit
from offsetmgr.server.apis import commit_codec, fetch_codec
from offsetmgr.server.apis.api_context import (
    ApiContext,
    decoded,
    encoded,
    encoded_by_size,
    in_turns,
    result_by_size,
    run_by_size,
    too_long,
)
from offsetmgr.server.network.requests import Answer, ApiRequest, DeferredResponse, HandlerResult
from offsetmgr.server.security.authorization import Operation

_log = logging.getLogger(__name__)

_DEFECT: Final = CommitResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
_FETCH_DEFECT: Final = FetchResponse(ErrorCode.UNKNOWN_SERVER_ERROR)
_LARGE: Final = 2_000
"""If the response contains more than this number of partitions of one group, the codec thread encodes these partitions,
even if the request was small."""
_BATCH: Final = 50
"""Number of groups that are fetched at the same time."""
_REJECTED: Final = FetchResponse(ErrorCode.INVALID_REQUEST)


class _Fetch(NamedTuple):
    """A fetch of one group. The response is ``complete(await result)``."""

    result: asyncio.Future[FetchResponse]
    complete: Callable[[FetchResponse], FetchResponse] = lambda found: found


class _Commit(NamedTuple):
    """A decoded OffsetCommit."""

    request: CommitRequest
    """The commit without the rejected partitions."""
    topics: Sequence[tuple[str, Sequence[PartitionCommit]]]
    """All partitions of the request."""
    rejected: dict[tuple[str, int], int]
    """The error codes of rejected partitions, by topic and partition."""
    error: int = 0
    """The error code of the whole request; 0 if the request is accepted."""


def prepare_commit(context: ApiContext, request: ApiRequest) -> _Commit:
    """Decodes an OffsetCommit and checks permissions and limits. Raises `InvalidRequest`."""
    version = request.version
    commit = commit_codec.decode(version, request.frame, request.cursor(flexible=version >= commit_codec.FLEXIBLE).at)
    topics = commit.topics
    if _too_many(request, topics):
        return _Commit(commit, topics, {}, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    if not commit.expected and not context.group_allowed(request, Operation.WRITE, commit.group):
        return _Commit(commit, topics, {}, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    rejected = {
        (topic, part[0]): code
        for topic, parts in topics
        for operation, some in _by_operation(topic, parts, commit.expected)
        if (code := _commit_error(context, request, operation, commit.group, topic))
        for part in some
    }
    return _Commit(without_partitions(commit, rejected) if rejected else commit, topics, rejected)


def _by_operation(
    topic: str, parts: Sequence[PartitionCommit], expected: Mapping[tuple[str, int], int]
) -> Iterable[tuple[Operation, Sequence[PartitionCommit]]]:
    """Returns the partitions by the operation that they need. A partition with a condition and without an offset is a
    deletion."""
    if not expected:
        return [(Operation.WRITE, parts)]

    def operation(partition: int, offset: int) -> Operation:
        return Operation.DELETE if offset == NO_OFFSET and (topic, partition) in expected else Operation.WRITE

    return by_key((operation(part[0], part[1]), part) for part in parts).items()


def _commit_error(context: ApiContext, request: ApiRequest, operation: Operation, group: str, topic: str) -> int:
    if not context.group_allowed(request, operation, group):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return context.topic_error(request, operation, topic)


def offset_commit(context: ApiContext, request: ApiRequest) -> HandlerResult:
    version = request.version
    commit, topics, rejected, error = request.prepared or prepare_commit(context, request)
    if error or not any(parts for _, parts in commit.topics):
        return run_by_size(request, commit_codec.encode, version, topics, CommitResponse(error, errors=rejected))

    def answer(response: CommitResponse) -> Answer | Awaitable[Answer]:
        return run_by_size(request, _commit_answer, version, commit, topics, rejected, response)

    return DeferredResponse(context.backend.commit(commit), answer, _DEFECT)


def _too_many(request: ApiRequest, topics: Sequence[tuple[str, Sequence[Any]]]) -> bool:
    """Whether a request has too many partitions of one group. A topic without partitions counts as one partition."""
    return sum(max(len(parts), 1) for _, parts in topics) > request.connection.service.settings.max_partitions


def _commit_answer(
    version: int,
    commit: CommitRequest,
    topics: Sequence[tuple[str, Sequence[PartitionCommit]]],
    rejected: dict[tuple[str, int], int],
    response: CommitResponse,
) -> bytes:
    if rejected:
        errors = response.errors
        if response.error:
            errors = {(topic, part[0]): response.error for topic, parts in commit.topics for part in parts}
        response = CommitResponse(errors={**errors, **rejected})
    return commit_codec.encode(version, topics, response)


def prepare_fetch(request: ApiRequest) -> Sequence[FetchRequest]:
    """Decodes an OffsetFetch. Raises `InvalidRequest`."""
    version = request.version
    return fetch_codec.decode(version, request.frame, request.cursor(flexible=version >= fetch_codec.FLEXIBLE).at)


def offset_fetch(context: ApiContext, request: ApiRequest) -> HandlerResult:
    version = request.version
    requested = request.prepared or prepare_fetch(request)
    if len(requested) == 1:
        fetch = _fetched(context, request, requested[0])

        def answer(found: FetchResponse) -> Answer | Awaitable[Answer]:
            response = fetch.complete(found)
            if _partitions(response) > _LARGE:
                return in_codec_thread(fetch_codec.encode, version, requested, [response])
            return run_by_size(request, fetch_codec.encode, version, requested, [response])

        return DeferredResponse(fetch.result, answer, _FETCH_DEFECT)
    return _fetch_many(context, request, requested)


async def offset_delete(context: ApiContext, request: ApiRequest) -> Answer:
    message = decoded(request)
    group = message["group_id"]
    if not context.group_allowed(request, Operation.DELETE, group):
        return encoded(request, {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": []})
    requested = [(topic["name"], [p["partition_index"] for p in topic["partitions"]]) for topic in message["topics"]]
    if _too_many(request, requested):
        return encoded(request, {"error_code": ErrorCode.INVALID_REQUEST, "topics": []})
    codes = {name: context.topic_error(request, Operation.DELETE, name) for name, _ in requested}
    allowed = [(name, parts) for name, parts in requested if not codes[name]]
    response = await context.backend.delete_offsets(group, allowed) if allowed or not requested else CommitResponse()
    topics: list[dict[str, Any]] = []
    for name, parts in [] if response.error else requested:
        errors = [(p, codes[name] or response.errors.get((name, p), 0)) for p in parts]
        partitions = [{"partition_index": p, "error_code": error} for p, error in errors]
        topics.append({"name": name, "partitions": partitions})
    return await encoded_by_size(request, {"error_code": response.error, "topics": topics})


# --- fetches ------------------------------------------------------------------------------------------


def _fetched(context: ApiContext, request: ApiRequest, requested: FetchRequest) -> _Fetch:
    """Fetches the topics of a group that the client may read. If the request names topics, unauthorized and invalid
    topics get an error. If the request asks for all topics, the response omits unauthorized topics."""
    topics = requested.topics
    if topics is not None and _too_many(request, topics):
        return _Fetch(completed(_REJECTED))
    if not context.authorizer.has_rules and not any(too_long(request, topic) for topic, _ in topics or ()):
        return _Fetch(asyncio.ensure_future(context.backend.fetch(requested)))
    if not context.group_allowed(request, Operation.READ, requested.group):
        return _Fetch(completed(FetchResponse(ErrorCode.GROUP_AUTHORIZATION_FAILED)))
    if topics is None:
        may_read = partial(context.topic_allowed, request, Operation.READ)
        return _Fetch(
            asyncio.ensure_future(context.backend.fetch(requested)),
            lambda found: found._replace(topics=[topic for topic in found.topics if may_read(topic[0])]),
        )
    codes = {topic: context.topic_error(request, Operation.READ, topic) for topic, _ in topics}
    rejected = [(topic, [(p, -1, -1, "", codes[topic]) for p in parts]) for topic, parts in topics if codes[topic]]
    allowed = requested._replace(topics=[topic for topic in topics if not codes[topic[0]]])
    return _Fetch(
        asyncio.ensure_future(context.backend.fetch(allowed)),
        lambda found: found if found.error else found._replace(topics=[*found.topics, *rejected]),
    )


async def _fetch_many(context: ApiContext, request: ApiRequest, requested: Sequence[FetchRequest]) -> bytes:
    """Fetches many groups, since tools fetch all groups in one request. Rejects a group that the request has named
    before, and the groups behind the last one that fits into a response."""
    parts: list[bytes] = []
    fetches: list[_Fetch] = []
    known: set[str] = set()
    left, partitions = request.connection.service.settings.max_answer_bytes, 0
    async for number, one in in_turns(request, enumerate(requested, 1)):
        again = one.group in known or left <= 0
        known.add(one.group)
        fetch = _Fetch(completed(_REJECTED)) if again else _fetched(context, request, one)
        # The offset manager's backend returns a completed future; other backends return a pending one.
        fetches.append(fetch)
        if fetch.result.done() and not fetch.result.cancelled() and not fetch.result.exception():
            partitions += _partitions(fetch.result.result())
        if number < len(requested) and len(fetches) < _BATCH and partitions < _LARGE:
            continue
        results = await asyncio.gather(*(fetch.result for fetch in fetches), return_exceptions=True)
        answers = zip(requested[number - len(fetches) : number], fetches, results, strict=True)
        async for asked, fetch, found in in_turns(request, answers):
            response = _response(fetch, found) if left > 0 else _REJECTED
            encode = partial(fetch_codec.encode_group, request.version, asked, response)
            parts.append(await in_codec_thread(encode) if _partitions(response) > _LARGE else encode())
            left -= len(parts[-1])
        fetches, partitions = [], 0
    return await result_by_size(request, fetch_codec.encode_batch, parts)


def _response(fetch: _Fetch, found: FetchResponse | BaseException) -> FetchResponse:
    if isinstance(found, BaseException):
        _log.error("a fetch raised an unexpected exception (a defect); the client gets an error", exc_info=found)
        return _FETCH_DEFECT
    return fetch.complete(found)


def _partitions(found: FetchResponse) -> int:
    return sum(len(parts) for _, parts in found.topics)
